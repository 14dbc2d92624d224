"""Wide jobs beside other runs on the same cards: nobody waits for ever, no card idles for long."""

from __future__ import annotations

import random

import pytest

from gpulaunch.core import reservation, why
from gpulaunch.core.causes import Because
from gpulaunch.core.events import GangGranted, Wanted
from gpulaunch.core.facts import AttemptEnded
from gpulaunch.core.model import AttemptId, Interrupted, Job
from tests.core.table import Table, in_words, job, service
from tests.core.world import Side, World, pretend_gpus

SEEDS = range(6)


class Timed(World):
    """Two runs in which jobs last; looks after each step at who has what."""

    def __init__(self, cards: int, seed: int, **lasts: float) -> None:
        super().__init__(pretend_gpus(cards), random.Random(seed), calm=True, lasting=self._last)
        self.lasts = lasts
        self.begun = self.now

    def _last(self, attempt: AttemptId) -> float:
        kind = attempt.job.rstrip("0123456789")
        return self.lasts.get(attempt.job, self.lasts.get(kind, 0.0))

    def until_launched(self, side: Side, name: str, within: float) -> float:
        """Seconds until it was launched, from now on."""
        start = self.now
        while not self.launches[f"{side.name}:{name}"]:
            assert self.step(), f"stands still: {self.standing()}"
            waited = self.now - start
            assert waited < within, f"{name} waits for {waited:.0f} s: {self.standing()}"
        return self.now - start

    def let_pass(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.step():
            pass


def many(count: int) -> list[Job]:
    return [job(f"one{n:03}") for n in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_service_gives_way_to_a_wide_job_and_comes_back(seed: int) -> None:
    world = Timed(2, seed, one=10.0, pair=60.0)
    ones = [job(f"one{n}", needs=("server",)) for n in range(12)]
    run = world.add([service("server"), *ones])
    world.let_pass(25.0)
    wide = world.add([job("pair", gpus=2)], name="W")
    world.until_launched(wide, "pair", within=90.0)
    world.run_to_end()
    assert in_words(run.run.outcome()) == ("succeeded", "")
    assert world.launches["A:server"] == 2
    ends = [fact for fact in run.facts if isinstance(fact, AttemptEnded)]
    assert Interrupted(Because("gives_way")) in [fact.end.outcome for fact in ends]
    assert world.now - world.begun < 12 * 10.0 + 60.0 + 90.0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_service_that_has_not_served_yet_has_its_turn_before_the_wide_job(seed: int) -> None:
    world = Timed(2, seed, one=10.0, pair=60.0)
    ones = [job(f"one{n}", needs=("server",)) for n in range(4)]
    wide = world.add([job(f"pair{n}", gpus=2) for n in range(30)], name="W")
    run = world.add([service("server"), *ones])
    while not run.run.finished:
        assert world.step(), world.standing()
    served = len(wide.run.ledger.jobs) - wide.run.ledger.counts["waiting"]
    assert served < 12, "it starved beside wide jobs"
    world.run_to_end()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gatherer_collects_the_cards_of_a_run_with_a_long_list(seed: int) -> None:
    world = Timed(3, seed, one=20.0, one000=7.0, one001=15.0, wide=5.0)
    run = world.add(many(200), limit=2)
    world.let_pass(40.0)
    wide = world.add([job("wide", gpus=3)], name="W")
    world.until_launched(wide, "wide", within=60.0)
    assert run.run.ledger.counts["waiting"] > 150
    world.run_to_end()


@pytest.mark.parametrize("long", [30.0, 300.0, 1500.0, 10000.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_job_does_not_starve_beside_an_endless_list_of_long_jobs(
    seed: int, long: float
) -> None:
    world = Timed(2, seed, one=long, one000=long / 2, wide=long)
    world.add(many(200))
    world.let_pass(long * 3.1)
    wide = world.add([job("wide", gpus=2)], name="W")
    world.until_launched(wide, "wide", within=6 * long + 200)


@pytest.mark.parametrize("seed", SEEDS)
def test_cards_are_kept_idle_no_longer_than_others_used_them(seed: int) -> None:
    world = Timed(2, seed, endless=1e5, one=100.0, wide=1.0)
    world.add([job("endless")], name="E")
    run = world.add(many(100))
    world.let_pass(50.0)
    world.add([job("wide", gpus=2)], name="W")
    world.let_pass(8000.0)
    done = run.run.ledger.counts["succeeded"]
    assert done * 100.0 > 0.4 * 8000, f"{done} jobs of 100 s in 8000 s"


@pytest.mark.parametrize("seed", SEEDS)
def test_two_wide_jobs_of_two_launchers_follow_each_other(seed: int) -> None:
    world = Timed(3, seed, p=10.0, q=10.0, one=30.0)
    world.add(many(3), name="A")
    world.let_pass(10.0)
    world.add([job("p", gpus=3)], name="P")
    world.add([job("q", gpus=2)], name="Q")
    world.run_to_end()
    assert world.now - world.begun < 150.0


@pytest.mark.parametrize("seed", SEEDS)
def test_two_runs_with_services_do_not_wait_for_each_other_for_ever(seed: int) -> None:
    world = Timed(2, seed, one=10.0)
    for name in "AB":
        ones = [job(f"one{n}", needs=("server",)) for n in range(5)]
        world.add([service("server"), *ones], name=name)
    world.run_to_end()
    assert world.now - world.begun < 1200.0


@pytest.mark.parametrize("broken", ["never lets go", "never gives way"])
def test_broken_versions_are_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "never lets go":
        monkeypatch.setattr(reservation, "_comes_free", lambda state, card: True)
    else:
        monkeypatch.setattr(why, "_has_served", lambda state, live: False)
    with pytest.raises(AssertionError):
        _play_both()


def _play_both() -> None:
    for seed in range(5):
        test_a_service_gives_way_to_a_wide_job_and_comes_back(seed)
        test_cards_are_kept_idle_no_longer_than_others_used_them(seed)


# ── One run, event by event ─────────────────────────────────────────────────────────────────────


def test_a_run_gives_wanted_cards_one_after_the_other_as_they_become_idle() -> None:
    table = Table(3, limit=2)
    table.submit(*(job(f"a{n}") for n in range(9)))
    table.granted(0, 1)
    for card in (0, 1):
        assert table.on(Wanted(f"GPU-{card}", True)) == []
    assert table.ended("a0.1") == ["drain 0"]
    assert table.drained(0) == ["at 1 gpu/0", "release 0", "acquire 2"]
    assert table.elsewhere(2) == []
    table.ended("a1.1")
    assert table.drained(1) == ["at 1 gpu/1", "release 1"]
    assert table.timer("gpu/GPU-0", 1.0) == ["acquire 0"], "not before the other had its chance"


def test_a_gatherer_waits_for_its_own_jobs_as_long_as_they_last() -> None:
    table = Table(3)
    table.submit(job("long"), job("wide", gpus=3))
    table.granted(0)
    table.run._state.placing.patience = 0
    table.on(Wanted("GPU-0", False))
    table.on(GangGranted())
    table.granted(1, 2)
    for _ in range(20):
        assert table.timer("gather", 45) == ["at 45 gather"]
    table.ended("long.1")
    assert table.drained(0)[0] == "launch wide.1 on 0 1 2"


def test_a_gatherer_is_as_patient_as_others_had_its_cards() -> None:
    table = Table(2)
    table.submit(job("pair", gpus=2))
    table.elsewhere(0)
    table.elsewhere(1)
    table.now += 300
    assert table.freed(0) == ["gather True"]
    assert table.on(GangGranted()) == ["acquire 0"]
    assert table.granted(0) == ["at 300 gather"]


def test_the_right_to_gather_is_not_kept_with_no_card_in_reach() -> None:
    table = Table(2)
    table.submit(job("pair", gpus=2))
    table.granted(0)
    assert table.elsewhere(1) == ["release 0", "gather True"]
    assert table.on(GangGranted()) == ["acquire 0"]
    assert table.elsewhere(0) == ["gather False"]
    assert table.freed(1) == ["gather True"]


def test_a_card_that_gives_back_its_memory_is_kept_for_the_next_wide_job() -> None:
    table = Table(2)
    table.submit(*(job(f"pair{n}", gpus=2) for n in range(3)))
    table.granted(0, 1)
    assert table.ended("pair0.1") == ["drain 0", "drain 1"]
    assert table.drained(0) == []
    assert table.drained(1) == ["launch pair1.1 on 0 1"]
    table.ended("pair1.1")
    assert table.drained(1) == []
    assert "release 1" in table.on(Wanted("GPU-1", True)), "not before others who have none"


def test_a_free_card_is_taken_rather_than_waited_for_memory() -> None:
    table = Table(2)
    table.submit(job("a"), job("b", after=("a",)))
    table.granted(0)
    assert table.ended("a.1") == ["drain 0", "acquire 1"]
    assert table.drained(0) == ["launch b.1 on 0"]
