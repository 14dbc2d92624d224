"""A run's end is seen to come by how fast its jobs end."""

from __future__ import annotations

import pytest

from gpulaunch.app.last_second import PACE_OF, LastSecond
from gpulaunch.core.ledger import Ledger


def ledger(waiting: int, running: int = 1) -> Ledger:
    made = Ledger()
    made.counts["waiting"], made.counts["running"] = waiting, running
    return made


@pytest.mark.parametrize(("left", "expected"), [(120, False), (95, True), (0, True)])
def test_it_begins_when_those_that_wait_are_as_many_as_end_in_a_second(
    left: int, expected: bool
) -> None:
    last_second = LastSecond()
    assert not last_second.begins(ledger(200), 10.0)
    assert not last_second.begins(ledger(150), 10.0 + PACE_OF)
    assert last_second.begins(ledger(left), 10.1 + PACE_OF) == expected


def test_it_begins_with_the_start_of_the_last_job_where_jobs_take_long() -> None:
    last_second = LastSecond()
    assert not last_second.begins(ledger(2), 0.0)
    assert not last_second.begins(ledger(1), 3600.0)
    assert last_second.begins(ledger(0), 7200.0)


def test_it_does_not_begin_before_anything_runs() -> None:
    assert not LastSecond().begins(ledger(0, running=0), 0.0)


def test_jobs_that_are_added_put_it_off() -> None:
    last_second = LastSecond()
    assert not last_second.begins(ledger(10), 0.0)
    assert not last_second.begins(ledger(500), 1.0)
