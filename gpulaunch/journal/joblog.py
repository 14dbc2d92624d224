"""Writes `joblog.tsv`: GNU Parallel's joblog, a row per attempt, for scripts that read those.

    Seq  Host  Starttime  JobRuntime  Send  Receive  Exitval  Signal  Command

The file only repeats what the journal holds: rows that cannot be written are left out.
Exitval is -1 where gpulaunch counts a failure that the process's own status does not show (a
timeout, a missing output), as GNU Parallel writes it for its own timeouts.

Also looks at the input files of jobs, and says which changed since their jobs succeeded.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2s
from pathlib import Path

from msgspec import Struct

from gpulaunch.base.files import regular, replace
from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import Job, LadderStep, exit_code_of, signal_of
from gpulaunch.core.template import Text, shown

HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
_NEVER_STARTED = "0.000"


class JobLog:
    """The rows of one run, appended. Close it. A torn last row is cut off when it is opened.

    `command_of` gives a job's command line by its name (`command_line` makes one). Where the file
    cannot be opened, there are no rows, and no error.
    """

    def __init__(self, path: Path, command_of: Callable[[str], str]) -> None:
        self._command_of = command_of
        self._rows = self._size = 0
        self._fd = _opened(path)
        try:
            if self._fd >= 0:
                self._rows, self._size = self._measure()
        except BaseException:
            self.close()
            raise

    def ended(self, attempts: Sequence[AttemptRecord], ledger: Ledger) -> bool:
        """Append a row for each attempt, all of which ended; return whether they were written."""
        rows = [] if self._size else [HEADER]
        for number, attempt in enumerate(attempts, self._rows + 1):
            command = at_step(self._command_of(attempt.id.job), attempt.step)
            rows.append(row(number, attempt.node or ledger.opening.host, attempt, command))
        data = "".join(rows).encode(errors="backslashreplace")  # names of files need not be UTF-8
        try:
            whole = os.write(self._fd, data) == len(data)
            if not whole:
                os.ftruncate(self._fd, self._size)
        except OSError:
            return False
        if whole:
            self._rows += len(attempts)
            self._size += len(data)
        return whole

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _measure(self) -> tuple[int, int]:
        """Cut a torn last row off; return the number of rows, and the file's size then."""
        lines = size = held = 0
        while chunk := os.pread(self._fd, 1 << 20, held):
            lines += chunk.count(b"\n")
            if (last := chunk.rfind(b"\n")) >= 0:
                size = held + last + 1
            held += len(chunk)
        if held > size:
            os.ftruncate(self._fd, size)
        return max(0, lines - 1), size


def _opened(path: Path) -> int:
    """Open the file and return its descriptor, -1 for none.

    Replaces what stands in its place and is no regular file.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    with suppress(OSError):
        return regular(path, flags)
    with suppress(OSError):
        replace(path, b"")
        return regular(path, flags)
    return -1


def row(number: int, host: str, attempt: AttemptRecord, command: str) -> str:
    """Return one attempt's row. Its start is in seconds since 1970, its runtime in seconds."""
    started = f"{attempt.started.utc:.3f}" if attempt.started else _NEVER_STARTED
    exit_value, signal = _status(attempt)
    cells = (
        str(number),
        _cell(host),
        started,
        f"{attempt.seconds:10.3f}",
        "0",
        "0",
        str(exit_value),
        str(signal),
        _cell(f"{attempt.id.job}: {command}"),
    )
    return "\t".join(cells) + "\n"


def what_runs(job: Job) -> Text | tuple[Text, ...]:
    """Return a job's command, or, for a worker's function, `worker` and the function."""
    if job.worker is not None and job.worker.function:
        return ("worker", job.worker.function)
    return job.run


def command_line(run: Text | tuple[Text, ...]) -> str:
    """Return a job's `run` on one line; placeholders filled at its start stay `{{name}}`."""
    if isinstance(run, tuple):
        return shlex.join(shown(part) for part in run)
    return shown(run)


def at_step(command: str, step: LadderStep | None) -> str:
    """Return a job's command line with the values of a step of its ladder."""
    for name, value in step.values.items() if step is not None else ():
        command = command.replace(f"{{{{{name}}}}}", value)
    return command


def _status(attempt: AttemptRecord) -> tuple[int, int]:
    if attempt.outcome is None:
        return -1, 0
    code, signal = exit_code_of(attempt.outcome), signal_of(attempt.outcome)
    if signal:
        return (-1 if attempt.failure in ("timeout", "idle_timeout") else 0), signal
    if attempt.state != "succeeded" and not code:
        return -1, 0
    return code or 0, 0


def _cell(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("\t", "\\t")
    return text.replace("\n", "\\n").replace("\r", "\\r")


# ── Input files of jobs ───────────────────────────────────────────────────────────────────────────


class InputLook(Struct, frozen=True):
    """Jobs that succeeded, by their input: another one than then, or `missing`."""

    changed: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


def files_of(job: Job) -> tuple[str, ...]:
    """Return the absolute paths of the files that the job's items are.

    They are a `foreach`'s matches, its values and lines that are inserted as `{{path}}`, and the
    items of a batch.
    """
    if job.batch is not None:
        return job.batch
    if job.input_base is None:
        return ()
    return (os.path.join(job.input_base, job.params["item"]),)


def stamp_of(job: Job) -> str:
    """Return the sizes and times of change of the job's input files, to be compared as a whole.

    4711:1763624535123456789        one file: its bytes, its time of change in nanoseconds
    20:9c1185a5d3...                a batch of 20 files: a digest of all of theirs

    It is empty for none, or where one is gone, or no file: a job may write into a directory.
    """
    if job.input_base is None and job.batch is None:
        return ""
    parts = []
    for path in files_of(job):
        try:
            seen = os.stat(path)
        except (OSError, ValueError):
            return ""
        if not stat.S_ISREG(seen.st_mode):
            return ""
        parts.append(f"{seen.st_size}:{seen.st_mtime_ns}")
    if len(parts) == 1:
        return parts[0]
    return f"{len(parts)}:{blake2s(' '.join(parts).encode(), digest_size=16).hexdigest()}"


def look(jobs: Iterable[Job], ledger: Ledger, seconds: float | None = None) -> InputLook:
    """Compare the input files of jobs that succeeded with what they were then.

    For so many `seconds` at most. A job whose input was not looked at then is neither.
    """
    changed: set[str] = set()
    missing: set[str] = set()
    end = None if seconds is None else time.monotonic() + seconds
    for job in jobs:
        record = ledger.jobs.get(job.name)
        if record is None or record.state != "succeeded":
            continue
        then = record.success
        if then is None or not then.inputs:
            continue
        if end is not None and time.monotonic() > end:
            break
        stamp = stamp_of(job)
        if not stamp:
            missing.add(job.name)
        elif stamp != then.inputs:
            changed.add(job.name)
    return InputLook(frozenset(changed), frozenset(missing))
