"""Slurm's reasons in words: each as it is printed, with what people read."""

from __future__ import annotations

import pytest

from gpulaunch.engines.slurm.reasons import in_words, is_hopeless


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "others go first"),
        ("Resources", "what it asks for is not free yet"),
        ("BeginTime", "it is to begin later"),
        ("JobArrayTaskLimit", "as many of these run as limits: lets"),
        ("PartitionDown", "its partition starts no jobs now"),
        ("PartitionTimeLimit", "asks for more time than its partition gives: a shorter timeout:"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "nodes that it could run on are down"),
        ("QOSMaxJobsPerUserLimit", "you have as many jobs running as you may"),
        ("MaxJobsPerAccount", "as many jobs run of its account or QOS as may"),
        ("AssocMaxJobsLimit", "as many jobs run of its account or QOS as may"),
        ("AssocGrpGRES", "its account or QOS has as many cards as it may"),
        ("QOSMaxGRESPerUser", "its account or QOS has as many cards as it may"),
        ("QOSMaxGRESPerJob", "asks for more than one job may have"),
        ("AssocGrpGRESMinutes", "the time granted to its account or QOS is used up"),
        ("QOSMaxWallDurationPerJobLimit", "asks for more time than it may have: a shorter"),
        ("AssocGrpCpuLimit", "its account or QOS has as much as it may"),
    ],
)
def test_a_reason_is_told_in_words_with_slurms_own_behind_them(reason: str, words: str) -> None:
    said = in_words(reason)
    assert said.startswith(f": {words}"), said
    assert said.endswith(f" ({reason})")


def test_a_reason_that_is_not_known_here_is_shown_as_it_is() -> None:
    assert in_words("NewInSlurm99") == " (NewInSlurm99)"
    assert in_words("Dependency") == " (Dependency)"
    assert in_words("InvalidAccount") == " (InvalidAccount)"  # 23.11.4, of whatever waits
    assert in_words("") == ""


def test_of_tasks_that_are_shown_together_the_first_reason_with_words_is_told() -> None:
    assert in_words("None,JobHeldUser") == ": held; scontrol release lets it go (None,JobHeldUser)"


def test_what_waiting_cannot_help_is_known() -> None:
    never = [
        "PartitionTimeLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSMaxGRESPerJob",
        "InvalidQOS",
    ]
    assert all(map(is_hopeless, never))
    assert not any(map(is_hopeless, ["", "Priority", "QOSMaxJobsPerUserLimit", "PartitionDown"]))
