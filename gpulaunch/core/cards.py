"""The run's cards and their states. Only this module emits Acquire, Release and Drain.

    free ──acquire──▶ asking ──granted──▶ leased ──drain──▶ draining ──drained──▶ leased
      ▲                 │ refused            │ release         │ refused
      └─ freed, time ── elsewhere|occupied  free             aside

It never decides who gets a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

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


@dataclass(frozen=True, slots=True)
class Free:
    """The card is not this run's, and may be asked for."""


@dataclass(frozen=True, slots=True)
class AskedFor:
    """An Acquire is under way. `doubtful`: others were on the card when it was last looked at."""

    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Leased:
    """The card is this run's. `used`: an attempt ran on it since it was acquired.

    `wanted`: another launcher waits for it. `lost`: its lease is gone, and attempts that are
    recorded on it have ended: once those ends are known, a Drain finds out if it can be had.
    """

    used: bool = False
    wanted: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Draining:
    """The memory of what ran on the card is on its way back; for the fields see Leased."""

    used: bool = False
    wanted: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Away:
    """Another launcher has the card's lease; `holder` says which."""

    holder: CardReason


@dataclass(frozen=True, slots=True)
class InUse:
    """Strangers' processes are on the card. It is asked for again at `until`, at the earliest."""

    by: CardReason
    until: float


@dataclass(frozen=True, slots=True)
class SetAside:
    """The run does not use the card any more."""

    why: CardReason


CardState: TypeAlias = Free | AskedFor | Leased | Draining | Away | InUse | SetAside
FREE = Free()
_HELD = frozenset({AskedFor, Leased, Draining})
NAMES: dict[type[CardState], GpuState] = {
    Free: "free",
    Leased: "leased",
    Draining: "draining",
    Away: "elsewhere",
    InUse: "occupied",
    SetAside: "aside",
}
"""The states as they are recorded. What was asked for is recorded once the answer is there."""

TRANSITIONS: Mapping[type[CardState], tuple[type[CardState], ...]] = {
    Free: (AskedFor, SetAside),
    AskedFor: (Leased, Away, InUse, SetAside),
    Leased: (Leased, Free, Draining, Away, InUse, SetAside),
    Draining: (Draining, Leased, Free, Away, InUse, SetAside),
    Away: (Away, Free, SetAside),
    InUse: (InUse, AskedFor, SetAside),
    SetAside: (),
}
"""The legal transitions of a card; `docs/design/life.md` says when each comes about."""


@dataclass(slots=True)
class Look:
    """What was last seen of a card. `free`: bytes, None where it was never looked at.

    `until`: what was seen counts until then, for a card that is not this run's. `backoff`: seconds
    until the next look; `timer`: when one is due. Times are monotonic seconds.
    """

    free: int | None = None
    until: float = 0.0
    backoff: float = FIRST_LOOK
    timer: float | None = None


@dataclass(slots=True)
class Tenure:
    """How long others have the card: since `since`, and the last other one had it for `last`."""

    since: float | None = None
    last: float = 0.0


@dataclass(slots=True)
class Card:
    """One card as this run knows it. Times are monotonic seconds, memory is in bytes.

    `drained`: a person gave it back to the others. `failing`: why it is to be set aside once
    nothing is on it. `idle_workers`: workers on it without an attempt. `reservations` and
    `reserved` hold for one placement pass: demands that wait for this card, and whether nothing
    new may start on it.
    """

    gpu: Gpu
    state: CardState = FREE
    look: Look = field(default_factory=Look)
    tenure: Tenure = field(default_factory=Tenure)
    drained: bool = False
    failing: CardReason | None = None
    attempts: dict[AttemptId, Demand] = field(default_factory=dict)
    idle_workers: dict[AttemptId, Demand] = field(default_factory=dict)
    reservations: list[Demand] = field(default_factory=list)
    reserved: bool = False

    def become(self, state: CardState) -> None:
        """Change the card's state: the only door, which tests watch."""
        self.state = state

    @property
    def quarantined(self) -> CardReason | None:
        """Why the run does not use the card any more; None for a card that serves."""
        return self.failing or (self.state.why if isinstance(self.state, SetAside) else None)

    @property
    def serves(self) -> bool:
        return not self.failing and type(self.state) is not SetAside

    @property
    def leased(self) -> bool:
        return type(self.state) is Leased

    @property
    def coming(self) -> bool:
        """True while the answer to an Acquire or a Drain is on its way."""
        return isinstance(self.state, (AskedFor, Draining))

    @property
    def held(self) -> bool:
        """True while the run has the card's lease or has asked for it."""
        return type(self.state) in _HELD

    @property
    def wanted(self) -> bool:
        """True while another launcher waits for the card, which is this run's."""
        return isinstance(self.state, (Leased, Draining)) and self.state.wanted

    @property
    def lost(self) -> bool:
        return isinstance(self.state, (Leased, Draining)) and self.state.lost

    @property
    def idle(self) -> bool:
        return self.leased and not self.attempts and not self.idle_workers

    @property
    def to_ask_for(self) -> bool:
        """True for a card that may be asked for, now or in a while."""
        return isinstance(self.state, (Free, InUse))

    @property
    def not_before(self) -> float:
        """When the card may be asked for, at the earliest."""
        return self.state.until if isinstance(self.state, InUse) else 0.0

    @property
    def away(self) -> bool:
        """True while others have the card, or it was set aside or drained by a person.

        A card that others were on stays away until it is granted.
        """
        if isinstance(self.state, AskedFor):
            return self.state.doubtful or self.drained
        others = isinstance(self.state, (Away, InUse))
        return others or self.drained or not self.serves

    def memory_expected(self, now: float) -> int:
        """Bytes that the card may have free: as last seen while that is fresh, else all of them."""
        ours = isinstance(self.state, (Leased, Draining))
        if self.look.free is not None and (ours or now < self.look.until):
            return self.look.free
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
        card.become(AskedFor(doubtful=isinstance(card.state, InUse)))
        self._effects.emit(Acquire(card.gpu.uuid))

    def release(self, card: Card) -> None:
        """Give the card's lease back. A card that was leased but not used is asked for later."""
        assert isinstance(card.state, Leased | Draining)
        look = card.look
        look.until = self._effects.now.mono + (FIRST_LOOK if card.state.used else look.backoff)
        if not card.state.used:
            look.backoff = min(look.backoff * 2, LAST_LOOK)
        if card.failing:
            self._change(card, SetAside(card.failing))
        elif card.state.wanted:
            self._hand_over(card)
        else:
            self._change(card, FREE)
        self._effects.emit(Release(card.gpu.uuid))

    def drain(self, card: Card) -> None:
        assert isinstance(card.state, Leased)
        self._change(card, Draining(card.state.used, card.state.wanted, card.state.lost))
        self._effects.emit(Drain(card.gpu.uuid))

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
        held = card.leased
        # A Drain is answered first, then the lease is given back.
        if not isinstance(card.state, Draining):
            self._change(card, SetAside(card.failing))
        if held:
            self._effects.emit(Release(card.gpu.uuid))

    def occupy(self, card: Card, attempt: AttemptId, demand: Demand) -> None:
        card.attempts[attempt] = demand
        card.look.backoff, card.tenure.last = FIRST_LOOK, 0.0
        assert isinstance(card.state, Leased)
        card.become(replace(card.state, used=True))

    def want(self, card: Card, wanted: bool) -> None:
        """Note whether another launcher waits for the card."""
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
            self._effects.emit(SetTimer(CardRecheck(card.gpu.uuid), at))

    # ── What happened to a card ─────────────────────────────────────────────────────────────────

    def granted(self, card: Card, memory_free: int) -> None:
        card.look.free = memory_free
        self._end_tenure(card)
        before = card.state if isinstance(card.state, Draining) else Draining()
        self._change(card, Leased(before.used, before.wanted))
        if card.failing:
            self.retire(card)

    def refused(self, card: Card, why: Refusal) -> None:
        if card.failing:
            self._change(card, SetAside(card.failing))
            return
        now, look = self._effects.now.mono, card.look
        match why:
            case Elsewhere(holder):
                if card.tenure.since is None:
                    card.tenure.since = now
                self._change(card, Away(Quoted(holder)))
            case Occupied(by):
                self._change(card, InUse(Quoted(by), now + look.backoff))
                look.backoff = min(look.backoff * 2, LAST_LOOK)
            case Sick(text):
                self._change(card, SetAside(Quoted(text)))

    def withdrawn(self, card: Card, why: Refusal) -> None:
        """Record that the card's lease is gone. Attempts on it have ended, or never began."""
        if card.idle:
            self.refused(card, why)
        elif isinstance(card.state, Leased):
            card.become(replace(card.state, lost=True))

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

    def _hand_over(self, card: Card) -> None:
        # The lease passes to the launcher that waits. Only asking for the card again gives notice
        # when that one lets go: soon, but not before it had its chance.
        now = self._effects.now.mono
        card.tenure.since = now
        self._change(card, _HANDED)
        card.look.timer = now + HANDED_OVER
        self._effects.emit(SetTimer(CardRecheck(card.gpu.uuid), card.look.timer))

    def _change(self, card: Card, state: CardState) -> None:
        card.become(state)
        match state:
            case Away(why) | InUse(why) | SetAside(why):
                self._effects.fact(GpuChanged(card.gpu.uuid, NAMES[type(state)], why))
            case _:
                self._effects.fact(GpuChanged(card.gpu.uuid, NAMES[type(state)], None))


_HANDED = Away(Because("handed_over"))
