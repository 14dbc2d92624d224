"""The driver's answers as values: the machine's cards, faults of some, a reading of one. Pure.

Decides by a reading whether a card is free, and whether its memory is drained. Utilisation does not
count: it is sampled, 0 between kernels, and absent under MIG.

Sizes in bytes. None means that the driver did not answer; nothing unknown becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, field

from gpulaunch.core.events import Occupied, Sick
from gpulaunch.core.model import Gpu
from gpulaunch.text import size

MIB = 2**20
ALLOWED = 512 * MIB
SLACK = 64 * MIB

# As nvidia-smi types them: computing, graphics (a desktop), computing through MPS.
ProcessKind: TypeAlias = Literal["C", "G", "M"]


class Fault(Struct, frozen=True):
    """Something that is wrong; `card` says where ("card 3"), empty for the whole machine.

    `index` is the card's in NVML's order.
    """

    card: str
    what: str
    advice: str = ""
    index: int | None = None

    @property
    def advised(self) -> str:
        """The fault and the advice, without the card."""
        return f"{self.what}; {self.advice}" if self.advice else self.what

    def __str__(self) -> str:
        return f"{self.card}: {self.advised}" if self.card else self.advised


class Machine(Struct, frozen=True):
    """The cards that can be used, and the faults of those that cannot.

    `unopened` names cards that NVML counts and CUDA may not: where there is one, an index may mean
    two different cards. `cuda` is the newest CUDA version the driver supports, as "12.4".
    """

    gpus: tuple[Gpu, ...] = ()
    faults: tuple[Fault, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    unopened: tuple[str, ...] = ()


class Process(Struct, frozen=True):
    """A process on a card. `pid` is the host's, and may be unknown here inside a container."""

    pid: int
    kind: ProcessKind
    memory: int | None = None
    user: str | None = None
    command: str | None = None

    def __str__(self) -> str:
        memory = f", {size(self.memory)}" if self.memory is not None else ""
        who = self.user or "somebody outside this container"
        return f"{who} (pid {self.pid}{memory}): {self.command or 'command unknown'}"


class CardReading(Struct, frozen=True):
    """One card at one moment. `sick` says why it is unfit, `notes` what else is amiss with it;
    `unanswered` has the fields that failed, with the driver's words. `unasked` says why the driver
    could not be asked at all: the card may be well, and is to be looked at again.

    `utilization` in per cent, `temperature` in degrees Celsius, `power` in watts.
    `used` leaves out what the driver reserves for itself where it tells the two apart.
    """

    uuid: str
    total: int | None = None
    free: int | None = None
    used: int | None = None
    processes: tuple[Process, ...] = ()
    compute_mode: str | None = None
    sick: str | None = None
    notes: tuple[str, ...] = ()
    persistence: bool | None = None
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None
    unanswered: Mapping[str, str] = field(default_factory=dict)
    unasked: str = ""


LookCallback: TypeAlias = Callable[[CardReading], object]
"""Called with a card's reading, at once or from a loop."""


def memory_free(gpu: Gpu, look: CardReading) -> int:
    """Return the card's free bytes; where the driver says nothing, those not known to be used."""
    return look.free if look.free is not None else gpu.memory - (look.used or 0)


def is_free(look: CardReading, share_busy: bool = False) -> Occupied | Sick | None:
    """Return why no job may start on the card; None if one may.

    `share_busy` accepts strangers' processes and memory, never a sick card.
    """
    if look.sick:
        return Sick(look.sick)
    if look.unasked:
        return Occupied(look.unasked)
    if share_busy:
        return None
    if strangers := computing(look):
        return Occupied("; ".join(str(entry) for entry in strangers))
    if look.used is None or look.total is None:
        return None
    used = look.used - sum(entry.memory or 0 for entry in look.processes)
    if used >= max(ALLOWED, look.total // 100):
        return Occupied(f"{size(used)} are in use there by nobody that the driver names")
    return None


def drained(before: CardReading, look: CardReading) -> bool:
    """Tell whether the card's memory is back to what it was before the attempt.

    The attempt's processes are gone by then: a process seen alive on the card is a stranger, and
    its memory is not the attempt's.
    """
    if look.unasked:
        return False
    if look.used is None or before.used is None:
        return not {entry.pid for entry in computing(look)} - {e.pid for e in computing(before)}
    known = {entry.pid for entry in before.processes}
    arrived = [entry for entry in look.processes if entry.pid not in known and entry.command]
    if any(entry.memory is None for entry in arrived):
        return True  # the newcomer's memory is unknown; `is_free` will name the process
    return look.used - sum(entry.memory or 0 for entry in arrived) <= before.used + SLACK


def computing(look: CardReading) -> tuple[Process, ...]:
    """Return the processes that occupy the card; one with graphics alone (a desktop) does not."""
    return tuple(entry for entry in look.processes if entry.kind != "G")
