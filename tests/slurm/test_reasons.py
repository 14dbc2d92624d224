"""Slurm's reasons in words: each as it is printed, with what people read."""

from __future__ import annotations

import pytest

from gpulaunch.engines.slurm.reading import in_words, is_mixed, prospect


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


NEVER = (
    "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit", "QOSMaxGRESPerJob",
    "QOSMaxCpuPerJobLimit", "AssocMaxGRESPerNode", "QOSMaxCpuMinutesPerJobLimit", "QOSMinGRES",
    "QOSMinCpuNotSatisfied", "InvalidQOS", "QOSNotAllowed", "AccountNotAllowed", "MaxMemPerLimit",
    "ReservationDeleted", "ReservationInvalid", "QOSMaxGRESPerJob,QOSMinGRES",
)  # fmt: skip
PERSON = (
    "PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "PartitionDown",
    "PartitionInactive", "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "JobLaunchFailure",
    "AccountingPolicy", "QOSUsageThreshold", "AssocGrpGRESMinutes", "QOSGrpCPUMinutesLimit",
    "AssocGrpWallLimit", "NodeDown", "BadConstraints", "QOSMinGRES,JobHeldUser",
)  # fmt: skip
PASSING = (
    "", "None", "Priority", "Resources", "Dependency", "BeginTime", "Licenses", "Reservation",
    "JobArrayTaskLimit", "QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit", "AssocGrpCPURunMinutesLimit",
    "AssocMaxJobsLimit", "QOSMaxGRESPerUser", "MaxGRESPerAccount", "MaxCpuRunMinsPerUser",
    "ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:n[1-2]", "InvalidAccount", "Prolog",
    "BurstBufferStageIn", "Cleaning", "SchedDefer", "NewInSlurm99", "Resources,JobHeldAdmin",
)  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "is_"), [(NEVER, "never"), (PERSON, "person"), (PASSING, "passing")]
)
def test_whether_waiting_helps_is_known_of_each_reason(codes: tuple[str, ...], is_: str) -> None:
    assert {code: prospect(code) for code in codes} == dict.fromkeys(codes, is_)


def test_what_waiting_alone_does_not_help_has_words() -> None:
    assert [code for code in (*NEVER, *PERSON) if in_words(code) == f" ({code})"] == [
        "AccountingPolicy",
        "QOSUsageThreshold",
    ]


def test_reasons_of_several_tasks_are_known_by_their_comma() -> None:
    assert is_mixed("Resources,JobHeldAdmin")
    assert not any(map(is_mixed, ["", "Priority", "ReqNodeNotAvail, UnavailableNodes:n[1-2],n5"]))
