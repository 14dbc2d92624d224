"""Random histories through the core: every invariant after each step, every history to its end.

GPULAUNCH_TEST_HISTORIES=20000 plays so many instead of the usual number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gpulaunch.core import (
    admission,
    attempts,
    cards,
    completion,
    graph,
    job_list,
    jobs,
    ledger,
    on_cards,
    placement,
    requests,
)
from gpulaunch.core import memory as sharing
from gpulaunch.core.causes import Because
from gpulaunch.core.events import Ended, ImageFailed, ImageReady, MemoryPeaked
from gpulaunch.core.facts import AdmissionContinued, JobVanished, PullBegun
from gpulaunch.core.model import Demand, Interrupted, Job
from gpulaunch.core.state import InEngineQueue, State
from tests.core.cluster import Cluster
from tests.core.histories import play, play_in_a_queue
from tests.core.world import Side, World

COUNT = int(os.environ.get("GPULAUNCH_TEST_HISTORIES", "1500"))
CHUNK = 100


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_every_history_keeps_every_invariant_and_ends(first: int) -> None:
    for seed in range(first, min(first + CHUNK, COUNT)):
        _play(seed, 1)


@pytest.mark.parametrize("first", range(0, max(CHUNK, COUNT // 3), CHUNK))
def test_two_rival_runs_never_share_a_card_and_both_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _play(seed, 2)


@pytest.mark.parametrize("first", range(0, max(CHUNK, COUNT // 6), CHUNK))
def test_three_rival_runs_all_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _play(seed, 3)


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_every_history_in_an_engines_queue_keeps_every_invariant_and_ends(first: int) -> None:
    for seed in range(first, min(first + CHUNK, COUNT)):
        _play_in_a_queue(seed)


@pytest.mark.parametrize(("seed", "sides"), [(7614, 1), (9094, 1), (4717, 2)])
def test_an_attempt_that_had_not_begun_ends_after_two_crashes_in_a_row(
    seed: int, sides: int
) -> None:
    play(seed, sides, images=False, shares=False)


def test_the_histories_reach_what_they_are_meant_to_reach() -> None:
    """A suite of histories in which nothing happens would pass as well."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        world = _play(seed, 1 + seed % 2)
        seen.update(_named(world.log))
        seen["crash"] += sum(side.crashes for side in world.sides)
        seen["continued"] += world.continued
        seen["followed"] += world.followed
        seen["taken back"] += world.taken_back
        seen["gave way"] += world.gave_way
        seen["told late"] += world.told_late
        seen["refused at once"] += world.refused_at_once
        seen["worker died"] += world.workers_died
        for side in world.sides:
            seen["unlike"] += side.shares.unlike
            seen["learned"] += side.shares.learned
            seen["outgrew"] += side.shares.outgrew
    expected = (
        "Acquire Release Launch Drain StopAttempt SetTimer ReserveGang Granted Refused Freed "
        "Wanted GangGranted ServiceReady TimerFired Asked JobDelayed JobRequeued JobVanished crash "
        "GpuEvent GpuReported AdmissionPaused AdmissionContinued EndWorker WorkerEnded continued "
        "HolderChanged followed Relisted PullImage "
        "PullBegun ImageReady ImageFailed ImageKnown HeldIdle AttemptIdle Unanswered"
    )
    others = "unlike", "learned", "outgrew", "taken back", "gave way", "WantCards"
    late = "told late", "refused at once", "worker died"
    for name in (*expected.split(" "), *others, *late, "AttemptWarned"):
        assert seen[name], f"no history has {name}: {seen}"


def test_the_histories_in_a_queue_reach_what_they_are_meant_to_reach() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        cluster = _play_in_a_queue(seed)
        seen.update(_named(cluster.log))
        seen["crash"] += cluster.crashes
        seen["ahead"] += cluster.ahead
        seen["shared"] += cluster.shared
    expected = (
        "Launch StopAttempt SetTimer AttemptQueued AttemptStarted TimerFired Asked "
        "JobDelayed JobRequeued JobVanished AdmissionPaused AdmissionContinued StopAsked crash "
        "Misplaced ahead shared Relisted PullImage ImageReady ImageFailed"
    )
    for name in expected.split(" "):
        assert seen[name], f"no history has {name}: {seen}"


def _named(log: Iterable[str]) -> Iterator[str]:
    """The events, facts and instructions of a history, by name."""
    for line in log:
        words = line.replace("(", " ").split()
        arrow = next((word for word in words if word in ("<-", "->")), None)
        if arrow is not None:
            yield words[words.index(arrow) + 1]


def _play_in_a_queue(seed: int) -> Cluster:
    try:
        return play_in_a_queue(seed)
    except AssertionError as error:
        raise AssertionError(f"history {seed} in a queue: {error}") from error


def _play(seed: int, sides: int) -> World:
    try:
        return play(seed, sides)
    except AssertionError as error:
        raise AssertionError(f"history {seed} with {sides} runs: {error}") from error


# ── Deliberately broken versions: each must be found ────────────────────────────────────────────


def _skip_the_drain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cards.Cards, "drain", lambda self, one: self._change(one, cards.Leased()))


def _forget_the_tokens(patch: pytest.MonkeyPatch) -> None:
    end = attempts.ActiveAttempts.end

    def broken(self: attempts.ActiveAttempts, live: attempts.ActiveAttempt) -> None:
        end(self, live)
        self.tokens.update(live.demand.uses)

    patch.setattr(attempts.ActiveAttempts, "end", broken)


def _ignore_the_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "lacks_tokens", lambda self, demand: False)


def _keep_idle_cards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(on_cards, "let_go", lambda state: False)


def _share_with_anybody(patch: pytest.MonkeyPatch) -> None:
    def broken(card: cards.Card, demand: Demand, memory: int, idle_workers: bool = True) -> bool:
        return len(card.attempts) + len(card.reservations) < max(2, demand.per_gpu)

    patch.setattr(placement, "has_room", broken)


def _promise_memory_twice(patch: pytest.MonkeyPatch) -> None:
    def broken(card: cards.Card, demand: Demand, memory: int, idle_workers: bool = True) -> bool:
        beside = [*card.attempts.values(), *card.reservations]
        alike = all(other.per_gpu == demand.per_gpu for other in beside)
        room = not beside or (alike and len(beside) < demand.per_gpu)
        return room and memory >= demand.gpu_memory

    patch.setattr(placement, "has_room", broken)


def _never_skip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph, "BAD_STATES", frozenset())


def _settle_without_a_fact(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph, "JobSettled", lambda *fact: JobVanished(fact[0]))


def _ignore_the_limit(patch: pytest.MonkeyPatch) -> None:
    make = cards.Cards.__init__

    def broken(self: cards.Cards, gpus: object, limit: int | None, effects: object) -> None:
        make(self, gpus, limit, effects)  # type: ignore[arg-type]
        real, self.limit = self.limit, len(self.all)
        held = self.held
        self.held = lambda: held() + max(0, len(self.all) - real)  # type: ignore[method-assign]

    patch.setattr(cards.Cards, "__init__", broken)


def _gather_without_the_right(patch: pytest.MonkeyPatch) -> None:
    def broken(self: cards.GangReservation) -> None:
        self.state = "granted"

    patch.setattr(cards.GangReservation, "ask", broken)


def _keep_workers_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts.IdleWorkers, "end_idle", lambda self, to_come: False)


def _forget_that_workers_hold_memory(patch: pytest.MonkeyPatch) -> None:
    stay = attempts.IdleWorkers.stay

    def broken(self: attempts.IdleWorkers, live: attempts.ActiveAttempt) -> None:
        stay(self, live)
        for each in live.cards:
            each.idle_workers.clear()

    patch.setattr(attempts.IdleWorkers, "stay", broken)


def _take_a_worker_that_is_ending(patch: pytest.MonkeyPatch) -> None:
    def broken(self: attempts.IdleWorker, demand: Demand) -> bool:
        return self.demand.worker == demand.worker

    patch.setattr(attempts.IdleWorker, "suits", broken)


def _never_take_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(on_cards, "take_back", lambda state, live: None)


def _launch_behind_what_has_not_started(patch: pytest.MonkeyPatch) -> None:
    def broken(state: State, live: attempts.ActiveAttempt, demand: Demand, node: object) -> bool:
        return bool(live.cards and not live.stopping and live.demand.same_seat(demand))

    patch.setattr(on_cards, "_leads", broken)


def _leave_the_worker_idle_beside_what_follows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(on_cards, "stayed", lambda state, live: state.idle_workers.stay(live))


def _forget_the_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cards.Cards, "look_later", lambda self, card, demand: None)


def _ignore_a_new_holder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cards.Cards, "described", lambda self, card, holder: None)


def _keep_what_the_list_has_no_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_list, "_withdraw", lambda state, node: None)


def _try_again_what_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    withdraw = job_list._withdraw

    def broken(state: State, node: jobs.Node) -> None:
        withdraw(state, node)
        node.withdrawn = False

    patch.setattr(job_list, "_withdraw", broken)


def _stay_as_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_list, "take_up", lambda state, node: None)


def _stay_linked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph, "untie", lambda nodes: None)


def _stay_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    def broken(state: State, pairs: Sequence[tuple[jobs.Node, Job]]) -> list[jobs.Node]:
        for node, job in pairs:
            node.job, node.demand_asked = job, job.demand
        return []

    patch.setattr(job_list, "_redefine", broken)


def _never_come_back(patch: pytest.MonkeyPatch) -> None:
    back = job_list._back_in_the_list
    patch.setattr(job_list, "_back_in_the_list", lambda state, nodes: back(state, nodes)[:0])


RELISTING = [
    _keep_what_the_list_has_no_more,
    _try_again_what_was_withdrawn,
    _stay_as_it_was,
    _stay_linked,
    _stay_in_the_queue,
    _never_come_back,
]


def _wait_for_no_image(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs.ImageWaits, "lacked_by", lambda self, node: None)


def _ask_for_an_image_again(patch: pytest.MonkeyPatch) -> None:
    ask = requests.ask

    def broken(state: State) -> None:
        state.jobs.images.asked.clear()
        ask(state)

    patch.setattr(requests, "ask", broken)


def _never_ask_for_an_image(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "ask", lambda state: None)


def _ask_for_images_while_nothing_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "ask", _though_closed(requests.ask))


def _though_closed(ask: Any) -> Any:
    def broken(state: State) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(State, "closed", None)
            ask(state)

    return broken


def _take_any_answer(patch: pytest.MonkeyPatch) -> None:
    """An answer counts though nobody asked."""
    ready = requests.ready

    def broken(state: State, event: ImageReady) -> None:
        state.jobs.images.asked.setdefault(event.source, False)
        ready(state, event)

    patch.setattr(requests, "ready", broken)


def _keep_a_failed_image_in_mind(patch: pytest.MonkeyPatch) -> None:
    failed = requests.failed

    def broken(state: State, event: ImageFailed) -> None:
        failed(state, event)
        state.jobs.images.asked[event.source] = False

    patch.setattr(requests, "failed", broken)


def _leave_them_waiting_for_an_image_that_failed(patch: pytest.MonkeyPatch) -> None:
    def broken(state: State, event: ImageFailed) -> None:
        state.jobs.images.asked.pop(event.source, None)

    patch.setattr(requests, "failed", broken)


def _wait_for_an_image_beside_all_else(patch: pytest.MonkeyPatch) -> None:
    """A job that leaves the wait for its image is counted there all the same."""
    patch.setattr(jobs.ImageWaits, "remove", lambda self, node, source: None)


def _forget_what_an_image_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "ImageKnown", lambda source, *known: PullBegun(source, "docker"))


def _hand_over_ahead_of_the_image(patch: pytest.MonkeyPatch) -> None:
    under_way = admission._under_way

    def broken(state: State, policy: InEngineQueue, node: jobs.Node) -> tuple[object, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jobs.ImageWaits, "lacked_by", lambda self, node: None)
            return under_way(state, policy, node)

    patch.setattr(admission, "_under_way", broken)


IMAGES = [
    _wait_for_no_image,
    _ask_for_an_image_again,
    _never_ask_for_an_image,
    _ask_for_images_while_nothing_starts,
    _keep_a_failed_image_in_mind,
    _leave_them_waiting_for_an_image_that_failed,
    _wait_for_an_image_beside_all_else,
    _forget_what_an_image_was,
]


def _start_what_is_not_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph, "too_early", lambda state, node: None)


def _trust_a_timer_to_the_end(patch: pytest.MonkeyPatch) -> None:
    """A job is taken for due when a timer fires, whatever the clock shows."""
    original = jobs.DueTimes.take
    patch.setattr(jobs.DueTimes, "take", lambda self, now: original(self, now + 60.0))
    patch.setattr(graph, "too_early", _only_before(graph.too_early))


def _only_before(original: Any) -> Any:
    def broken(state: State, node: jobs.Node) -> object:
        early = original(state, node)
        return None if isinstance(node.state, jobs.NotDue) else early

    return broken


def _read_the_time_of_day_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_list, "_due", lambda known, due: due)


def _keep_a_service_for_what_is_not_due(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "give_back", lambda state: None)


def _never_look_at_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "watch", lambda state: None)


def _open_all_pauses_at_once(patch: pytest.MonkeyPatch) -> None:
    """The end of one pause is taken for the end of all."""
    original = ledger.Ledger._apply_to_run

    def broken(self: ledger.Ledger, fact: object, at: object) -> None:
        original(self, fact, at)  # type: ignore[arg-type]
        if isinstance(fact, AdmissionContinued):
            self.pauses.clear()

    patch.setattr(ledger.Ledger, "_apply_to_run", broken)


def _promise_twice_among_those_that_share(patch: pytest.MonkeyPatch) -> None:
    def broken(card: cards.Card, demand: Demand, memory: int, idle_workers: bool = True) -> bool:
        beside = [*card.attempts.values(), *card.reservations]
        together = not beside or placement.share_card([*beside, demand])
        return together and memory >= demand.promise

    patch.setattr(placement, "has_room", broken)


def _share_before_anything_is_known(patch: pytest.MonkeyPatch) -> None:
    for module in (on_cards, on_cards):
        patch.setattr(module, "promised", lambda state, demand: demand)


def _share_with_any_number(patch: pytest.MonkeyPatch) -> None:
    together = placement.share_card

    def broken(demands: Sequence[Demand]) -> bool:
        return together([replace(each, per_gpu=each.per_gpu * 2) for each in demands])

    patch.setattr(placement, "share_card", broken)


def _share_with_and_without_mps(patch: pytest.MonkeyPatch) -> None:
    together = placement.share_card

    def broken(demands: Sequence[Demand]) -> bool:
        return together([replace(each, mps=False) for each in demands])

    patch.setattr(placement, "share_card", broken)


def _learn_too_little(patch: pytest.MonkeyPatch) -> None:
    learn = sharing._learn
    patch.setattr(sharing, "_learn", lambda state, kind, took: learn(state, kind, took // 2))


def _forget_what_was_learned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sharing, "submitted", lambda state, nodes: None)


def _overlook_what_takes_more_than_promised(patch: pytest.MonkeyPatch) -> None:
    def broken(state: State, event: MemoryPeaked) -> None:
        live = state.attempts.get(event.attempt)
        if live is not None:
            live.peak = max(live.peak, event.memory)

    patch.setattr(sharing, "peaked", broken)


def _launch_again_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(graph, "pause", lambda state, node: 0.0)


def _never_judge_what_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(completion, "judge_held", lambda state: None)


SHARING = [
    _promise_twice_among_those_that_share,
    _share_before_anything_is_known,
    _share_with_any_number,
    _share_with_and_without_mps,
    _learn_too_little,
    _forget_what_was_learned,
    _overlook_what_takes_more_than_promised,
]


@pytest.mark.parametrize(
    "breakage",
    [
        *RELISTING,
        *SHARING,
        *IMAGES,
        _never_judge_what_is_held,
        _take_any_answer,
        _skip_the_drain,
        _forget_the_tokens,
        _ignore_the_tokens,
        _keep_idle_cards,
        _share_with_anybody,
        _promise_memory_twice,
        _never_skip,
        _settle_without_a_fact,
        _ignore_the_limit,
        _gather_without_the_right,
        _forget_the_timer,
        _keep_workers_idle,
        _forget_that_workers_hold_memory,
        _take_a_worker_that_is_ending,
        _never_take_back,
        _launch_behind_what_has_not_started,
        _leave_the_worker_idle_beside_what_follows,
        _ignore_a_new_holder,
        _open_all_pauses_at_once,
        _start_what_is_not_due,
        _trust_a_timer_to_the_end,
        _read_the_time_of_day_anew,
        _keep_a_service_for_what_is_not_due,
        _never_look_at_the_clock,
        _launch_again_at_once,
    ],
)
def test_a_broken_version_is_found(breakage: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(breakage)
    breakage(monkeypatch)
    for seed in range(2000):
        try:
            play(seed, 1 + seed % 2)
        except (AssertionError, LookupError, ValueError):
            return
    pytest.fail("2,000 histories passed with a broken core")


def _tell_of_what_is_given_back_first(patch: pytest.MonkeyPatch) -> None:
    """An engine that does not wait for the end of the item whose worker is gone."""
    say = World._say

    def broken(
        self: World, side: Side, event: Ended, behind: Any = None, late: Any = False
    ) -> None:
        end = event.end.outcome if isinstance(event, Ended) else None
        given_back = end == Interrupted(Because("worker_ended"))
        say(self, side, event, None if given_back else behind, late)

    patch.setattr(World, "_say", broken)


def test_an_engine_that_tells_of_the_next_item_first_has_it_launched_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _tell_of_what_is_given_back_first(monkeypatch)
    for seed in range(450, 490):
        play(seed, 1 + seed % 2, refuses=False)
    _launch_again_at_once(monkeypatch)
    found = _first_error(range(470, 2000))
    assert "too often within a second" in found


def _first_error(seeds: Iterable[int]) -> str:
    for seed in seeds:
        try:
            play(seed, 1 + seed % 2, refuses=False)
        except AssertionError as error:
            return str(error)
    return ""


def _hand_over_too_many(patch: pytest.MonkeyPatch) -> None:
    obstacle = admission.obstacle

    def broken(state: State, policy: InEngineQueue, node: jobs.Node) -> str | None:
        found = obstacle(state, policy, node)
        return None if found == "turn" else found

    patch.setattr(admission, "obstacle", broken)


def _forget_the_limit_of_cards(patch: pytest.MonkeyPatch) -> None:
    obstacle = admission.obstacle

    def broken(state: State, policy: InEngineQueue, node: jobs.Node) -> str | None:
        found = obstacle(state, policy, node)
        return None if found == "cards" else found

    patch.setattr(admission, "obstacle", broken)


def _hand_over_one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        admission, "obstacle", lambda state, policy, node: "turn" if state.attempts else None
    )


def _go_ahead_of_what_waits_itself(patch: pytest.MonkeyPatch) -> None:
    def broken(state: State, policy: InEngineQueue, node: jobs.Node) -> tuple[object, ...]:
        lives = [need.attempt for need in node.links.needs if need.attempt]
        return tuple(lives) if isinstance(node.state, jobs.Blocked) else ()

    patch.setattr(admission, "_under_way", broken)


def _forget_what_is_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    def broken(self: ledger.Ledger) -> list[ledger.AttemptRecord]:
        running = (job for job in self.jobs.values() if job.state == "running")
        return [a for job in running for a in job.attempts if a.is_open]

    patch.setattr(ledger.Ledger, "open_attempts", broken)


def _leave_to_keepers_what_goes_on(patch: pytest.MonkeyPatch) -> None:
    adopt = attempts.ActiveAttempts.inherit

    def broken(self: attempts.ActiveAttempts, attempt: object, node: object) -> None:
        self._queueing = False
        adopt(self, attempt, node)  # type: ignore[arg-type]
        self._queueing = True

    patch.setattr(attempts.ActiveAttempts, "inherit", broken)


def _share_what_others_use(patch: pytest.MonkeyPatch) -> None:
    def broken(state: State, policy: InEngineQueue, demand: Demand) -> object:
        uses = demand.uses
        if not uses:
            return None
        each = uses.count(uses[0])
        return attempts.Share(uses[0], each, max(1, state.config.tokens(uses[0]) // each))

    patch.setattr(admission, "_share_of", broken)


def _let_a_start_change_nothing(patch: pytest.MonkeyPatch) -> None:
    def broken(self: ledger.Ledger, fact: object, at: object) -> None:
        self.attempt(fact.attempt).started = at  # type: ignore[attr-defined, assignment]

    patch.setattr(ledger.Ledger, "_start", broken)


@pytest.mark.parametrize(
    "breakage",
    [
        *RELISTING,
        *IMAGES,
        _hand_over_ahead_of_the_image,
        _forget_the_tokens,
        _ignore_the_tokens,
        _never_skip,
        _settle_without_a_fact,
        _hand_over_too_many,
        _forget_the_limit_of_cards,
        _hand_over_one_by_one,
        _go_ahead_of_what_waits_itself,
        _forget_what_is_in_the_queue,
        _leave_to_keepers_what_goes_on,
        _share_what_others_use,
        _let_a_start_change_nothing,
    ],
)
def test_a_version_that_breaks_the_queue_is_found(
    breakage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(breakage)
    breakage(monkeypatch)
    for seed in range(400):
        try:
            play_in_a_queue(seed)
        except (AssertionError, LookupError, ValueError):
            return
    pytest.fail("400 histories passed with a broken core")
