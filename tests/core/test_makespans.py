"""What sharing cards by memory gains, on drawn lists of mixed jobs. Simulated: see `makespans`.

GPULAUNCH_TEST_WORKLOADS=1000 draws so many instead of the usual number.
"""

from __future__ import annotations

import os
from statistics import fmean

import pytest

from gpulaunch.core import on_cards
from gpulaunch.core.cards import Card, Draining
from gpulaunch.core.model import Demand
from gpulaunch.core.state import State
from tests.core.makespans import Machine, drawn

COUNT = int(os.environ.get("GPULAUNCH_TEST_WORKLOADS", "120"))


@pytest.fixture(scope="module")
def ratios() -> dict[str, list[float]]:
    """Each list's makespans, in parts of what no schedule undercuts, and what sharing gained."""
    found: dict[str, list[float]] = {"alone": [], "sharing": [], "learning": [], "failures": []}
    for seed in range(COUNT):
        load = drawn(seed)
        learning, bound = Machine(load.learning()), load.bound()
        found["alone"].append(Machine(load.alone()).seconds / bound)
        found["sharing"].append(Machine(load).seconds / bound)
        found["learning"].append(learning.seconds / bound)
        found["failures"].append(learning.failures / len(load.jobs))
    return found


def test_no_schedule_undercuts_its_bound(ratios: dict[str, list[float]]) -> None:
    assert min(min(ratios[way]) for way in ("alone", "sharing", "learning")) > 0.999


def test_sharing_by_numbers_nears_the_bound(ratios: dict[str, list[float]]) -> None:
    assert fmean(ratios["sharing"]) < 1.4 < 2.2 < fmean(ratios["alone"])


def test_sharing_by_learned_memory_nears_the_bound(ratios: dict[str, list[float]]) -> None:
    assert fmean(ratios["learning"]) < 1.65


@pytest.mark.parametrize("way", ["sharing", "learning"])
def test_no_list_takes_much_longer_than_one_job_a_card(
    way: str, ratios: dict[str, list[float]]
) -> None:
    pairs = zip(ratios["alone"], ratios[way], strict=True)
    assert max(shared / alone for alone, shared in pairs) < 1.35


def test_hardly_a_job_runs_out_of_memory_while_it_is_learned(
    ratios: dict[str, list[float]],
) -> None:
    assert fmean(ratios["failures"]) < 0.01


# ── No card is idle while jobs that could use it share another ──────────────────────────────────


def _wasted(seed: int) -> list[str]:
    """What the runs of one drawn list wasted, with sizes that are known, learned, and both."""
    load = drawn(seed)
    lists = [load, load.learning(), load.mixed(seed)]
    return [each for one in lists for each in Machine(one, drains=0.5).wasted[:1]]


def test_no_card_stays_idle_while_a_job_that_could_use_it_shares_another() -> None:
    wasted = {seed: found for seed in range(COUNT) if (found := _wasted(seed))}
    assert not wasted, f"by seed: {wasted}"


def test_a_run_that_does_not_await_draining_cards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = on_cards.attainable

    def broken(state: State, demand: Demand) -> list[Card]:
        return [card for card in whole(state, demand) if not isinstance(card.state, Draining)]

    monkeypatch.setattr(on_cards, "attainable", broken)
    assert sum(bool(_wasted(seed)) for seed in range(20)) > 1
