"""The run's cards and their states. Only this module emits Acquire, Release and Drain.

    free ──acquire──▶ asking ──granted──▶ leased ──drain──▶ draining ──drained──▶ leased
      ▲                 │ refused            │ release         │ refused
      └─ freed, time ── elsewhere|occupied  free             aside

It never decides who gets a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import (
    Acquire,
    CardRecheck,
    Drain,
    Elsewhere,
    Occupied,
    Refusal,
    Release,
    SetTimer,
    Sick,
)
from gpulaunch.core.facts import GpuChanged
from gpulaunch.core.model import AttemptId, Demand, Gpu, GpuState
from gpulaunch.core.reasons import CardReason

FIRST_LOOK = 2.0
LAST_LOOK = 15.0
"""Seconds until an unusable card is looked at again: at first, and at most after doublings."""
HANDED_OVER = 0.5
"""Seconds that the launcher to which a card was handed has it to itself before it is asked for."""

CardState: TypeAlias = Literal[
    "free", "asking", "leased", "draining", "elsewhere", "occupied", "aside"
]
_HELD = ("asking", "leased", "draining")


@dataclass(slots=True)
class Card:
    """One card as this run knows it. Times are monotonic seconds, memory is in bytes.

    `requested`: another launcher waits for it. `drained`: a person gave it back to the others.
    `used`: an attempt ran on it since it was acquired. `lost_at`: since when another launcher has
    it; `last_tenure`: how long the last other one had it. `reservations` and `reserved` hold for
    one placement pass: demands that wait for this card, and whether nothing new may start on it.
    `failing`: why it is to be set aside once nothing is on it. `idle_workers`: workers on it
    without an attempt. `withdrawn`: its lease is gone, and attempts that are recorded on it have
    ended: once those ends are known, a Drain finds out if it can be had.
    """

    gpu: Gpu
    state: CardState = "free"
    why: CardReason | None = None
    memory_free: int | None = None
    memory_until: float = 0.0
    not_before: float = 0.0
    backoff: float = FIRST_LOOK
    timer: float | None = None
    requested: bool = False
    drained: bool = False
    withdrawn: bool = False
    used: bool = False
    lost_at: float | None = None
    last_tenure: float = 0.0
    attempts: dict[AttemptId, Demand] = field(default_factory=dict)
    idle_workers: dict[AttemptId, Demand] = field(default_factory=dict)
    reservations: list[Demand] = field(default_factory=list)
    reserved: bool = False
    failing: CardReason | None = None

    @property
    def quarantined(self) -> CardReason | None:
        """Why the run does not use the card any more; None for a card that serves."""
        return self.failing or (self.why if self.state == "aside" else None)

    @property
    def serves(self) -> bool:
        return not self.failing and self.state != "aside"

    @property
    def held(self) -> bool:
        """True while the run has the card's lease or has asked for it."""
        return self.state in _HELD

    @property
    def idle(self) -> bool:
        return self.state == "leased" and not self.attempts and not self.idle_workers

    @property
    def away(self) -> bool:
        """True while others have the card, or it was set aside or drained by a person.

        An occupied card stays away until it is granted.
        """
        if self.state == "asking":
            return bool(self.why) or self.drained
        return self.state in ("elsewhere", "occupied", "aside") or self.drained or not self.serves

    def memory_expected(self, now: float) -> int:
        """Bytes that the card may have free: as last seen while that is fresh, else all of them."""
        ours = self.state in ("leased", "draining")
        if self.memory_free is not None and (ours or now < self.memory_until):
            return self.memory_free
        return self.gpu.memory


class Cards:
    """All cards of the run, by UUID, at most `limit` of them held at once."""

    def __init__(self, gpus: Sequence[Gpu], limit: int | None, effects: Effects) -> None:
        self._effects = effects
        self._by_uuid = {gpu.uuid: Card(gpu) for gpu in gpus}
        self.all = tuple(self._by_uuid.values())
        self.limit = len(self.all) if limit is None else min(limit, len(self.all))

    def __iter__(self) -> Iterator[Card]:
        return iter(self.all)

    def get(self, uuid: str) -> Card | None:
        return self._by_uuid.get(uuid)

    def __getitem__(self, uuid: str) -> Card:
        return self._by_uuid[uuid]

    def held(self) -> int:
        return sum(card.held for card in self.all)

    # ── What the run does with a card ───────────────────────────────────────────────────────────

    def acquire(self, card: Card) -> None:
        card.state, card.used, card.requested, card.withdrawn = "asking", False, False, False
        self._effects.emit(Acquire(card.gpu.uuid))

    def release(self, card: Card) -> None:
        """Give the card's lease back. A card that was leased but not used is asked for later."""
        card.withdrawn = False
        now = self._effects.now.mono
        card.memory_until = now + (FIRST_LOOK if card.used else card.backoff)
        if not card.used:
            card.backoff = min(card.backoff * 2, LAST_LOOK)
        if card.failing:
            self._change(card, "aside", card.failing)
        elif card.requested:
            self._hand_over(card)
        else:
            self._change(card, "free")
        self._effects.emit(Release(card.gpu.uuid))

    def drain(self, card: Card) -> None:
        self._change(card, "draining")
        self._effects.emit(Drain(card.gpu.uuid))

    def doom(self, card: Card, why: CardReason) -> None:
        """Set the card aside for the run: now, or as soon as nothing is on it."""
        if not card.serves:
            return
        card.failing = why
        if card.state != "asking" and not card.attempts and not card.idle_workers:
            self.retire(card)

    def retire(self, card: Card) -> None:
        """Set a failing card aside, now that nothing is on it."""
        held = card.state == "leased"
        if card.state != "draining":  # the Drain is answered first, then the lease is given back
            self._change(card, "aside", card.failing)
        if held:
            self._effects.emit(Release(card.gpu.uuid))

    def occupy(self, card: Card, attempt: AttemptId, demand: Demand) -> None:
        card.attempts[attempt] = demand
        card.used, card.backoff, card.last_tenure = True, FIRST_LOOK, 0.0

    def look_later(self, card: Card, demand: Demand) -> None:
        """Set a timer to look again at a card that strangers' processes keep from a job."""
        if card.state not in ("free", "occupied") or card.drained:
            return
        now = self._effects.now.mono
        at = card.not_before
        if demand.gpu_memory > card.memory_expected(now):
            at = max(at, card.memory_until)
        if at > now and card.timer != at:
            card.timer = at
            self._effects.emit(SetTimer(CardRecheck(card.gpu.uuid), at))

    # ── What happened to a card ─────────────────────────────────────────────────────────────────

    def granted(self, card: Card, memory_free: int) -> None:
        card.memory_free = memory_free
        card.withdrawn = False
        self._end_turn(card)
        self._change(card, "leased")
        if card.failing:
            self.retire(card)

    def refused(self, card: Card, why: Refusal) -> None:
        card.requested = card.withdrawn = False
        if card.failing:
            self._change(card, "aside", card.failing)
            return
        match why:
            case Elsewhere(holder):
                if card.lost_at is None:
                    card.lost_at = self._effects.now.mono
                self._change(card, "elsewhere", Quoted(holder))
            case Occupied(by):
                card.not_before = self._effects.now.mono + card.backoff
                card.backoff = min(card.backoff * 2, LAST_LOOK)
                self._change(card, "occupied", Quoted(by))
            case Sick(text):
                self._change(card, "aside", Quoted(text))

    def withdrawn(self, card: Card, why: Refusal) -> None:
        """Record that the card's lease is gone. Attempts on it have ended, or never began."""
        if card.idle:
            self.refused(card, why)
        elif card.state == "leased":
            card.withdrawn = True

    def described(self, card: Card, holder: str) -> None:
        """Record who has the card elsewhere. One whom this run handed it to stays unnamed."""
        if card.why not in (Quoted(holder), _HANDED):
            self._change(card, "elsewhere", Quoted(holder))

    def freed(self, card: Card) -> None:
        card.not_before = card.memory_until = 0.0
        self._end_turn(card)
        self._change(card, "free")

    def recheck(self, card: Card) -> None:
        """Forget what was last seen of the card, so that it is asked for again."""
        card.timer = None
        now = self._effects.now.mono
        card.not_before = min(card.not_before, now)
        card.memory_until = min(card.memory_until, now)
        if card.state == "elsewhere" and card.why == _HANDED:
            self._change(card, "free")

    def _end_turn(self, card: Card) -> None:
        if card.lost_at is not None:
            card.last_tenure, card.lost_at = self._effects.now.mono - card.lost_at, None

    def _hand_over(self, card: Card) -> None:
        # The lease passes to the launcher that waits. Only asking for the card again gives notice
        # when that one lets go: soon, but not before it had its chance.
        card.requested, card.lost_at = False, self._effects.now.mono
        self._change(card, "elsewhere", _HANDED)
        card.timer = self._effects.now.mono + HANDED_OVER
        self._effects.emit(SetTimer(CardRecheck(card.gpu.uuid), card.timer))

    def _change(self, card: Card, state: GpuState, why: CardReason | None = None) -> None:
        card.state, card.why = state, why
        self._effects.fact(GpuChanged(card.gpu.uuid, state, why))


_HANDED = Because("handed_over")
