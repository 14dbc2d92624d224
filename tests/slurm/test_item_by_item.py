"""Item by item: an array behind an array, each of its tasks behind one of the other's."""

from __future__ import annotations

import pytest

from gpulaunch.core.causes import ByCluster
from gpulaunch.core.model import Cancelled, Exited, Interrupted
from tests.slurm.histories import History
from tests.slurm.scenes import ENDLESS, begun, good, outcomes, queued, submissions
from tests.slurm.world import Plan


@pytest.fixture(autouse=True)
def calm(history: History) -> None:
    """Nothing goes wrong but what a test has go wrong."""
    history.calm = True


def first_jobs(history: History, *followed: int, bad: int = -1) -> None:
    """Six endless jobs; behind those which are told, another each. `bad` is to fail."""
    for number in range(6):
        history.add(f"a{number}", Plan(ENDLESS, 3 if number == bad else 0))
    for number in followed:
        history.add(f"b{number}", Plan(1.0), f"a{number}")
    history.until(queued(history, 6 + len(followed)))


def all_end(history: History) -> None:
    history.cluster.ends(*(f"a{number}" for number in range(6)))


def test_what_needs_one_that_fails_is_interrupted_by_slurm_itself(history: History) -> None:
    history.add("a", Plan(5.0, 3))
    history.add("b", Plan(1.0), "a")
    history.finish()
    assert outcomes(history)["a"] == Exited(3)
    assert isinstance(outcomes(history)["b"], Interrupted)
    assert history.starts("b") == 0


def test_of_items_one_that_fails_keeps_its_own_successor_alone_from_running(
    history: History,
) -> None:
    first_jobs(history, *range(6), bad=2)
    all_end(history)
    history.finish()
    others = [f"{kind}{n}" for kind in "ab" for n in range(6) if n != 2]
    found = outcomes(history)
    assert found.pop("a2") == Exited(3)
    assert isinstance(found.pop("b2"), Interrupted)
    assert found == good(*others)
    assert submissions(history) == 2


def test_items_may_be_missing_and_their_launcher_may_die(history: History) -> None:
    first_jobs(history, 1, 3, 4)
    assert submissions(history) == 2
    history.restart()
    all_end(history)
    history.finish()
    assert outcomes(history) == good(*(f"a{n}" for n in range(6)), "b1", "b3", "b4")


def test_an_array_behind_an_array_that_is_not_known_to_be_handed_over_is_looked_up(
    history: History,
) -> None:
    first_jobs(history, 2, 5)
    history.run.batch_id(history.cluster.waiting_for("b2").batch).unlink()
    history.restart()
    all_end(history)
    history.finish()
    assert outcomes(history) == good(*(f"a{n}" for n in range(6)), "b2", "b5")
    assert history.cluster.submissions == 3  # the probe's, and two arrays


def test_several_may_follow_each_item(history: History) -> None:
    first_jobs(history, *range(6))
    for number in range(6):
        history.add(f"c{number}", Plan(1.0), f"a{number}")
    history.until(queued(history, 18))
    assert submissions(history) == 3
    all_end(history)
    history.finish()
    assert outcomes(history) == good(*(f"{kind}{n}" for kind in "abc" for n in range(6)))


@pytest.mark.parametrize("by", ["us", "a person in Slurm"])
def test_of_what_follows_item_by_item_one_can_be_cancelled_while_it_waits(
    history: History, by: str
) -> None:
    first_jobs(history, *range(6))
    if by == "us":
        history.cancel("b3")
    else:
        history.wanted["b3"].person = True
        history.cluster.cancels([str(history.cluster.waiting_for("b3"))])
    history.until(lambda: bool(history.told))
    how = None if by == "us" else ByCluster("cancelled")
    assert outcomes(history) == {"b3": Cancelled(by=how)}
    all_end(history)
    history.finish()
    assert history.starts("b3") == 0
    assert len([o for o in outcomes(history).values() if o == Exited(0)]) == 11


def test_what_an_item_needs_may_be_over_when_the_others_are_handed_over(history: History) -> None:
    first_jobs(history)
    history.until(begun(history, 3))
    history.pause(True)
    for number in (0, 1, 2):
        history.add(f"b{number}", Plan(1.0), f"a{number}")
    history.passes(1.0)
    history.cluster.ends("a0")
    history.until(lambda: outcomes(history) == good("a0"))
    history.pause(False)
    history.cluster.ends("a3", "a4", "a5")
    history.until(lambda: outcomes(history) == good("a0", "a3", "a4", "a5", "b0"))
    assert submissions(history) == 3
    all_end(history)
    history.finish()
