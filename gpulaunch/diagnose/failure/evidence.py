"""From what is known of an attempt's end to its failure class. Pure; precision before recall.

    outcome, log's end, driver, kernel  ──diagnose──▶  Failure(class, evidence, advice) or None

What the driver and the kernel say comes before what the log says: they do not quote.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.base.text import clip, several, size
from gpulaunch.base.wording import signal_name
from gpulaunch.core.causes import Advice, DisksFull, Hint, MemoryUse
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Failure,
    Interrupted,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.diagnose.failure.edge import Counters, Room

if TYPE_CHECKING:
    from gpulaunch.diagnose.failure.judge import Error, FailureEvidence, Verdict

FATAL_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
"""Double-bit ECC, a halted controller, NVLink, off the bus, GSP: the card needs a reset (NVIDIA's
Xid catalogue). Other numbers come from programs too and decide nothing by themselves."""
FAULT_XIDS = frozenset({13, 31})
"""An exception in, or a memory fault of, the program that ran on the card."""

_MODULE = re.compile(r": (?:module|ml): (command )?not found$")
_KILLED_BY = frozenset({4, 6, 7, 8, 9, 11})
_MAX_LOG_BYTES = 1 << 20
_MAX_LINE_CHARACTERS = 300


class CardFacts(Struct, frozen=True):
    """One of the attempt's cards as the driver had it when the attempt ended. Memory in bytes.

    `sick`: why the driver says that it is unfit, None where it is fit or nobody asked. `own`: what
    the attempt's processes used of its memory, `foreign`: what others did; None where unknown.
    `xids`: the driver's error numbers on it while the attempt ran, in their order. `unified`: its
    memory is the host's.
    """

    uuid: str
    sick: str | None = None
    total: int | None = None
    own: int | None = None
    foreign: int | None = None
    xids: tuple[int, ...] = ()
    unified: bool = False


class OwnMemory(Struct, frozen=True):
    """The host memory that the attempt was limited to, and `peak`: the most that it used of that.

    None where that is not told. `kills`: its processes that the kernel killed at the limit.
    """

    limit: int
    peak: int | None = None
    kills: int = 0


class Evidence(Struct, frozen=True):
    """All that is known of how an attempt ended.

    `tail` is its log's end (`tail()` reads it). `succeeded`: the outcome counts as success (a code
    of success, outputs there). `by_launcher`: the launcher itself ended it, whatever the status.
    `rises`: the kernel's counters, after less before. `rooms`: at that moment, for the file systems
    of its output, its working directory, its temporary directory and /dev/shm. `memory`: None
    without a limit of its own.
    """

    outcome: Outcome
    tail: str = ""
    succeeded: bool = False
    by_launcher: bool = False
    rises: Counters = field(default_factory=Counters)
    cards: tuple[CardFacts, ...] = ()
    rooms: tuple[Room, ...] = ()
    memory: OwnMemory | None = None


def diagnose(evidence: Evidence) -> Failure | None:
    """Return what the attempt failed of, where that is certain; None: its status says all.

    None for successes, for what the launcher ended, and for attempts that nobody saw ending.
    A timeout is a timeout, whatever the log says, unless the card itself was lost.
    """
    outcome = evidence.outcome
    if evidence.succeeded or isinstance(outcome, Cancelled | Interrupted | Stopped | Lost):
        return None
    lost = _lost(evidence)
    if lost is not None or evidence.by_launcher:
        return lost
    if isinstance(outcome, TimedOut | NotStarted):
        return None
    verdict = _judge(evidence.tail)
    found = _found(evidence, verdict)
    if found is not None and found.kind == "not_installed":
        return replace(found, advice=advice_on_modules(evidence) or found.advice)
    return found


def _found(evidence: Evidence, verdict: Verdict) -> Failure | None:
    return (
        _by_limit(evidence.memory)
        or _by_signal(evidence, _signal(evidence.outcome))
        or _by_log(evidence, verdict)
        or _by_status(evidence)
        or _by_signal(evidence, verdict.child)
        or _by_disk(evidence, verdict)
        or _by_xid(evidence)
        or _by_shell(evidence)
    )


def hint(evidence: Evidence) -> str:
    """For a success whose log ends in a failure, one line that says so; else empty."""
    if not evidence.succeeded or not isinstance(evidence.outcome, Exited):
        return ""
    verdict = _judge(evidence.tail)
    found = verdict.finding or verdict.soft
    if found is None:
        return ""
    return f"exited {evidence.outcome.code}, though its log says: {_clipped(found.text)}"


def _judge(text: str) -> Verdict:
    # Its patterns take 20 ms to compile, which only who has a log to judge should spend:
    # `observe.terminal` reads the classes' titles in every command.
    from gpulaunch.diagnose.failure.judge import judge

    return judge(text)


# ── What the driver and the kernel say ──────────────────────────────────────────────────────────


def _lost(evidence: Evidence) -> Failure | None:
    fatal = {
        card.uuid: next((xid for xid in card.xids if xid in FATAL_XIDS), None)
        for card in evidence.cards
    }
    gone = [card for card in evidence.cards if card.sick or fatal[card.uuid]]
    if not gone:
        return None
    words = [card.sick or f"the driver reported Xid {fatal[card.uuid]}" for card in gone]
    uuids = tuple(card.uuid for card in gone)
    return Failure("gpu_lost", "; ".join(dict.fromkeys(words)), (Hint("gpu_lost"),), uuids)


def _by_limit(memory: OwnMemory | None) -> Failure | None:
    """Blame the job's own limit, at which the kernel killed some of it: nothing else was killed."""
    if memory is None or not memory.kills:
        return None
    killed = several(memory.kills, "process", "processes")
    peak = f"; peak {size(memory.peak)}" if memory.peak is not None else ""
    words = f"out of the {size(memory.limit)} that memory: gave it{peak} ({killed} killed there)"
    return Failure("host_oom", words, (Hint("raise_memory"),))


def _by_signal(evidence: Evidence, signal: int | None) -> Failure | None:
    match signal:
        case 9 if evidence.rises.rose:
            words = "killed while the kernel was killing processes for want of memory (oom_kill)"
            return _failure("host_oom", words)
        case 7:
            full = _full(evidence)
            disks = [path for path in full if path != "/dev/shm"]
            if disks and "/dev/shm" not in full:
                return _failure("disk_full", f"SIGBUS, and no space is left at {disks[0]}")
            return _failure("shm", "SIGBUS: memory that is a file could not be had")
        case 4:
            return _failure("wrong_cpu", "SIGILL: an instruction that this processor does not know")
    return None


def _by_xid(evidence: Evidence) -> Failure | None:
    for card in evidence.cards:
        for xid in card.xids:
            if xid in FAULT_XIDS:
                words = f"the driver reported Xid {xid}, a fault of the program on the card"
                return Failure("crash", words, (Hint("crash"),), (card.uuid,))
    return None


def _by_shell(evidence: Evidence) -> Failure | None:
    """128+n is how a shell, or docker, passes on that a program in it was killed by signal n."""
    signal = _signal(evidence.outcome)
    if isinstance(evidence.outcome, Exited) and signal in _KILLED_BY:
        words = (
            f"status {evidence.outcome.code}: a program in it was killed by {signal_name(signal)}"
        )
        return Failure("signal", words, advice_on_signal(evidence))
    return None


def advice_on_limit(evidence: Evidence) -> Advice:
    """Return what to do about a time limit of an engine's queue; empty for any other end."""
    match evidence.outcome:
        case TimedOut("queue"):
            return (Hint("queue_time"),)
    return ()


def advice_on_signal(evidence: Evidence) -> Advice:
    """Return what to do about a signal of which nothing else is known: who may have sent a SIGKILL,
    how a crash is found; empty for other signals, and for what gpulaunch itself ended."""
    signal = _signal(evidence.outcome)
    if evidence.by_launcher or signal not in _KILLED_BY:
        return ()
    return (Hint("killed" if signal == 9 else "signal"),)


def _signal(outcome: Outcome) -> int | None:
    """Return the signal that ended it: its own, or one that a shell's status tells of."""
    match outcome:
        case Signaled(signal):
            return signal
        case Exited(code) if 128 < code < 128 + 32:
            return code - 128
    return None


# ── What the log says ───────────────────────────────────────────────────────────────────────────


def _by_log(evidence: Evidence, verdict: Verdict) -> Failure | None:
    found = verdict.finding
    given_up = verdict.soft
    # Whatever it lacked afterwards (its own output, most often), this is why.
    if given_up and (found is None or found.kind == "missing_file"):
        missing = isinstance(evidence.outcome, MissingOutput) and verdict.error is None
        if missing or found is not None:
            found = given_up
    if found is None:
        return None
    if found.kind == "gpu_oom":
        return _out_of_memory(evidence, found)
    if found.kind == "disk_full":
        full = _full(evidence)
        return _failure(found.kind, found.text, (DisksFull(tuple(full)),) if full else ())
    return _failure(found.kind, found.text)


def _by_status(evidence: Evidence) -> Failure | None:
    if not isinstance(evidence.outcome, Exited):
        return None
    from gpulaunch.diagnose.failure.judge import of_status

    found = of_status(evidence.tail, evidence.outcome.code)
    return _failure(found.kind, found.text) if found else None


def advice_on_modules(evidence: Evidence) -> Advice:
    """Return what to do where a shell found no `module` and went on without; empty elsewhere."""
    from gpulaunch.diagnose.failure.judge import last_lines

    lines = last_lines(evidence.tail) if isinstance(evidence.outcome, Exited) else []
    for shell in filter(None, map(_MODULE.search, lines)):
        return (Hint("no_modules" if shell[1] else "not_bash"),)
    return ()


def _by_disk(evidence: Evidence, verdict: Verdict) -> Failure | None:
    """Blame a full disk, which takes the log's last words as well.

    torch only says that it could not write.
    """
    full = [path for path in _full(evidence) if path != "/dev/shm"]
    error = verdict.error
    if not full or (error is not None and not _speaks_of_writing(error)):
        return None
    words = error.text if error else f"no space is left at {full[0]}"
    return _failure("disk_full", words, (DisksFull(tuple(full)),))


def _full(evidence: Evidence) -> list[str]:
    return [room.path for room in evidence.rooms if room.free < _MAX_LOG_BYTES]


def _speaks_of_writing(error: Error) -> bool:
    words = [error.text, *(raised.message for raised in error.raised)]
    return any("writ" in text or "unexpected pos" in text for text in words)


def _out_of_memory(evidence: Evidence, found: FailureEvidence) -> Failure:
    numbers = numbers_of(found.message or found.text)
    seen = [card.foreign for card in evidence.cards if card.foreign is not None]
    others = max(seen) if seen else numbers.others or 0
    foreign = others >= max(SUBSTANTIAL, (numbers.total or 0) // 20)
    if foreign and not numbers.others:
        numbers = replace(numbers, others=others)
    known: Advice = () if numbers == MemoryUse() else (numbers,)
    if any(card.unified for card in evidence.cards):
        known = (*known, Hint("unified"))
    only = tuple(card.uuid for card in evidence.cards) if len(evidence.cards) == 1 else ()
    return replace(_failure(found.kind, found.text, known), gpus=only, foreign=foreign)


def _failure(kind: str, words: str, before: Advice = ()) -> Failure:
    return Failure(kind, _clipped(words), (*before, Hint(kind)))


def _clipped(text: str) -> str:
    return clip(" ".join(text.split()), _MAX_LINE_CHARACTERS)


# ── what a card that ran out of memory says in numbers ────────────────────────────────────────────

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"(\d{1,15}(?:\.\d{1,6})?) ?([KMGT]?)(?:iB|B|bytes|b)\b"
_ASKED = (
    re.compile(rf"[Tt]ried to allocate {_SIZE}"),  # torch
    re.compile(rf"[Oo]ut of memory while trying to allocate {_SIZE}"),  # XLA
    re.compile(rf"Failed to allocate request for {_SIZE}"),  # XLA
    re.compile(rf"\ballocating {_SIZE}"),  # ggml, CuPy
)
# torch: "GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free."; before 2.1:
# "(GPU 0; 6.00 GiB total capacity; 3.49 GiB already allocated; 1.04 GiB free; 3.50 GiB reserved".
_TOTAL = re.compile(rf"total capac\w{{0,2}}ty of {_SIZE}|\(GPU \d{{1,3}}; {_SIZE} total capacity")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use")
_OLD = re.compile(rf"; {_SIZE} already allocated; {_SIZE} free; {_SIZE} (reserved|cached)")
_VLLM = re.compile(
    r"Free memory on device[^(\n]{0,20}\((\d{1,6}\.?\d{0,4})/(\d{1,6}\.?\d{0,4}) GiB\)"
)

SUBSTANTIAL = 1 << 30
"""Less than this is what idle processes leave on a card."""
CONTEXT = 3 << 29
"""What a process's CUDA context and libraries may take beside what torch counts: 1.5 GiB."""


def numbers_of(message: str) -> MemoryUse:
    asked = next((_bytes(*m.groups()) for m in (r.search(message) for r in _ASKED) if m), None)
    vllm = _VLLM.search(message)
    if vllm:
        free, size = (int(float(vllm[i]) * (1 << 30)) for i in (1, 2))
        return MemoryUse(asked, size, None, max(0, size - free))
    total = _first(_TOTAL, message)
    own = _first(_OWN, message)
    others = [(int(pid), _bytes(size, unit)) for pid, size, unit in _OTHER.findall(message)]
    if own is None and others:
        # In a container torch cannot tell its own PID, and names itself as if it were another.
        largest = max(others, key=lambda other: other[1])
        others.remove(largest)
        own = largest[1]
    if others:
        pids = tuple(pid for pid, _ in others)
        return MemoryUse(asked, total, own, sum(size for _, size in others), pids)
    return MemoryUse(asked, total, own, _left_over(message, total))


def _left_over(message: str, total: int | None) -> int | None:
    """Return what the old message leaves over: neither free, nor torch's, nor a context's."""
    old = _OLD.search(message)
    if old is None or total is None:
        return None
    allocated, free, kept = (_bytes(old[i], old[i + 1]) for i in (1, 3, 5))
    # "reserved" contains what is allocated; the older "cached" comes on top of it.
    own = max(allocated, kept) if old[7] == "reserved" else allocated + kept
    return max(0, total - free - own - CONTEXT)


def _first(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    if found is None:
        return None
    size, unit = [group for group in found.groups() if group is not None][:2]
    return _bytes(size, unit)


def _bytes(size: str, unit: str) -> int:
    return int(float(size) * _UNITS[unit])
