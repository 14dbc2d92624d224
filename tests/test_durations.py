"""The record of what tests cost keeps to the promises: four minutes, forty for everything."""

from __future__ import annotations

import pytest

from tests import durations
from tests.durations import Cost, Durations, cost, recorded

CORES = 2


def test_a_plain_pytest_takes_under_four_minutes_on_two_cores_and_everything_under_forty() -> None:
    """Slurm's tests on a cluster come on top of the forty: see .ci/run."""
    costs = recorded().values()
    assert sum(each.plain[1] for each in costs) / CORES < 4 * 60
    assert sum(each.clock for each in costs) / CORES < 40 * 60


def test_slow_is_what_takes_over_a_second_but_for_the_quickest() -> None:
    spent = {"test_a": (0.1, 2.0), "test_b": (3.0, 3.5), "test_c": (0.2, 0.25)}
    assert cost(spent) == Cost((0.2, 0.25), (3.1, 5.5), ("test_a", "test_b"))
    assert cost({"test_a": (3.0, 3.0)}) == Cost((3.0, 3.0), (0.0, 0.0), ())


def test_a_file_far_beyond_its_record_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"tests/test_x.py": Cost((4.0, 9.0), (20.0, 30.0), ("test_slow",))}
    monkeypatch.setattr(durations, "recorded", lambda: known)
    measured = Durations()
    for processor, named in ((12.9, False), (13.1, True)):  # not the slow one: 2 * 4 + 5
        measured._spent["tests/test_x.py"] = {"test_quick": (processor, 1.0)}
        assert bool(measured._beyond()) == named
    measured._spent["tests/test_x.py"]["test_slow"] = (30.0, 1.0)
    assert measured._beyond() == []
