"""Which row of Slurm's queue is about an attempt, and what it means that there is none."""

from __future__ import annotations

import pytest

from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.slurm.held import Held, Queue
from gpulaunch.engines.slurm.reading import NEVER_MET, Row, Tasks

WAITING = Row("7", tasks=Tasks((range(4, 9),)), name="b", reason="Dependency")


def held(**fields: object) -> Held:
    return Held(AttemptId("b3", 1), Job("b3", "true"), "7_3", "b", **fields)  # type: ignore[arg-type]


def test_a_task_that_went_without_a_trace_was_cancelled() -> None:
    row = Queue([WAITING]).row_of(held())
    assert row is not None
    assert (str(row), row.kind) == ("7_3", "cancelled")


@pytest.mark.parametrize(
    ("need", "kind"),
    [
        (Row("5", 3, name="a", state="RUNNING"), "cancelled"),
        (Row("5", tasks=Tasks((range(2, 6),)), name="a"), "cancelled"),
        (Row("5", 3, name="a", state="FAILED"), "dependency"),
        (Row("5", 4, name="a", state="RUNNING"), "dependency"),
    ],
    ids=["runs", "waits", "failed", "is forgotten"],
)
def test_by_slurm_itself_where_what_it_needed_is_not_under_way(need: Row, kind: str) -> None:
    row = Queue([WAITING, need]).row_of(held(need="5_3"))
    assert row is not None
    assert row.kind == kind


def test_of_one_that_began_or_whose_array_is_gone_nothing_is_known() -> None:
    began = held(row=Row("7", 3, name="b", state="RUNNING"))
    assert Queue([WAITING]).row_of(began) is None
    assert Queue([]).row_of(held()) is None


def test_the_reason_that_counts_is_slurms_own_word() -> None:
    assert NEVER_MET == "DependencyNeverSatisfied"
