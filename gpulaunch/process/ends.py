"""How an attempt ended, as its keeper wrote it down: read here, written by `keeper.py` alone.

    <crc32, 8 hex digits> <one JSON object>\\n<NULs up to the size laid out at launch>

The file is laid out, with its blocks, before the job starts; a full disk cannot lose an end.
"""

from __future__ import annotations

import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Instant,
    Interrupted,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Status,
    Stopped,
    TimedOut,
)
from gpulaunch.core.words import unescaped
from gpulaunch.files import regular


@dataclass(frozen=True, slots=True)
class End:
    """`leftovers`: processes that outlived the main one (after a stop: the grace) and were killed;
    0 where the main one itself had to be.

    `pid` and `started` are None where no process was ever forked. `oom_kills`: processes that the
    kernel killed for want of memory, where a cgroup of the attempt's own counts them.
    """

    attempt: str
    outcome: Outcome
    leftovers: int
    pid: int | None
    started: Instant | None
    ended: Instant
    oom_kills: int = 0


def read_end(path: str | os.PathLike[str]) -> End | None:
    """The end in the file; None where none is written yet, or it is torn.

    Raises FileNotFoundError and other OSErrors of the file itself.
    """
    with open(path, "rb", opener=regular) as file:
        line, newline, _ = file.read().partition(b"\n")
    checksum, _, text = line.partition(b" ")
    if not newline or checksum != b"%08x" % binascii.crc32(text):
        return None
    return end_from(json.loads(text))


def end_from(record: Mapping[str, Any]) -> End:
    """The same from the record itself, which the keeper also sends to the supervisor."""
    started = record["started"]
    return End(
        attempt=record["attempt"],
        outcome=_outcome(record),
        leftovers=record["leftovers"],
        pid=record["pid"],
        started=Instant(*started) if started else None,
        ended=Instant(*record["ended"]),
        oom_kills=record.get("oom_kills", 0),
    )


def _outcome(record: Mapping[str, Any]) -> Outcome:
    raw = record["status"]
    status = None if raw is None else _status(raw)
    cause = record["cause"]
    if cause == "cancelled":
        return Cancelled(status)
    if cause == "stopped":
        return Stopped(status)
    if cause == "interrupted":
        return Interrupted(record["by"], status)
    if cause in ("timeout", "idle_timeout"):
        return TimedOut(cause, record["seconds"], status)
    if record["error"] is not None or status is None:
        return NotStarted(record["error"] or "no process could be started")
    if record["missing"]:
        return MissingOutput(tuple(unescaped(path) for path in record["missing"]), status)
    return status


def _status(raw: int) -> Status:
    """From the number that waitpid gives."""
    if os.WIFSIGNALED(raw):
        return Signaled(os.WTERMSIG(raw))
    return Exited(os.WEXITSTATUS(raw))
