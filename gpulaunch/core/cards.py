"""The run's cards and their states, and the right to keep cards idle for a wide job.

    free ──acquire──▶ asking ──granted──▶ leased ──drain──▶ draining ──drained──▶ leased
      ▲                 │ refused            │ release         │ refused
      └─ freed, time ── elsewhere|occupied  free             aside

Only this module emits Acquire, Release, Drain and ReserveGang. It never decides who gets a card.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.core import events as ev
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import Instruction, ReserveGang, SetTimer, Timer
from gpulaunch.core.facts import Fact, GpuChanged
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Demand, Gpu, GpuState, Instant
from gpulaunch.core.reasons import CardReason, OthersThere

FIRST_LOOK = 2.0
LAST_LOOK = 15.0
"""Seconds until an unusable card is looked at again: at first, and at most after doublings."""


class Free(Struct, frozen=True):
    """The card is not this run's, and may be asked for."""


class AskedFor(Struct, frozen=True):
    """An Acquire is under way. `doubtful`: others were on the card when it was last looked at."""

    doubtful: bool = False


class Leased(Struct, frozen=True):
    """The card is this run's. `used`: an attempt ran on it since it was acquired.

    `wanted`: a launcher without a card waits for it.
    """

    used: bool = False
    wanted: bool = False


class Draining(Struct, frozen=True):
    """The memory of what ran on the card is on its way back; for the fields see Leased."""

    used: bool = False
    wanted: bool = False


class Away(Struct, frozen=True):
    """Another launcher has the card's lease; `holder` says which."""

    holder: CardReason


class InUse(Struct, frozen=True):
    """Strangers' processes are on the card. It is asked for again at `until`, at the earliest."""

    by: CardReason
    until: float


class SetAside(Struct, frozen=True):
    """The run does not use the card any more."""

    why: CardReason


CardState: TypeAlias = Free | AskedFor | Leased | Draining | Away | InUse | SetAside
FREE = Free()
_HELD = frozenset({AskedFor, Leased, Draining})
_COMING = frozenset({AskedFor, Draining})
_TO_ASK_FOR = frozenset({Free, InUse})
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
    AskedFor: (Leased, Free, Away, InUse, SetAside),
    Leased: (Leased, Free, Draining, Away, SetAside),
    Draining: (Draining, Leased, Free, Away, InUse, SetAside),
    Away: (Away, Free, SetAside),
    InUse: (InUse, AskedFor, SetAside),
    SetAside: (),
}
"""The legal transitions of a card; `docs/design/life.md` says when each comes about."""


class Look(Struct):
    """What was last seen of a card. `free`: bytes, None where it was never looked at.

    `until`: what was seen counts until then, for a card that is not this run's. `backoff`: seconds
    until the next look; `timer`: when one is due. Times are monotonic seconds.
    """

    free: int | None = None
    until: float = 0.0
    backoff: float = FIRST_LOOK
    timer: float | None = None


class Tenure(Struct):
    """How long others have the card: since `since`, and the last other one had it for `last`."""

    since: float | None = None
    last: float = 0.0


class Card(Struct):
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
        return type(self.state) in _COMING

    @property
    def held(self) -> bool:
        """True while the run has the card's lease or has asked for it."""
        return type(self.state) in _HELD

    @property
    def wanted(self) -> bool:
        """True while another launcher waits for the card, which is this run's."""
        return isinstance(self.state, (Leased, Draining)) and self.state.wanted

    @property
    def idle(self) -> bool:
        return self.leased and not self.attempts and not self.idle_workers

    @property
    def to_ask_for(self) -> bool:
        """True for a card that may be asked for, now or in a while."""
        return type(self.state) in _TO_ASK_FOR

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


# ── The effects of an event ───────────────────────────────────────────────────────────────────────

_NEVER = Instant(0.0, 0.0)


class Effects(Struct):
    """The facts and instructions that one call of `Run.handle` returns, in order.

    Facts are applied to the ledger at once. `now` is the time of the event in hand.
    INVARIANT: the ledger changes by facts that are emitted here, and by nothing else.
    """

    ledger: Ledger
    now: Instant = _NEVER
    out: list[Fact | Instruction] = field(default_factory=list)

    def fact(self, fact: Fact) -> None:
        self.ledger.apply(fact, self.now)
        self.out.append(fact)

    def emit(self, instruction: Instruction) -> None:
        self.out.append(instruction)

    def take(self) -> list[Fact | Instruction]:
        out, self.out = self.out, []
        return out

    def jitter(self, about: str) -> float:
        """Return 0 to 1, this run's own number for each `about`: runs then do not act in step."""
        own = f"{self.ledger.opening.run} {self.ledger.opening.pid} {about}"
        return zlib.crc32(own.encode()) / 2**32


# ── All cards ─────────────────────────────────────────────────────────────────────────────────────

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


# ── The right to gather cards (gang scheduling) ───────────────────────────────────────────────────

GANG_TIMEOUT = 45.0
"""Seconds that the reservation waits for the next card, at least."""
MAX_GANG_TIMEOUT = 1800.0
"""Seconds that it waits at most; after each reservation in vain, as many more."""
GANG_PAUSE = 10.0
GANG_PAUSE_JITTER = 5.0
"""Seconds until it may be asked for again, and what each run adds, up to this."""


class GangReservation:
    """Asks for the right, and says when it is overdue. Admission chooses the job and the cards.

    off ──ask──▶ asked ──granted──▶ granted ──started, nothing in reach──▶ off
                                       └─ no further card for a while ──▶ off, and a pause

    One launcher on the machine has the right at a time, and all others then hand it their cards,
    each as it next becomes idle. The cards that it keeps are lost to them meanwhile. So it waits
    for the next card as long as another launcher last had one of those, and at least GANG_TIMEOUT:
    it succeeds beside jobs of any length, and keeps cards idle no longer than others used them.
    After that it releases them for a pause, for a launcher that needs them before it can give its
    own.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.state: Literal["off", "asked", "granted"] = "off"
        self._kept = 0
        self._until = 0.0
        self._in_vain = 0
        self._not_before = 0.0

    @property
    def granted(self) -> bool:
        return self.state == "granted"

    @property
    def pausing(self) -> bool:
        return self._effects.now.mono < self._not_before

    @property
    def overdue(self) -> bool:
        """True once the reservation keeps cards and no further one has come for too long."""
        return self.granted and self._kept > 0 and self._effects.now.mono >= self._until

    def ask(self) -> None:
        if self.state == "off":
            self.state = "asked"
            self._effects.emit(ReserveGang(True))

    def grant(self) -> None:
        if self.state == "asked":
            self.state, self._kept = "granted", 0

    def give_up(self) -> None:
        if self.state != "off":
            self.state = "off"
            self._effects.emit(ReserveGang(False))

    def succeed(self) -> None:
        self._in_vain = 0
        self.give_up()

    def keep(self, cards: Sequence[Card]) -> None:
        """Set the cards that are kept idle now. If they are more than before, wait anew."""
        if len(cards) > self._kept:
            turn = max(card.tenure.last for card in cards)
            self._wait(min(max(turn, GANG_TIMEOUT), MAX_GANG_TIMEOUT * (1 + self._in_vain)))
        self._kept = len(cards)

    def wait_on(self) -> None:
        """Wait GANG_TIMEOUT longer, as another card is certain to come."""
        self._wait(GANG_TIMEOUT)

    def pause(self) -> None:
        """Give the right up for a while, which differs between runs, so that others get cards."""
        self.give_up()
        self._in_vain += 1
        extra = GANG_PAUSE_JITTER * self._effects.jitter(f"pause {self._in_vain}")
        self._not_before = self._effects.now.mono + GANG_PAUSE + extra
        self._effects.emit(SetTimer(Timer("gang"), self._not_before))

    def _wait(self, seconds: float) -> None:
        self._until = self._effects.now.mono + seconds
        self._effects.emit(SetTimer(Timer("gang"), self._until))
