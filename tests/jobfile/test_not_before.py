"""`not_before:` of a job: which moment its words mean, and who may say it."""

from __future__ import annotations

import os

import pytest

from gpulaunch.core.model import DueTime
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from tests.jobfile.helpers import GOOD, mistakes_of


def dues(text: str, now: float = 0.0) -> dict[str, DueTime | None]:
    environ = {"HOME": "/nonexistent", "PATH": os.defpath}
    plan = load_text(text.encode(), Surroundings(environ, now=now), name="jobs.yaml", base=GOOD)
    return {job.name: job.not_before for job in plan.jobs}


def test_a_moment_with_an_offset_is_the_same_everywhere() -> None:
    assert dues("jobs: [{name: a, run: x, not_before: 2026-11-26T07:30+01:00}]") == {
        "a": DueTime("2026-11-26T07:30+01:00", 1795674600.0)
    }


def test_a_time_of_day_is_the_next_one_from_when_the_file_is_read() -> None:
    """Unquoted too: 19:00 is no number of minutes here."""
    early = dues("jobs: [{name: a, run: x, not_before: 19:00}]", 1795600000.0)["a"]
    late = dues("jobs: [{name: a, run: x, not_before: 19:00}]", 1795600000.0 + 86400.0)["a"]
    assert early is not None
    assert late is not None
    assert (early.words, late.words) == ("19:00", "19:00")
    assert 0 <= early.utc - 1795600000.0 < 86400.0
    assert late.utc == early.utc + 86400.0


def test_it_is_said_for_all_jobs_or_item_by_item() -> None:
    found = dues(
        """
        defaults: {not_before: 2026-11-26T00:00Z}
        jobs:
          - {name: a, run: x}
          - {name: b, run: x, not_before: null}
          - name: "c-{{hour}}"
            run: x
            matrix: {hour: ["20", "21"]}
            not_before: "2026-11-26T{{hour}}:00Z"
        """
    )
    assert {name: due and due.utc for name, due in found.items()} == {
        "a": 1795651200.0,
        "b": None,
        "c-20": 1795723200.0,
        "c-21": 1795726800.0,
    }


def test_items_of_one_moment_share_it() -> None:
    found = dues('jobs: [{name: "a-{{n}}", run: x, matrix: {n: [1, 2]}, not_before: "19:00"}]')
    assert found["a-1"] is found["a-2"]


def test_when_a_job_starts_is_no_part_of_what_it_is() -> None:
    environ = {"HOME": "/nonexistent", "PATH": os.defpath}

    def digest(more: str) -> str:
        text = f"jobs: [{{name: a, run: x{more}}}]".encode()
        return load_text(text, Surroundings(environ), name="jobs.yaml", base=GOOD).jobs[0].digest

    assert digest("") == digest(", not_before: 19:00")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("7pm", "expected a time like 19:00, 2026-11-26 07:30 or 2026-11-26T07:30Z, found '7pm'"),
        ("[19:00]", "expected one value, found a list"),
        ("25:00", "expected a time from 00:00 to 23:59, found '25:00'"),
    ],
)
def test_what_is_no_moment_is_refused_at_its_place(value: str, said: str) -> None:
    mistakes = mistakes_of(f"jobs:\n  - run: x\n    not_before: {value}\n")
    assert mistakes == [f"3:17: jobs[0].not_before: {said}"]
