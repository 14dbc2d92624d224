"""Reports cards' health events as they happen, Xids and others, and says what each means.

    EventsClient(gpus, loop, report): report(GpuEvent) ...       in a loop
    hearing(gpus) -> {uuid: what is announced, or why nothing is}   once, blocking

Owns the helper process (`listen`): starts it, and another, ever later, when it dies. Never calls
into the driver, never waits for the helper. That no events can be had is no error.

Sources of the meanings: NVIDIA's "Analyzing Xid Errors with the Xid Catalog" (the immediate actions
RESET_GPU and RESTART_BM make a card lost; RESTART_APP with CHECK_APP/CUDA blames the program), the
list of application errors in its device plugin for Kubernetes (which also has 109, where the
catalogue says reset), "GPU Memory Error Management" (contained or not), nvml.h (types, actions).
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Literal, TypeAlias, TypedDict

from msgspec import Struct

from gpulaunch.base.helper_process import Helper, command, understood
from gpulaunch.base.loop import Loop
from gpulaunch.core.events import GpuEvent
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import parse

Verdict: TypeAlias = Literal["lost", "app", "note"]


class Meaning(Struct, frozen=True):
    """A meaning. `verdict`: "lost" sets the card aside, "app" blames the program, "note" nobody.

    An Xid alone proves little: hence only three verdicts, and any number that does not certainly
    end a card is only a note.
    `stops`: a job on the card will not end, or not with a right result, by itself.
    """

    title: str
    what: str
    verdict: Verdict = "note"
    stops: bool = False

    @property
    def text(self) -> str:
        return f"{self.title}: {self.what}" if self.what else self.title


def xid(code: int) -> Meaning:
    """Return the meaning of an Xid; one that is not in the tables below is a note."""
    for verdict, table in _XIDS.items():
        if code in table:
            title, what = table[code]
            return Meaning(f"Xid {code} ({title})", what, verdict, code in _STOPPING)
    if code in _ENGINES:
        return Meaning(f"Xid {code} (copy or video engine exception)", _ENGINE)
    if code in _LINKS:
        return Meaning(f"Xid {code} (NVLink error)", _LINK)
    return Meaning(f"Xid {code}", "NVIDIA's Xid catalogue says what it means")


def recovery(action: int) -> Meaning:
    """Return the meaning of an nvmlDeviceGpuRecoveryAction_t; 0 and unknown ones are notes."""
    what, verdict, stops = _ACTIONS.get(action, (f"recovery action {action}", "note", False))
    return Meaning("the driver's recovery action changed", what, verdict, stops)


def event(kind: str) -> Meaning:
    """Return the meaning of an event that is no Xid, by its name in `EVENT_TYPES`."""
    what, verdict, stops = _EVENTS.get(kind, (kind, "note", False))
    return Meaning(what, "", verdict, stops)


# nvmlEventType*: the names here, the bits nvml.h's. What comes often and means little (clocks,
# power states, single corrected errors) is never asked for.
EVENT_TYPES = {
    "double_bit_ecc": 0x2,
    "xid": 0x8,
    "ecc_storm": 0x200,
    "retirement": 0x400,
    "retirement_failure": 0x800,
    "poison": 0x1000,
    "fatal_poison": 0x2000,
    "unavailable": 0x4000,
    "recovery": 0x8000,
}

_EVENTS: dict[str, tuple[str, Verdict, bool]] = {
    # The Xid that comes with it (48, 94, 95) tells whether the error was contained.
    "double_bit_ecc": ("an uncorrectable memory error (ECC)", "note", False),
    "ecc_storm": ("many corrected memory errors at once (ECC)", "note", False),
    "retirement": ("memory of the card is being retired", "note", False),
    "retirement_failure": ("memory of the card could not be retired", "lost", False),
    "poison": ("poisoned data was contained", "note", False),
    "fatal_poison": ("poisoned data could not be contained", "lost", True),
    "unavailable": ("the driver calls the card unavailable", "lost", True),
    "recovery": (
        "the driver's recovery action changed, and it does not say to what",
        "note",
        False,
    ),
}

_ACTIONS: dict[int, tuple[str, Verdict, bool]] = {
    0: ("nothing needs to be done", "note", False),
    1: ("the card needs a reset", "lost", True),
    2: ("the machine needs a reboot", "lost", True),
    3: ("its links to other cards are to be drained", "note", False),
    4: ("the card is to be reset once what runs there is done", "lost", False),
    5: ("the fabric's memory domain (IMEX) is to be recovered", "note", False),
    6: ("its bus needs a reset", "lost", True),
    7: ("the machine needs a reboot", "lost", True),
}

_MEMORY = "look for a write or read outside of what was allocated: compute-sanitizer"
_PUSH = "a corrupted command stream, most often a fault of the program or of its CUDA libraries"
_RESET = "the card needs a reset (`nvidia-smi --gpu-reset`) before it can be used again"
_ENGINE = "the program that used it must be started again"
_LINK = "what it means for the card stands in the driver's recovery action"

_XIDS: dict[Verdict, dict[int, tuple[str, str]]] = {
    "app": {
        11: ("invalid command stream", _PUSH),
        13: ("graphics engine exception", f"a fault inside a kernel; {_MEMORY}"),
        25: ("illegal command stream", _PUSH),
        31: ("memory page fault", f"an illegal address was used; {_MEMORY}"),
        32: ("corrupted command stream", _PUSH),
        43: ("stopped processing", "a program hit an error of its own; the card is well"),
        45: ("preemptive cleanup", "a program was ended, or failed before this"),
        68: ("video decoder exception", "the program that decodes must be restarted"),
        69: ("graphics engine class error", _PUSH),
        80: ("corrupted data sent to the card", _PUSH),
        109: ("context switch timeout", "a kernel did not give way in time"),
        137: ("NVLink privilege error", "an illegal access to another card's memory"),
    },
    "lost": {
        46: ("stopped processing", f"the card timed out; {_RESET}"),
        48: ("uncorrectable memory error", f"a double bit error; {_RESET}"),
        62: ("internal micro-controller halt", _RESET),
        64: ("memory could not be remapped", f"have the card replaced, or {_RESET}"),
        74: ("NVLink error", "a link to another card failed; reset both, check the bridge"),
        79: (
            "fallen off the bus",
            "the card is gone until the machine is rebooted: power, heat, slot",
        ),
        95: ("uncontained memory error", f"results on this card cannot be trusted; {_RESET}"),
        110: ("security fault", _RESET),
        119: ("the card's system processor does not answer", _RESET),
        120: ("the card's system processor failed", _RESET),
        136: ("link training failed", _RESET),
        140: ("unrecovered memory error", f"results on this card cannot be trusted; {_RESET}"),
        143: ("the card does not initialise", _RESET),
        155: ("NVLink software error", _RESET),
        158: ("fatal timeout", _RESET),
    },
    "note": {
        8: ("stopped processing", "the program on it must be started again"),
        37: ("driver firmware error", "the driver went on"),
        38: ("driver firmware error", "the driver went on"),
        44: ("fault during a context switch", "the driver went on"),
        54: ("no auxiliary power", "is the power cable of the card plugged in?"),
        60: ("video processor exception", _ENGINE),
        63: ("memory remapped or retired", "takes effect at the next reset; work can go on"),
        92: ("many corrected memory errors", "the card went on; watch it"),
        94: ("contained memory error", "the program it hit must be restarted, no other is harmed"),
        121: ("chip-to-chip link error", "it was corrected"),
        154: ("recovery action changed", "see what came before it"),
        156: ("memory retired", "takes effect at the next reset"),
        157: ("memory could not be retired", "watch the card"),
        167: ("fatal PCIe timeout", "look for what comes after it"),
        171: ("uncorrectable DRAM error", "details of Xid 48"),
        172: ("uncorrectable SRAM error", "details of Xid 48"),
    },
}
_STOPPING = frozenset({46, 62, 79, 95, 110, 119, 120, 140, 143, 158})
"""Those after which a job on the card will not end, or not with a right result."""
_ENGINES = frozenset(
    {39, 40, 41, *range(70, 73), *range(75, 78), *range(82, 87), 88, 89}
    | {*range(96, 106), *range(126, 136), 139, 142}
)
_LINKS = frozenset(range(144, 151))


# ── The client of the helper ──────────────────────────────────────────────────────────────────────

PERIOD = 60.0
"""Seconds that the helper waits in the driver at a time, at most."""

_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")


class DriverError(TypedDict):
    """An error of the driver, as the helpers tell it."""

    code: int | None
    kind: str
    text: str


class HelperLine(Struct, frozen=True):
    """A line of the helper: `listen` says which `said` has which of the others."""

    said: Literal["asking", "hears", "deaf", "event", "end"]
    gpus: list[str] = []
    types: list[str] = []
    error: DriverError | None = None
    kind: str = ""
    code: int | None = None
    recovery: int | None = None


class EventsClient:
    """Listens to these cards from its construction on; the loop calls `report` with each event.

    `coverage` has for each card the types of events that are announced or, in words, why none is;
    a card that is not in it yet is being asked about. `period`, in seconds, is the longest that the
    helper waits in the driver at a time.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        loop: Loop,
        report: Callable[[GpuEvent], object],
        environ: Mapping[str, str] | None = None,
        period: float = PERIOD,
    ) -> None:
        self.coverage: dict[str, tuple[str, ...] | str] = {}
        self._loop = loop
        self._report = report
        self._environ = None if environ is None else dict(environ)
        self._period = period
        self._gpus = [(gpu.index, gpu.uuid) for gpu in gpus if not gpu.simulated]
        self._helper = Helper(loop, self._said, self._died)
        self._asking: list[str] = []
        self._lost: set[str] = set()
        self._ended = not self._gpus
        if not self._ended:
            self._start()

    def __enter__(self) -> EventsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._helper.pid

    @property
    def ended(self) -> bool:
        """True once no event will come any more."""
        return self._ended

    def read(self) -> None:
        """Report the events that have come since the loop waited."""
        self._helper.read()

    def close(self) -> None:
        """End the helper. Idempotent."""
        self._ended = True
        self._helper.close()

    # ── The helper ──────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        arguments = [str(self._period), json.dumps(self._gpus)]
        try:
            self._helper.start(command("gpulaunch.gpus.listen", *arguments), self._environ)
        except OSError as error:  # processes, memory or descriptors are scarce
            self._put_off(f"no process can be started to listen: {error.strerror}")

    def _said(self, line: bytes) -> None:
        # A library of the driver may write to standard output as well.
        if line.startswith(b'{"said": ') and line.endswith(b"}"):
            self._take(understood(line, HelperLine))

    def _take(self, line: HelperLine) -> None:
        if line.said == "asking":
            self._asking = line.gpus
        elif line.said == "end":
            self._ended = True
        elif line.said == "event":
            for event in happened(line):
                self._report(event)
        else:
            self._asking = []
            error = line.error
            why = tuple(line.types) if error is None else str(parse.fault("", error))
            self.coverage.update(dict.fromkeys(line.gpus, why))
            if error is not None and error["kind"] in _LOST:
                self._report_lost(line.gpus, error["text"])

    def _report_lost(self, gpus: Sequence[str], words: str) -> None:
        for gpu in gpus:
            if gpu not in self._lost:
                self._lost.add(gpu)
                text = f"the driver: {words}"
                self._report(GpuEvent(gpu, None, text, "lost", stops=True))

    def _died(self, status: int | None) -> None:
        """Restart a helper that has ended, without the cards on which its call hung."""
        stuck, self._asking = self._asking, []
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            stuck = []  # somebody killed the helper: no card is to blame
        self._gpus = [(index, uuid) for index, uuid in self._gpus if uuid not in stuck]
        why = "the driver does not answer when its events are asked for: none will be reported"
        self.coverage.update(dict.fromkeys(stuck, why))
        if not self._ended:
            self._put_off("the process that listens dies again and again")
        for gpu in stuck:
            self._report(GpuEvent(gpu, None, why, "note"))

    def _put_off(self, why: str) -> None:
        self._ended = not self._gpus or not self._helper.restart(self._start)
        if self._ended:
            self.coverage.update(dict.fromkeys((uuid for _, uuid in self._gpus), why))


def happened(line: HelperLine) -> list[GpuEvent]:
    """Return the events of a helper's line, one for each card or MIG instance concerned."""
    code, action = line.code, line.recovery
    if action is not None:
        meaning = recovery(action)
        text = f"Xid {code}, {meaning.text}" if code is not None else meaning.text
    else:
        meaning = event(line.kind) if code is None else xid(code)
        text = meaning.text
    return [GpuEvent(gpu, code, text, meaning.verdict, meaning.stops) for gpu in line.gpus]


def hearing(
    gpus: Sequence[Gpu], environ: Mapping[str, str], timeout: float = 10.0
) -> dict[str, tuple[str, ...] | str]:
    """Return which events each of these cards announces, or why none (`EventsClient.coverage`).

    Blocks for at most `timeout` seconds; a card that is missing then does not answer.
    """
    end = time.monotonic() + timeout
    loop = Loop()
    with closing(loop), EventsClient(gpus, loop, lambda event: None, environ) as client:
        loop.call_at("timeout", end, lambda: None)
        while len(client.coverage) < len(gpus) and not client.ended and time.monotonic() < end:
            loop.turn()
        return dict(client.coverage)
