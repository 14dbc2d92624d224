"""Preemptible jobs: a launcher that holds no card gets one of theirs; they are run again later."""

from __future__ import annotations

import pytest

from gpulaunch.core import preemption
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import Acquire, Asked, Cancel, Pause, Stop, Submitted, WantCards, Wanted
from gpulaunch.core.facts import AttemptEnded, AttemptWarned
from gpulaunch.core.model import AttemptId, Exited, Instant, Interrupted, RetryPolicy, SentWarning
from tests.core.table import Table, in_words, job
from tests.core.test_gang import Timed
from tests.core.world import Side

SEEDS = range(6)


def interruptions(side: Side) -> list[str]:
    ends = [fact for fact in side.facts if isinstance(fact, AttemptEnded)]
    return [
        str(fact.attempt) for fact in ends if fact.end.outcome == Interrupted(Because("gives_way"))
    ]


def begin(world: Timed, count: int) -> None:
    """Let so many jobs begin, without any time to speak of."""
    while sum(p.started for p in world.processes.values()) < count:
        assert world.step()
    while world.pending or any(side.inbox for side in world.sides):
        assert world.step()


# ── Beside other runs ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_one_who_has_no_card_is_given_one_at_once_and_the_job_goes_on_later(seed: int) -> None:
    world = Timed(2, seed, one=10.0, long=5000.0)
    run = world.add([job("long0", preemptible=True), job("long1", preemptible=True)])
    begin(world, 2)
    rival = world.add([job("one")], name="R")
    assert world.until_launched(rival, "one", within=5.0) < 5.0
    assert len(interruptions(run)) == 1, "one card was wanted"
    world.run_to_end()
    assert in_words(run.run.outcome()) == ("succeeded", "")
    assert len(interruptions(run)) == 1, "nobody wanted one any more"
    assert not any(attempt.charged for j in run.run.ledger.jobs.values() for attempt in j.attempts)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_is_not_preemptible_keeps_its_card(seed: int) -> None:
    world = Timed(2, seed, one=10.0, mine=500.0, long=500.0)
    run = world.add([job("mine"), job("long", preemptible=True)])
    begin(world, 2)
    rivals = [world.add([job("one")], name=name) for name in "RS"]
    for rival in rivals:
        world.until_launched(rival, "one", within=60.0)
    assert {name.split(".")[0] for name in interruptions(run)} == {"long"}
    world.run_to_end()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_of_two_who_wait_is_given_a_card(seed: int) -> None:
    world = Timed(3, seed, one=1000.0, long=5000.0)
    run = world.add([job(f"long{n}", preemptible=True) for n in range(3)])
    begin(world, 3)
    rivals = [world.add([job("one")], name=name) for name in "RS"]
    for rival in rivals:
        world.until_launched(rival, "one", within=15.0)
    world.let_pass(100.0)
    assert len(interruptions(run)) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_two_runs_of_preemptible_jobs_take_nothing_from_each_other(seed: int) -> None:
    world = Timed(1, seed, long=300.0)
    runs = [world.add([job("long", preemptible=True)], name=name) for name in "AB"]
    world.run_to_end()
    assert [interruptions(run) for run in runs] == [[], []]
    assert world.now - world.begun < 700.0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_with_other_jobs_beside_preemptible_ones_is_given_a_card_for_those(seed: int) -> None:
    world = Timed(1, seed, long=5000.0, one=5.0)
    run = world.add([job("long", preemptible=True)])
    begin(world, 1)
    rival = world.add([job("long", preemptible=True, priority=5), job("one")], name="R")
    world.until_launched(rival, "one", within=10_000.0)
    world.run_to_end()
    assert 1 <= len(interruptions(run)) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_job_of_another_run_comes_to_its_cards(seed: int) -> None:
    world = Timed(2, seed, long=5000.0, pair=10.0)
    run = world.add([job("long0", preemptible=True), job("long1", preemptible=True)])
    begin(world, 2)
    rival = world.add([job("pair", gpus=2)], name="R")
    world.until_launched(rival, "pair", within=400.0)
    world.run_to_end()
    assert in_words(run.run.outcome()) == ("succeeded", "")


@pytest.mark.parametrize("broken", ["at every card", "again at once", "for preemptible jobs too"])
def test_broken_versions_are_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "at every card":
        monkeypatch.setattr(preemption, "_is_ending", lambda state, card: False)
        monkeypatch.setattr(preemption, "HANDED_OVER", -1.0)
    elif broken == "again at once":
        monkeypatch.setattr(preemption, "HANDED_OVER", -1.0)
    else:
        monkeypatch.setattr(preemption, "ask_for_cards", lambda state: None)
    with pytest.raises(AssertionError):
        _play_all()


def _play_all() -> None:
    for seed in range(20):
        test_one_who_has_no_card_is_given_one_at_once_and_the_job_goes_on_later(seed)
        test_each_of_two_who_wait_is_given_a_card(seed)
        test_two_runs_of_preemptible_jobs_take_nothing_from_each_other(seed)


# ── One run, event by event ─────────────────────────────────────────────────────────────────────


def running(*names: str, **fields: object) -> Table:
    """A run with a preemptible job on each card, begun a second apart."""
    table = Table(len(names))
    table.submit(*(job(name, preemptible=True, **fields) for name in names))
    for card in range(len(names)):
        table.now += 1
        table.granted(card)
    return table


def press(table: Table, *cards: int) -> list[str]:
    return table.on(*(Wanted(f"GPU-{card}", True) for card in cards))


def test_the_youngest_of_the_least_priority_is_stopped_and_only_one() -> None:
    table = running("a", "b", "c")
    assert press(table, 0, 1, 2) == ["stop c.1 interrupted gently"]
    assert press(table, 0, 1, 2) == []
    table = Table(2)
    table.submit(job("high", preemptible=True, priority=1), job("low", preemptible=True))
    table.granted(0)
    table.granted(1)
    assert press(table, 0, 1) == ["stop low.1 interrupted gently"]


def test_nothing_is_stopped_where_a_card_that_is_wanted_comes_free_anyway() -> None:
    table = running("a", "b")
    table.ended("a.1")
    assert press(table, 0, 1) == [], "it drains"


def test_a_run_of_preemptible_jobs_says_that_it_wants_no_cards_before_it_asks_for_one() -> None:
    table = Table(1)
    told = table.run.handle([Submitted((job("a", preemptible=True),))], table.instant)
    told = [type(one).__name__ for one in told if isinstance(one, WantCards | Acquire)]
    assert told == ["WantCards", "Acquire"]


def test_a_run_that_has_no_use_for_a_card_wants_none() -> None:
    table = Table(2)
    table.submit(job("a"), job("b", gpus=0, needs=("a",)))
    table.elsewhere(0)
    assert table.wants_cards
    table.granted(1)
    assert not table.wants_cards, "a runs, and b needs none"


def test_a_run_of_preemptible_jobs_wants_cards_only_for_another_job() -> None:
    table = Table(1)
    table.submit(job("a", preemptible=True), job("b"))
    assert table.wants_cards
    table.on(Asked(Cancel(("b",))))
    assert not table.wants_cards


def test_a_paused_run_wants_no_cards() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.elsewhere(0)
    table.on(Asked(Pause(Quoted("asked for"))))
    assert not table.wants_cards
    table.on(Asked(Pause(None)))
    assert table.wants_cards


def test_a_wish_that_is_taken_back_after_the_stop_changes_nothing() -> None:
    table = running("a", retry=RetryPolicy(0))
    press(table, 0)
    assert table.on(Wanted("GPU-0", False)) == []
    assert table.ended("a.1", Interrupted(Because("gives_way")), back=[0]) == ["launch a.2 on 0"]


def test_who_came_to_its_end_after_the_warning_has_succeeded() -> None:
    table = running("a")
    press(table, 0)
    table.ended("a.1", Exited(0), back=[0])
    assert table.state("a") == "succeeded"


def test_after_a_card_was_given_the_next_wish_has_time_to_be_taken_back() -> None:
    table = running("a", "b")
    press(table, 0, 1)
    given = table.ended("b.1", Interrupted(Because("gives_way")), back=[1])
    assert given == ["at 1 gpu/1", "release 1"]
    table.now += 0.25
    assert table.on(Wanted("GPU-0", False)) == []
    assert table.timer("gpu/GPU-1", 0.75) == ["acquire 1"]
    assert press(table, 0) == ["stop a.1 interrupted gently"]


def test_a_cancel_and_a_stop_of_the_run_do_not_wait_for_the_warning() -> None:
    table = running("a")
    press(table, 0)
    assert table.on(Asked(Cancel(("a",)))) == ["stop a.1 cancelled"]
    table = running("a")
    press(table, 0)
    assert table.on(Asked(Stop(Because("executor")))) == ["stop a.1 interrupted"]


def test_a_warning_is_recorded_once_whoever_tells_of_it_first() -> None:
    table = running("a", "b")
    sent = SentWarning(Instant(1.0, 2.0), 12, 1, "timeout")
    told = AttemptWarned(AttemptId("a", 1), sent)
    table.on(told)
    table.on(told)
    assert [fact for fact in table.facts if isinstance(fact, AttemptWarned)] == [told]
    assert table.run.ledger.attempt(AttemptId("a", 1)).warned == sent
