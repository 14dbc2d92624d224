"""Which row of Slurm's queue is about an attempt, and what it means that there is none."""

from __future__ import annotations

import pytest

from gpulaunch.core.model import AttemptId, Instant, Job
from gpulaunch.engines.slurm.attempt import QueueSnapshot, SlurmAttempt
from gpulaunch.engines.slurm.reading import NEVER_MET, QueueRow, Tasks
from gpulaunch.process.nodeside import NodeStart

WAITING = QueueRow("7", tasks=Tasks((range(4, 9),)), name="b", reason="Dependency")


def held(**fields: object) -> SlurmAttempt:
    return SlurmAttempt(AttemptId("b3", 1), Job("b3", "true"), "7_3", "b", **fields)  # type: ignore[arg-type]


def test_a_task_that_went_without_a_trace_was_cancelled() -> None:
    row = QueueSnapshot([WAITING]).row_of(held())
    assert row is not None
    assert (str(row), row.kind) == ("7_3", "cancelled")


@pytest.mark.parametrize(
    ("need", "kind"),
    [
        (QueueRow("5", 3, name="a", state="RUNNING"), "cancelled"),
        (QueueRow("5", tasks=Tasks((range(2, 6),)), name="a"), "cancelled"),
        (QueueRow("5", 3, name="a", state="FAILED"), "dependency"),
        (QueueRow("5", 4, name="a", state="RUNNING"), "dependency"),
    ],
    ids=["runs", "waits", "failed", "is forgotten"],
)
def test_by_slurm_itself_where_what_it_needed_is_not_under_way(need: QueueRow, kind: str) -> None:
    row = QueueSnapshot([WAITING, need]).row_of(held(need="5_3"))
    assert row is not None
    assert row.kind == kind


def test_of_one_that_began_or_whose_array_is_gone_nothing_is_known() -> None:
    began = held(row=QueueRow("7", 3, name="b", state="RUNNING"))
    assert QueueSnapshot([WAITING]).row_of(began) is None
    assert QueueSnapshot([]).row_of(held()) is None


def test_the_reason_that_counts_is_slurms_own_word() -> None:
    assert NEVER_MET == "DependencyNeverSatisfied"


# ── What looks at the queue tell ────────────────────────────────────────────────────────────────

START = NodeStart("b3.1", "7_3", "n1", "host", 7, 0, "0", (), "boot", Instant(1.0, 1.0))
RUNS, BACK = (
    QueueRow("7", 3, name="b", state="RUNNING"),
    QueueRow("7", 3, name="b", state="PENDING"),
)


def test_what_waits_again_after_it_was_begun_is_recalled_and_over_with() -> None:
    one = held(start=START, start_at=10.0)
    one.look(RUNS, asked_at=11.0)
    assert (one.recalled, one.over_at) == ("", None)
    one.look(BACK, asked_at=12.0)
    assert one.recalled
    assert one.over_at is not None
    assert one.is_to_begin_anew
    assert not one.has_left


def test_what_was_seen_to_wait_before_its_start_was_is_not() -> None:
    one = held(start=START, start_at=10.0)
    one.look(BACK, asked_at=9.0)
    assert (one.recalled, one.over_at) == ("", None)


def test_it_has_left_once_slurm_was_asked_and_knows_it_no_longer() -> None:
    one = held()
    assert not one.has_left
    one.look(None, asked_at=1.0)
    assert one.has_left
    since = one.over_at
    one.look(None, asked_at=2.0)
    assert one.over_at == since
    one.look(RUNS, asked_at=3.0)
    assert (one.has_left, one.over_at) == (False, None)
