"""The driver's answers as values: the machine's cards, faults of some, a reading of one. Pure.

Decides by a reading whether a card is free, and whether its memory is drained. Utilisation does not
count: it is sampled, 0 between kernels, and absent under MIG.

Sizes in bytes. None means that the driver did not answer; nothing unknown becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from gpulaunch.base.free_below import FreeBelow
from gpulaunch.base.text import size
from gpulaunch.core.events import Occupied, Sick
from gpulaunch.core.model import Gpu

if TYPE_CHECKING:
    from gpulaunch.base.documents import DoctorLevel


MIB, GIB = 2**20, 2**30
GB = 10**9
USUAL = FreeBelow(512 * MIB, 1.0)
"""Below this a card counts as free, unless `free_below` says otherwise."""
WINDOWS = 2 * GIB
"""What Windows' own desktop may have of a card, at most a quarter of it, for the same."""
SLACK = 64 * MIB

# As nvidia-smi types them: computing, graphics (a desktop), both, computing through MPS.
ProcessKind: TypeAlias = Literal["C", "G", "C+G", "M"]


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


class DoctorFinding(Struct, frozen=True):
    """What `gpulaunch doctor` has found, or an engine for it.

    `error`: no job can run; `warning`: some may not, or badly; `note`: no harm.
    """

    level: DoctorLevel
    what: str
    advice: str = ""


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
    `used` leaves out what the driver reserves for itself where it tells the two apart. `windows`:
    the card draws Windows' desktop (WSL), of which the driver names no process and no memory.
    `unified`: its memory is the host's; `used` is then what the processes on the card take, and who
    uses the rest of the host's memory says nothing about the card.
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
    windows: bool = False
    unified: bool = False

    @property
    def tells_processes(self) -> bool:
        """False where the driver does not list who computes on the card (WSL, some containers)."""
        return "processes_C" not in self.unanswered

    @property
    def unnamed(self) -> int | None:
        """Bytes in use that no process is named for; None where the driver does not say."""
        if self.used is None:
            return None
        return self.used - sum(entry.memory or 0 for entry in self.processes)


LookCallback: TypeAlias = Callable[[CardReading], object]
"""Called with a card's reading, at once or from a loop."""


def memory_free(gpu: Gpu, look: CardReading) -> int:
    """Return the card's free bytes; where the driver says nothing, those not known to be used."""
    return look.free if look.free is not None else gpu.memory - (look.used or 0)


def is_free(
    look: CardReading, share_busy: bool = False, free_below: FreeBelow | None = None
) -> Occupied | Sick | None:
    """Return why no job may start on the card; None if one may.

    `share_busy` accepts strangers' processes and memory, never a sick card. `free_below`: memory
    that nobody is named for, and desktop programs that compute as well, count only from there on
    (None: from where they usually do).
    """
    if look.sick:
        return Sick(look.sick)
    if look.unasked:
        return Occupied(look.unasked)
    if share_busy:
        return None
    line = line_of(look, free_below)
    if strangers := [entry for entry in computing(look) if not _is_desktop(entry, look, line)]:
        return _occupied_by(strangers, look)
    if line is None or look.unnamed is None or look.unnamed < line:
        return None
    return Occupied(_by_nobody(look.unnamed, look), _would_do(look.unnamed, look))


def line_of(look: CardReading, free_below: FreeBelow | None) -> int | None:
    """Return the bytes below which others' memory counts as none; None where nobody can tell."""
    if look.total is None:
        return None
    return usual_line(look) if free_below is None else free_below.of(look.total)


def usual_line(look: CardReading) -> int:
    """Return the bytes below which others' memory counts as none where nobody set them."""
    total = look.total or 0
    usual = USUAL.of(total)
    return max(usual, min(WINDOWS, total // 4)) if look.windows else usual


def _is_desktop(entry: Process, look: CardReading, line: int | None) -> bool:
    """Tell whether a computing process is a desktop program with little memory.

    Where the driver does not tell its memory, that is among what nobody is named for.
    """
    memory = look.unnamed if entry.memory is None else entry.memory
    return entry.kind == "C+G" and line is not None and memory is not None and memory < line


def _occupied_by(strangers: Sequence[Process], look: CardReading) -> Occupied:
    said = [str(entry) for entry in strangers]
    if any(entry.kind != "C+G" for entry in strangers) or look.unnamed is None:
        return Occupied("; ".join(said), 0)
    if any(entry.memory is None for entry in strangers):
        said.append(f"{size(look.unnamed)} are in use there, and the driver does not say by which")
    most = max([look.unnamed, *(entry.memory or 0 for entry in strangers)])
    return Occupied("; ".join(said), _would_do(most, look))


def _by_nobody(memory: int, look: CardReading) -> str:
    if look.windows:
        return f"{size(memory)} are in use there by Windows or others: the driver names nobody"
    if not look.tells_processes:
        why = look.unanswered["processes_C"]
        return f"{size(memory)} are in use there, and the driver does not say by whom ({why})"
    return f"{size(memory)} are in use there by nobody that the driver names"


def _would_do(memory: int, look: CardReading) -> int:
    """Return a `free_below` that lets so much memory pass; 0 where it is much of the card.

    It has whole GB and some room, so that it is the same as the memory moves a little.
    """
    enough = (memory + memory // 10) // GB * GB + GB
    return enough if enough * 2 <= (look.total or 0) else 0


def drained(before: CardReading, look: CardReading, free_below: FreeBelow | None = None) -> bool:
    """Tell whether the card's memory is back to what it was before the attempt.

    The attempt's processes are gone by then: a process that was there before, or is seen alive on
    the card, is a stranger's, and its memory is not the attempt's. Where a desktop is on the card
    whose memory the driver does not tell, a card that counts as free is drained as well.
    """
    if look.unasked:
        return False
    known = {entry.pid for entry in before.processes}
    if look.used is None or before.used is None:
        return all(entry.pid in known or entry.command for entry in computing(look))
    arrived = [entry for entry in look.processes if entry.pid not in known and entry.command]
    if any(entry.memory is None for entry in arrived):
        return True  # the newcomer's memory is unknown; `is_free` will name the process
    others = [*arrived, *(entry for entry in look.processes if entry.pid in known)]
    rest = look.used - sum(entry.memory or 0 for entry in others)
    was = before.used - sum(entry.memory or 0 for entry in before.processes)
    if rest <= was + SLACK:
        return True
    line = line_of(look, free_below)
    return hides_a_desktop(look) and line is not None and rest < line


def not_drained(look: CardReading, seconds: float) -> Occupied | Sick:
    """Return what is wrong with a card whose memory was not back after so many seconds.

    It is unfit, unless somebody may be there whose memory the driver does not tell, a desktop or
    anybody where it lists no processes: that may have grown, and the card is to be looked at again.
    """
    if look.unnamed is not None and (hides_a_desktop(look) or not look.tells_processes):
        return Occupied(_by_nobody(look.unnamed, look), _would_do(look.unnamed, look))
    return Sick(f"its memory was not given back within {seconds:.0f} s of its last job")


def hides_a_desktop(look: CardReading) -> bool:
    """Tell whether a desktop is on the card whose memory the driver does not tell."""
    return look.windows or any("G" in each.kind and each.memory is None for each in look.processes)


def computing(look: CardReading) -> tuple[Process, ...]:
    """Return the processes that occupy the card; one with graphics alone (a desktop) does not."""
    return tuple(entry for entry in look.processes if entry.kind != "G")
