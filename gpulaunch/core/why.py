"""Why a job waits. Looks at a run's state; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core.active import ActiveAttempts, cpus_of
from gpulaunch.core.admission import Admission
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.causes import Because
from gpulaunch.core.effects import Effects
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.model import AttemptId, Demand, Instant
from gpulaunch.core.reasons import (
    CardAway,
    CardBusy,
    CardFree,
    CardIs,
    CardKept,
    CardNow,
    CardsAre,
    Nearness,
    NeedsCards,
    NeedsCpus,
    NeedsEnd,
    NeedsReady,
    NeedsStart,
    NeedsToken,
    NothingStarts,
    RetryIn,
    WaitReason,
)
from gpulaunch.core.waiting import Node

_NEAREST: tuple[Nearness, ...] = ("running", "queued", "waiting")


class Why:
    """Says why jobs of one run wait. `limits` and `cpus` are the run's own."""

    def __init__(
        self,
        effects: Effects,
        cards: Cards,
        jobs: Jobs,
        attempts: ActiveAttempts,
        admission: Admission,
        limits: dict[str, int],
        cpus: int,
    ) -> None:
        self._effects = effects
        self._cards = cards
        self._jobs = jobs
        self._attempts = attempts
        self._admission = admission
        self._limits = limits
        self._cpus = cpus

    def of(self, name: str, closed: NothingStarts | None, now: Instant) -> WaitReason | None:
        """Return why the job waits; None for one that does not wait.

        `closed`: why nothing may start at all, which goes before the job's own reason. Of a job in
        the engine's queue, it tells only what the engine does not know.
        """
        node = self._jobs.nodes.get(name)
        if node is None:
            return Because("not_in_file") if name in self._effects.ledger.jobs else None
        if node.state == "running":
            return self._queued(node, closed) if self._jobs.record(node).in_queue else None
        if node.excluded and self._jobs.record(node).state == "waiting":
            return Because("left_out")
        if node.state == "settled":
            return None
        if closed:
            return closed
        match node.state:
            case "blocked":
                return self._blocked(node)
            case "delayed":
                return RetryIn((self._jobs.record(node).not_before or 0.0) - now.mono)
            case "idle":
                return Because("unasked")
            case "asking":
                return NeedsReady(tuple(each.name for each in node.services if not each.ready))
        return self._ready(node, now)

    def _queued(self, node: Node, closed: NothingStarts | None) -> WaitReason | None:
        """Return what a queued job waits for, where it was handed over ahead of its needs."""
        live = self._attempts.get(node.attempt) if node.attempt else None
        after = live.after if live is not None else ()
        open_needs = [n for n in node.needs if n.attempt in after and n.state == "running"]
        return closed if closed or not open_needs else self._end_of(open_needs)

    def _blocked(self, node: Node) -> NeedsEnd:
        open_needs = [need for need in node.needs if need.state != "settled"]
        if open_needs:
            return self._end_of(open_needs)
        return self._end_of([n for n in node.after if n.state != "settled"], after=True)

    def _end_of(self, nodes: list[Node], after: bool = False) -> NeedsEnd:
        first = min(nodes, key=lambda node: _NEAREST.index(self._nearness(node)))
        return NeedsEnd(first.name, self._nearness(first), len(nodes) - 1, after)

    def _nearness(self, node: Node) -> Nearness:
        if node.state != "running":
            return "waiting"
        return "running" if self._jobs.record(node).state == "running" else "queued"

    def _ready(self, node: Node, now: Instant) -> WaitReason:
        demand = node.job.demand
        if short := self._token(demand):
            return short
        cpus, used = cpus_of(demand), self._attempts.cpus
        if cpus and used + cpus > self._cpus:
            return NeedsCpus(cpus, used, self._cpus)
        if node.blocked_on == "room":
            return Because("room")
        if self._admission.focus not in (None, node):
            return NeedsStart(self._admission.focus.name)
        if not demand.gpus:
            return Because("turn")
        return self._needs_cards(demand, now)

    def _token(self, demand: Demand) -> NeedsToken | None:
        for token in dict.fromkeys(demand.uses):
            limit, used = self._limits.get(token, 1), self._attempts.tokens[token]
            if used + demand.uses.count(token) > limit:
                holders = [live.id.job for live in self._attempts if token in live.demand.uses]
                return NeedsToken(token, used, limit, tuple(holders))
        return None

    def _needs_cards(self, demand: Demand, now: Instant) -> NeedsCards:
        cards, limit = list(self._cards), self._cards.limit
        limited = self._cards.held() >= limit < len(cards)
        if limited:
            cards = [card for card in cards if card.held]
        busy = [card for card in cards if card.attempts and not card.quarantined]
        together = self._busy(busy, now) if len(busy) > 1 else None
        alike: dict[CardNow, list[int]] = {}
        for card in [*busy, *cards] if together else cards:
            state = together if together and card in busy else self._state(card, demand, now)
            alike.setdefault(state, []).append(card.gpu.index)
        parts = (CardsAre(tuple(dict.fromkeys(some)), state) for state, some in alike.items())
        return NeedsCards(demand.gpus, demand.gpu_memory, tuple(parts), limit if limited else 0)

    def _busy(self, cards: Sequence[Card], now: Instant) -> CardBusy:
        firsts = dict.fromkeys(next(iter(card.attempts)) for card in cards)
        seconds = [self._since(attempt, now) for attempt in firsts]
        names = dict.fromkeys(attempt.job for card in cards for attempt in card.attempts)
        return CardBusy(tuple(names), min(seconds), max(seconds))

    def _since(self, attempt: AttemptId, now: Instant) -> float:
        """Return the seconds since the attempt's start, or its launch where it has not started."""
        record = self._effects.ledger.attempt(attempt)
        return now.mono - (record.started or record.launched).mono

    def _state(self, card: Card, demand: Demand, now: Instant) -> CardNow:
        if card.quarantined:
            return CardAway("aside", card.quarantined)
        if card.attempts:
            return self._busy([card], now)
        if card.idle_workers:
            return CardKept(next(iter(card.idle_workers)).job, worker=True)
        if card.drained:
            return CardIs("given_back")
        match card.state:
            case "elsewhere" | "occupied":
                return CardAway(card.state, card.why)
            case "draining" | "asking":
                return CardIs(card.state)
            case "leased" if self._admission.reserving is not None:
                return CardKept(self._admission.reserving.name, worker=False)
        if card.gpu.uuid in demand.avoid:
            return CardIs("avoided")
        if demand.gpu_memory:
            return CardFree(card.gpu.memory if card.memory_free is None else card.memory_free)
        return CardIs("free")
