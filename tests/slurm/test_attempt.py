"""Which row of Slurm's queue is about an attempt, and what it means that there is none."""

from __future__ import annotations

import pytest

from gpulaunch.core.model import AttemptId, Instant, Job
from gpulaunch.engines.slurm.attempt import (
    Began,
    QueueSnapshot,
    Sighting,
    SlurmAttempt,
    SlurmJob,
)
from gpulaunch.engines.slurm.node_files import NodeStart
from gpulaunch.engines.slurm.reading import NEVER_MET, QueueRow, Tasks

WAITING = QueueRow("7", tasks=Tasks((range(4, 9),)), name="b", reason="Dependency")


def held(need: str = "", **fields: object) -> SlurmAttempt:
    job = SlurmJob("7_3", "b", need=need)
    return SlurmAttempt(AttemptId("b3", 1), Job("b3", "true"), job, **fields)  # type: ignore[arg-type]


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
    began = held(sight=Sighting(QueueRow("7", 3, name="b", state="RUNNING")))
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
    one = held(holder=Began(START, 10.0)).looked(RUNS, asked_at=11.0, now=11.5)
    assert (one.sight.recalled, one.sight.unaccounted) == (None, None)
    one = one.looked(BACK, asked_at=12.0, now=12.5)
    assert one.sight.recalled
    assert one.sight.unaccounted is not None
    assert one.is_to_begin_anew
    assert not one.sight.is_over


def test_what_was_seen_to_wait_before_its_start_was_is_not() -> None:
    one = held(holder=Began(START, 10.0)).looked(BACK, asked_at=9.0, now=10.5)
    assert (one.sight.recalled, one.sight.unaccounted) == (None, None)


def test_it_has_left_once_slurm_was_asked_and_knows_it_no_longer() -> None:
    one = held()
    assert not one.sight.is_over
    one = one.looked(None, asked_at=1.0, now=1.5)
    assert one.sight.is_over
    since = one.sight.unaccounted
    one = one.looked(None, asked_at=2.0, now=2.5)
    assert one.sight.unaccounted == since
    one = one.looked(RUNS, asked_at=3.0, now=3.5)
    assert (one.sight.is_over, one.sight.unaccounted) == (False, None)
