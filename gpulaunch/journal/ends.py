"""The records of ends, which keepers write (and a node where there were none): where, and what.

    ends/slots-5f0c1a    one supervisor's attempts on this machine: END_SIZE bytes for each
    ends/JOB.1           one attempt, on a node of a cluster

Blocks are allocated before the job starts, so that a full disk cannot lose an end. A slot is given
to another attempt once the journal has its end on disk: creating and deleting a file for each
attempt costs a file system, and so the launcher that waits for it, far more than its job's start.

A job of the same user may have forged a record. Each member that is read has its type and lies
within bounds that all later code can bear; otherwise a ValueError is raised.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from gpulaunch.agent.wire import END_SIZE, NO_SPACE, line_of_end
from gpulaunch.base.files import regular
from gpulaunch.base.text import unescaped
from gpulaunch.core.causes import EndCause, Quoted
from gpulaunch.core.model import (
    Cancelled,
    End,
    Exited,
    Instant,
    Interrupted,
    MissingOutput,
    NotStarted,
    Outcome,
    SentWarning,
    Signaled,
    Status,
    Stopped,
    TimedOut,
)

LARGEST_RECORD = 1 << 20
"""Bytes of one record; the longest real ones have some thousands."""
LARGEST_COUNT = 1 << 53
"""The largest whole number that is read: JSON's numbers are exact up to here."""
MAX_TIMESTAMP = 250e9
"""Seconds since 1970, shortly before the last date that Python has in every time zone."""


def record_bytes(path: str | os.PathLike[str], at: int = 0) -> bytes:
    """Return LARGEST_RECORD bytes at most of a regular file, from `at` on, without waiting.

    Raises OSError.
    """
    with open(path, "rb", opener=regular) as file:
        return os.pread(file.fileno(), LARGEST_RECORD, at)


def record_of(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object in the line. Raises ValueError."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def text(value: object) -> str:
    """Return a text. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {value!r:.100}")
    return value


def count(value: object, most: int = LARGEST_COUNT) -> int:
    """Return a whole number from 0 to `most`. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"expected a number from 0 to {most}, found {value!r:.100}")
    return value


def seconds(value: object) -> float:
    """Return a time or a span in seconds, from 0 to MAX_TIMESTAMP. Raises ValueError."""
    if isinstance(value, (int, float)) and 0 <= value <= MAX_TIMESTAMP:
        return float(value)
    raise ValueError(f"expected seconds, found {value!r:.100}")


def instant(value: object) -> Instant:
    """Return a moment by both clocks. Raises ValueError."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"expected two times, found {value!r:.100}")
    return Instant(seconds(value[0]), seconds(value[1]))


# ── Records of ends ───────────────────────────────────────────────────────────────────────────────

MAX_SLOTS = 1 << 16
"""Slots of one file that are read: a job may have made it larger than any supervisor does."""
_SLOTS_READ = LARGEST_RECORD // END_SIZE


def text_of(cause: EndCause) -> str:
    """Return the cause as text that a keeper passes on without reading it."""
    return json.dumps(msgspec.to_builtins(cause))


def cause_of(text: str) -> EndCause:
    """Return the cause that `text_of` wrote; any other text is a keeper's own, and quoted."""
    try:
        kind: Any = EndCause
        cause: EndCause = msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return Quoted(text)
    return cause


class EndRecord(Struct, frozen=True):
    """An attempt's end as its keeper wrote it; the end's `ended` is set.

    `pid`, and the end's `started`, are None where no process was ever forked. `oom_kills`:
    processes that the kernel killed for want of memory, where a cgroup of the attempt's own counts
    them. `no_space`: nothing was run, as the disk was full; the job is not to blame for that.
    """

    attempt: str
    end: End
    pid: int | None
    oom_kills: int = 0
    no_space: bool = False


class EndSlots:
    """The files of many ends in a run's directory: a supervisor's own, and those of earlier ones.

    `file` is its own, in which it gives each attempt a slot.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        # A name of its own: keepers of an earlier supervisor may still write into its file.
        self.file = os.path.join(directory, f"slots-{os.urandom(3).hex()}")
        self._directory = directory
        self._taken: dict[str, int] = {}
        self._free: list[int] = []

    def of(self, attempt: str) -> int:
        """Return the attempt's slot: the one that it has, else a free one, which it has then."""
        slot = self._taken.get(attempt)
        if slot is None:
            slot = self._free.pop() if self._free else len(self._taken)
            self._taken[attempt] = slot
        return slot

    def give_back(self, attempt: str) -> None:
        """Take the attempt's slot back, if it has one: the journal has its end on disk."""
        slot = self._taken.pop(attempt, None)
        if slot is not None:
            self._free.append(slot)

    def forget_earlier(self, but: Collection[str]) -> None:
        """Empty the slots of earlier supervisors whose ends are not of these attempts.

        A power cut may lose the newest facts of a journal and keep the ends: their attempts'
        numbers are given out again, and must not be taken for ended. Raises OSError.
        """
        for path, slot, end in _slots(self._directory):
            if path != self.file and end.attempt not in but:
                with open(path, "r+b", opener=regular) as file:
                    os.pwrite(file.fileno(), b"\0", slot * END_SIZE)

    def delete(self) -> None:
        """Delete all files of many ends, if every attempt that was given a slot gave it back."""
        if not self._taken:
            for name in filter(_has_slots, _names(self._directory)):
                with suppress(OSError):
                    os.unlink(os.path.join(self._directory, name))


class Ends:
    """The ends that are recorded in a directory. Files of many ends are read once, when needed."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = directory
        self._in_slots: dict[str, EndRecord] | None = None

    def of(self, attempt: str) -> EndRecord | None:
        """Return the attempt's end; None where none can be read."""
        if self._in_slots is None:
            self._in_slots = {end.attempt: end for _, _, end in _slots(self._directory)}
        found = self._in_slots.get(attempt)
        if found is not None:
            return found
        try:
            return read_end(os.path.join(self._directory, attempt))
        except OSError:
            return None


def attempts_in(directory: str | os.PathLike[str]) -> list[str]:
    """Return the attempts with a file of their own there, or with an end in a slot."""
    own = [name for name in _names(directory) if not _has_slots(name)]
    return [*own, *(end.attempt for _, _, end in _slots(directory))]


def read_end(path: str | os.PathLike[str], slot: int | None = None) -> EndRecord | None:
    """Return the end in a file or in a slot of it; None where none is written yet, or it is none.

    Raises FileNotFoundError and other OSErrors of the file itself.
    """
    return _end_in(record_bytes(path, (slot or 0) * END_SIZE))


def _slots(directory: str | os.PathLike[str]) -> Iterator[tuple[str, int, EndRecord]]:
    """Yield each end that is in a slot, with its file and the slot's number."""
    for name in filter(_has_slots, _names(directory)):
        path = os.path.join(directory, name)
        with suppress(OSError):
            for part in range(0, MAX_SLOTS, _SLOTS_READ):
                data = record_bytes(path, part * END_SIZE)
                for slot, at in enumerate(range(0, len(data), END_SIZE), part):
                    end = _end_in(data[at : at + END_SIZE])
                    if end is not None:
                        yield path, slot, end
                if len(data) < LARGEST_RECORD:
                    break


def _names(directory: str | os.PathLike[str]) -> list[str]:
    with suppress(OSError):
        return os.listdir(directory)
    return []


def _has_slots(name: str) -> bool:
    return "." not in name  # an attempt's own is JOB.NUMBER


def _end_in(data: bytes) -> EndRecord | None:
    line = line_of_end(data)
    try:
        return None if line is None else end_from(record_of(line))
    except (ValueError, LookupError, TypeError):  # a job may have written the file
        return None


def end_from(record: Mapping[str, Any]) -> EndRecord:
    """Return the end from a record, which the keeper also sends to the supervisor.

    Raises ValueError, LookupError or TypeError if it is not such a record.
    """
    pid, started = record["pid"], record["started"]
    end = End(
        _outcome(record),
        leftovers=count(record["leftovers"]),
        started=None if started is None else instant(started),
        ended=instant(record["ended"]),
        warned=warning_from(record.get("warned")),
    )
    return EndRecord(
        attempt=text(record["attempt"]),
        end=end,
        pid=None if pid is None else count(pid),
        oom_kills=count(record.get("oom_kills", 0)),
        no_space=record.get("kind") == NO_SPACE,  # records of older versions have no kind
    )


def warning_from(record: Any) -> SentWarning | None:
    """Return the warning that a keeper tells of, None for none.

    Raises ValueError, LookupError or TypeError if it is not such a record.
    """
    if record is None:
        return None
    mono, utc, number, processes, why = record
    if why not in ("timeout", "stop"):
        raise ValueError(f"expected why it was sent, found {why!r}")
    at = instant([mono, utc])
    return SentWarning(at, count(number, signal.NSIG - 1), count(processes), why)


def _outcome(record: Mapping[str, Any]) -> Outcome:
    raw, error = record["status"], record["error"]
    status = None if raw is None else _status(count(raw, 0xFFFF))
    cause = record["cause"]
    if cause == "cancelled":
        return Cancelled(status)
    if cause == "stopped":
        return Stopped(status)
    if cause == "interrupted":
        return Interrupted(cause_of(text(record["by"])), status)
    if cause in ("timeout", "idle_timeout"):
        return TimedOut(cause, seconds(record["seconds"] or 0), status)
    if error is not None or status is None:
        return NotStarted(text(error or "no process could be started"))
    if record["missing"]:
        return MissingOutput(tuple(unescaped(text(path)) for path in record["missing"]), status)
    return status


def _status(raw: int) -> Status:
    """Return the status from waitpid's number."""
    if os.WIFSIGNALED(raw):
        return Signaled(count(os.WTERMSIG(raw), signal.NSIG - 1))
    return Exited(os.WEXITSTATUS(raw))
