"""The run's cards and their states. Only this module emits Acquire, Release and Drain.

    free ──acquire──▶ asking ──granted──▶ leased ──drain──▶ draining ──drained──▶ leased
      ▲                 │ refused            │ release         │ refused
      └─ freed, time ── elsewhere|occupied  free             aside

It never decides who gets a card.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gpulaunch.core import events as ev
from gpulaunch.core.card import (
    FIRST_LOOK,
    FREE,
    LAST_LOOK,
    NAMES,
    AskedFor,
    Away,
    Card,
    CardState,
    Draining,
    InUse,
    Leased,
    SetAside,
    Tenure,
)
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.effects import Effects
from gpulaunch.core.facts import GpuChanged
from gpulaunch.core.model import AttemptId, Demand, Gpu
from gpulaunch.core.reasons import CardReason, OthersThere

HANDED_OVER = 1.0
"""Seconds that a launcher which was handed a card has to take its wishes elsewhere back.

Until then this run does not ask for that card again, and interrupts nothing for further wishes.
"""


class Cards:
    """All cards of the run, by UUID, at most `limit` of them held at once.

    `handed_at`: when the last one was handed to a launcher that waited for it (monotonic seconds).
    `spent`: why no more than `within` of them may be held for now. `unified`: those whose memory is
    the host's.
    """

    def __init__(self, gpus: Sequence[Gpu], limit: int | None, effects: Effects) -> None:
        self._effects = effects
        self._by_uuid = {gpu.uuid: Card(gpu) for gpu in gpus}
        self.all = tuple(self._by_uuid.values())
        self.unified = tuple(card for card in self.all if card.gpu.unified)
        self.handed_at = -math.inf
        self.limit = len(self.all) if limit is None else min(limit, len(self.all))
        self.spent: ev.AllowanceSpent | None = None
        self.within = self.limit

    def __iter__(self) -> Iterator[Card]:
        return iter(self.all)

    def get(self, uuid: str) -> Card | None:
        return self._by_uuid.get(uuid)

    def __getitem__(self, uuid: str) -> Card:
        return self._by_uuid[uuid]

    def held(self) -> int:
        return sum(card.held for card in self.all)

    def room(self) -> int:
        """Return how many more cards may be asked for."""
        return max(0, min(self.limit, self.within) - self.held())

    def allowance_freed(self) -> None:
        """Forget that the user's launchers held as many cards as they may."""
        self.spent, self.within = None, self.limit

    # ── What the run does with a card ───────────────────────────────────────────────────────────

    def acquire(self, card: Card) -> None:
        card.become(AskedFor(doubtful=isinstance(card.state, InUse)))
        self._effects.emit(ev.Acquire(card.gpu.uuid))

    def release(self, card: Card) -> None:
        """Give the card's lease back. A card that was leased but not used is asked for later."""
        assert isinstance(card.state, Leased | Draining)
        look, wanted = card.look, card.wanted
        look.until = self._effects.now.mono + (FIRST_LOOK if card.state.used else look.backoff)
        if not card.state.used:
            look.backoff = min(look.backoff * 2, LAST_LOOK)
        if card.failing:
            self._change(card, SetAside(card.failing))
        elif wanted:
            self._hand_over(card)
        else:
            self._change(card, FREE)
        self._give_back(card, wanted)

    def emptied(self, card: Card, memory_free: int) -> None:
        """Keep a card whose memory is known to be back already: it need not drain."""
        assert isinstance(card.state, Leased)
        card.look.free = memory_free

    def drain(self, card: Card) -> None:
        assert isinstance(card.state, Leased)
        before = card.state
        self._change(card, Draining(before.used, before.wanted))
        self._effects.emit(ev.Drain(card.gpu.uuid))

    def doom(self, card: Card, why: CardReason) -> None:
        """Set the card aside for the run: now, or as soon as nothing is on it."""
        if not card.serves:
            return
        card.failing = why
        if not isinstance(card.state, AskedFor) and not card.attempts and not card.idle_workers:
            self.retire(card)

    def retire(self, card: Card) -> None:
        """Set a failing card aside, now that nothing is on it."""
        assert card.failing is not None
        held, wanted = card.leased, card.wanted
        # A Drain is answered first, then the lease is given back.
        if not isinstance(card.state, Draining):
            self._change(card, SetAside(card.failing))
        if held:
            self._give_back(card, wanted)

    def occupy(self, card: Card, attempt: AttemptId, demand: Demand) -> None:
        card.attempts[attempt] = demand
        card.look.backoff, card.tenure.last = FIRST_LOOK, 0.0
        assert isinstance(card.state, Leased)
        card.become(replace(card.state, used=True))

    def want(self, card: Card, wanted: bool) -> None:
        """Record whether a launcher without a card waits for this one."""
        if isinstance(card.state, Leased | Draining):
            card.become(replace(card.state, wanted=wanted))

    def look_later(self, card: Card, demand: Demand) -> None:
        """Set a timer to look again at a card that strangers' processes keep from a job."""
        if not card.to_ask_for or card.drained:
            return
        now = self._effects.now.mono
        at = card.not_before
        if demand.gpu_memory > card.memory_expected(now):
            at = max(at, card.look.until)
        if at > now and card.look.timer != at:
            card.look.timer = at
            self._effects.emit(ev.SetTimer(ev.Timer("card", card.gpu.uuid), at))

    # ── What happened to a card ─────────────────────────────────────────────────────────────────

    def granted(self, card: Card, memory_free: int) -> None:
        card.look.free = memory_free
        self._end_tenure(card)
        before = card.state if isinstance(card.state, Draining) else Draining()
        self._change(card, Leased(before.used, before.wanted))
        if card.failing:
            self.retire(card)

    def refused(self, card: Card, why: ev.Refusal) -> None:
        if card.failing:
            self._change(card, SetAside(card.failing))
            return
        now, look = self._effects.now.mono, card.look
        match why:
            case ev.Elsewhere(holder):
                if card.tenure.since is None:
                    card.tenure.since = now
                self._change(card, Away(Quoted(holder)))
            case ev.Occupied(by, free_below):
                whose = Quoted(by) if free_below is None else OthersThere(by, free_below)
                self._change(card, InUse(whose, now + look.backoff))
                look.backoff = min(look.backoff * 2, LAST_LOOK)
            case ev.Sick(text):
                self._change(card, SetAside(Quoted(text)))
            case ev.AllowanceSpent():
                self._not_allowed(card, why)

    def _not_allowed(self, card: Card, why: ev.AllowanceSpent) -> None:
        """Leave a card that is one too many; no more than are held now are asked for."""
        if isinstance(card.state, AskedFor) and not card.state.doubtful:
            card.become(FREE)  # for the record it never was anything else
        else:
            self._change(card, FREE)
        self.spent, self.within = why, self.held()

    def described(self, card: Card, holder: str) -> None:
        """Record who has the card elsewhere. One whom this run handed it to stays unnamed."""
        if card.state not in (Away(Quoted(holder)), _HANDED):
            self._change(card, Away(Quoted(holder)))

    def freed(self, card: Card) -> None:
        card.look.until = 0.0
        self._end_tenure(card)
        self._change(card, FREE)

    def recheck(self, card: Card) -> None:
        """Forget what was last seen of the card, so that it is asked for again."""
        now = self._effects.now.mono
        card.look.timer = None
        card.look.until = min(card.look.until, now)
        if isinstance(card.state, InUse):
            card.become(replace(card.state, until=min(card.state.until, now)))
        elif card.state == _HANDED:
            self._change(card, FREE)

    def _end_tenure(self, card: Card) -> None:
        if card.tenure.since is not None:
            card.tenure = Tenure(None, self._effects.now.mono - card.tenure.since)

    def _give_back(self, card: Card, wanted: bool) -> None:
        if wanted:  # whoever waited may take it, broken or not
            self.handed_at = self._effects.now.mono
            card.look.timer = self.handed_at + HANDED_OVER
            self._effects.emit(ev.SetTimer(ev.Timer("card", card.gpu.uuid), card.look.timer))
        self._effects.emit(ev.Release(card.gpu.uuid))

    def _hand_over(self, card: Card) -> None:
        # The lease passes to the launcher that waits. Only asking for the card again gives notice
        # when that one lets go: soon, but not before it had its chance (`_give_back`).
        card.tenure.since = self._effects.now.mono
        self._change(card, _HANDED)

    def _change(self, card: Card, state: CardState) -> None:
        card.become(state)
        match state:
            case Away(why) | InUse(why) | SetAside(why):
                self._effects.fact(GpuChanged(card.gpu.uuid, NAMES[type(state)], why))
            case _:
                self._effects.fact(GpuChanged(card.gpu.uuid, NAMES[type(state)], None))


_HANDED = Away(Because("handed_over"))
