"""A card's states, each with its own data, and what one run knows of the card besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.core.model import AttemptId, Demand, Gpu, GpuState
from gpulaunch.core.reasons import CardReason

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
