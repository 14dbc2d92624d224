"""Reads the record of an attempt's end, which keepers write (and a node where there were none).

The file's blocks are allocated before the job starts, so that a full disk cannot lose an end.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from gpulaunch.core.causes import EndCause, Quoted
from gpulaunch.core.model import (
    Cancelled,
    End,
    Exited,
    Interrupted,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Status,
    Stopped,
    TimedOut,
)
from gpulaunch.farside.wire import NO_SPACE, line_of_end
from gpulaunch.process.checked import count, instant, record_bytes, record_of, seconds, text
from gpulaunch.shapes import coder_of
from gpulaunch.text import unescaped

_CAUSES = coder_of(EndCause)


def text_of(cause: EndCause) -> str:
    """Return the cause as text that a keeper passes on without reading it."""
    return json.dumps(_CAUSES.plain(cause))


def cause_of(text: str) -> EndCause:
    """Return the cause that `text_of` wrote; any other text is a keeper's own, and quoted."""
    try:
        return cast(EndCause, _CAUSES.decode(json.loads(text)))
    except ValueError:
        return Quoted(text)


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


def read_end(path: str | os.PathLike[str]) -> EndRecord | None:
    """Return the end in a file; None where none is written yet, it is torn, or it is no end.

    Raises FileNotFoundError and other OSErrors of the file itself.
    """
    line = line_of_end(record_bytes(path))
    try:
        return None if line is None else end_from(record_of(line))
    except (ValueError, LookupError):  # not the keeper's: a job may have written the file
        return None


def end_from(record: Mapping[str, Any]) -> EndRecord:
    """Return the end from a record, which the keeper also sends to the supervisor.

    Raises ValueError and KeyError if it is not such a record.
    """
    pid, started = record["pid"], record["started"]
    end = End(
        _outcome(record),
        leftovers=count(record["leftovers"]),
        started=None if started is None else instant(started),
        ended=instant(record["ended"]),
    )
    return EndRecord(
        attempt=text(record["attempt"]),
        end=end,
        pid=None if pid is None else count(pid),
        oom_kills=count(record.get("oom_kills", 0)),
        no_space=record.get("kind") == NO_SPACE,  # records of older versions have no kind
    )


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
