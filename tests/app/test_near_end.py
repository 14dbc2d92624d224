"""A run's end is seen to come by how fast its jobs end."""

from __future__ import annotations

import pytest

from gpulaunch.app.near_end import AHEAD, AHEAD_PER_JOB, PACE_OF, NearEnd
from gpulaunch.core.ledger import Ledger


def ledger(waiting: int, running: int = 1, jobs: int = 0) -> Ledger:
    made = Ledger()
    made.counts["waiting"], made.counts["running"] = waiting, running
    made.jobs = dict.fromkeys(map(str, range(jobs)))  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("jobs", [0, 10_000])
@pytest.mark.parametrize(("left", "expected"), [(1.2, False), (0.95, True), (0.0, True)])
def test_it_begins_when_those_that_wait_are_as_many_as_end_in_the_time_it_takes_to_get_ready(
    left: float, expected: bool, jobs: int
) -> None:
    near_end, each_second = NearEnd(), 100
    assert not near_end.begins(ledger(2000, jobs=jobs), 10.0)
    after = 2000 - int(each_second * PACE_OF)
    assert not near_end.begins(ledger(after, jobs=jobs), 10.0 + PACE_OF)
    in_time = each_second * (AHEAD + AHEAD_PER_JOB * jobs)
    assert near_end.begins(ledger(int(in_time * left), jobs=jobs), 10.1 + PACE_OF) == expected


def test_it_begins_with_the_start_of_the_last_job_where_jobs_take_long() -> None:
    near_end = NearEnd()
    assert not near_end.begins(ledger(2), 0.0)
    assert not near_end.begins(ledger(1), 3600.0)
    assert near_end.begins(ledger(0), 7200.0)


def test_it_does_not_begin_before_anything_runs() -> None:
    assert not NearEnd().begins(ledger(0, running=0), 0.0)


def test_jobs_that_are_added_put_it_off() -> None:
    near_end = NearEnd()
    assert not near_end.begins(ledger(10), 0.0)
    assert not near_end.begins(ledger(500), 1.0)
