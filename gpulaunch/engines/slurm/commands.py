"""Slurm's programs, called without waiting: each call has a time limit, and answers once.

    submit -> Submitted | Full | Refused | Unreachable        sbatch
    queue  -> Queue | Unreachable                             squeue, all of this user's jobs
    show   -> Queue | Unknown | Unreachable                   scontrol, one job
    cancel -> Done | Refused | Unreachable                    scancel
    signal -> Done | Refused | Unreachable                    scancel
    hold, release -> Done | Refused | Unreachable             scontrol
    ask    -> Config | Unreachable                            scontrol
    look_for_config -> words                                  scontrol, without the controller

An answer comes from a later turn of the loop, never from within the call. `Unreachable` says
nothing about any job: a submission that ended so may have reached the controller, and is looked
up by its name before it is made again. Nothing here decides, retries or remembers.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from gpulaunch.engines.slurm.reading import (
    RETRYING,
    QueueRow,
    is_full,
    is_over_already,
    is_plain_no,
    is_unconfigured,
    is_unknown,
    is_unreachable,
    one_line,
    queue_format,
    read_id,
    read_queue,
    read_setting,
    read_shown,
)
from gpulaunch.engines.slurm.reasons import is_mixed
from gpulaunch.loop import Loop

CALL_TIMEOUT = 30.0
"""Seconds for a call. Slurm's programs themselves wait 10 s for an answer (MessageTimeout)."""
LAST_CALLS_TIMEOUT = 2.0
"""Seconds for which the end of a launcher waits for what it has told `scancel`."""
LAST_CALLS_POLL = 0.01
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
CHOSEN = frozenset(
    (
        "SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS",
        "SBATCH_RESERVATION", "SBATCH_CONSTRAINT", "SBATCH_WCKEY", "SBATCH_TIMELIMIT",
        "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE",
    )
)  # fmt: skip
"""What people set for all that they submit: where it may run and who pays. Others of these names
would change what is done (SBATCH_WAIT), or how it is printed (SQUEUE_STATES)."""
FAMILIES = ("SLURM_", "SLURMD_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SALLOC_", "SRUN_", "SACCT_")


@dataclass(frozen=True, slots=True)
class SubmissionAccepted:
    """`id` is the job's number, or the array's."""

    id: str


@dataclass(frozen=True, slots=True)
class Full:
    """As many jobs as may be are in the queue: try later. `text` is what Slurm said."""

    text: str


@dataclass(frozen=True, slots=True)
class SubmissionRefused:
    """Slurm said no, in these words, and will again. `plain`: in words of its own; in another's it
    may have been said of what Slurm has nevertheless."""

    text: str
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No answer, or none that can be believed. Says nothing about any job."""

    text: str


@dataclass(frozen=True, slots=True)
class QueueListing:
    """What Slurm knows. A job that is not among them it has forgotten, or never knew."""

    rows: tuple[QueueRow, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The controller answered that it knows no such job."""


@dataclass(frozen=True, slots=True)
class Done:
    """Slurm took it, or there was nothing left to do."""


@dataclass(frozen=True, slots=True)
class Config:
    """Of the cluster. `array` is MaxArraySize, 1 more than the largest index, or `max_array_tasks`,
    where that is fewer; 0: no arrays.

    `jobs` is how many may be known at once (MaxJobCount). Finished ones are known for `remembered`
    seconds (MinJobAge; 0: for ever).
    """

    version: str
    array: int
    jobs: int
    remembered: float


SubmitAnswer: TypeAlias = SubmissionAccepted | Full | SubmissionRefused | Unreachable
QueueAnswer: TypeAlias = QueueListing | Unreachable
ShowAnswer: TypeAlias = QueueListing | Unknown | Unreachable
CancelAnswer: TypeAlias = Done | SubmissionRefused | Unreachable
ConfigAnswer: TypeAlias = Config | Unreachable


class Slurm:
    """The programs as found on `environ`'s PATH, which are given `limit` seconds each."""

    def __init__(self, loop: Loop, environ: Mapping[str, str], limit: float = CALL_TIMEOUT) -> None:
        self._loop = loop
        self._limit = limit
        self._chosen = {name: value for name, value in environ.items() if name in CHOSEN}
        own = without_slurm(environ) | self._chosen
        # Else a long list of waiting tasks is cut, and a task that waits seems to be gone.
        self._environ = own | {"SLURM_BITSTR_LEN": "0"}
        path = environ.get("PATH", os.defpath)
        self._programs = {name: shutil.which(name, path=path) or "" for name in PROGRAMS}
        self._calls: set[_Call] = set()
        self._count = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of Slurm's programs that are not here."""
        return tuple(name for name, path in self._programs.items() if not path)

    def submit(
        self,
        options: Sequence[str],
        script: Path,
        environ: Mapping[str, str],
        done: Callable[[SubmitAnswer], object],
        arguments: Sequence[str] = (),
    ) -> None:
        """`environ` is what the job gets from here; its own SLURM_ and SBATCH_ ones do not count.

        `options` must ask for `--parsable`; `arguments` are the script's.
        """
        given = without_slurm(environ) | self._chosen

        def read(end: _End) -> SubmitAnswer:
            if end.code == 0 and (id := read_id(end.out)):
                return SubmissionAccepted(id)
            if end.late or is_unreachable(end.said):
                return Unreachable(end.text)
            if end.code and is_full(end.said):
                return Full(end.text)
            if end.code and end.code > 0:
                return SubmissionRefused(end.text, is_plain_no(end.said))
            # Without a word from it nobody knows how far it came.
            return Unreachable(end.text)

        argv = [*options, str(script), *arguments]
        self._call("sbatch", argv, given, lambda end: done(read(end)))

    def queue(self, done: Callable[[QueueAnswer], object]) -> None:
        """All jobs of this user that Slurm knows, in hidden partitions as well.

        Tasks of an array that wait are shown together, with the reasons of all of them. Where these
        are several (one task is held), each task is asked for by itself.
        """
        mine = [f"--user={os.getuid()}"]

        def seen(end: _End, rows: tuple[QueueRow, ...]) -> None:
            answer = _queue(end, rows)
            if any(row.tasks and is_mixed(row.reason) for row in rows):
                self._squeue([*mine, "--array"], lambda end, rows: done(_queue(end, rows)))
            else:
                done(answer)

        self._squeue(mine, seen)

    def show(self, id: str, done: Callable[[ShowAnswer], object]) -> None:
        """Of one job (`12`), one task (`12_3`), or an array with all its tasks (`12`).

        By `scontrol`: a witness beside `squeue`, which may be wrapped, cached or cut at a site.
        """

        def read(end: _End) -> ShowAnswer:
            if end.late or is_unreachable(end.said):
                return Unreachable(end.text)
            if end.code and is_unknown(end.out + end.said):
                return Unknown()
            rows = () if end.code else read_shown(end.out)
            return QueueListing(rows) if rows else Unreachable(end.text)

        argv = ["--all", "show", "job", id]
        self._call("scontrol", argv, self._environ, lambda end: done(read(end)))

    def cancel(self, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        """End them. What waits never starts; what runs gets SIGTERM, and SIGKILL after KillWait.

        Not with `--state=PENDING`: that takes all waiting tasks of an array for one of them (seen
        in 22.05).
        """
        self._call("scancel", ids, self._environ, lambda end: done(_cancelled(end)))

    def signal(self, ids: Sequence[str], name: str, done: Callable[[CancelAnswer], object]) -> None:
        """`name` ("TERM") to the batch scripts of running jobs, and to nothing else of them.

        Of running ones alone: for one that waits, `scancel` itself waits until it runs. It goes by
        way of the controller; from where people submit, nodes need not be in reach.
        """
        argv = ["--ctld", "--batch", f"--signal={name}", *ids]
        self._call("scancel", argv, self._environ, lambda end: done(_cancelled(end)))

    def hold(self, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        """They are not to start: jobs (`12`), tasks (`12_3`) and ranges of them (`12_[3-7]`), of
        those that wait. One that runs would go on, and be held should Slurm put it back."""
        self._held("hold", ids, done)

    def release(self, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        """They may start again."""
        self._held("release", ids, done)

    def _held(self, verb: str, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        def read(end: _End) -> CancelAnswer:
            if end.late or is_unreachable(end.said):
                return Unreachable(end.text)
            over = is_over_already(end.out + end.said)
            return Done() if end.code == 0 or over else SubmissionRefused(end.text)

        self._call("scontrol", [verb, ",".join(ids)], self._environ, lambda end: done(read(end)))

    def ask(self, done: Callable[[ConfigAnswer], object]) -> None:
        """What of the cluster's configuration matters here."""

        def read(end: _End) -> ConfigAnswer:
            return Unreachable(end.text) if end.code or end.late else _config(end.out)

        self._call("scontrol", ["show", "config"], self._environ, lambda end: done(read(end)))

    def look_for_config(self, done: Callable[[str], object]) -> None:
        """What keeps Slurm's programs from finding a configuration here; empty where nothing does,
        or that is not known. The controller is not asked."""

        def read(end: _End) -> str:
            return end.text if end.code and is_unconfigured(end.said) else ""

        argv = ["show", "hostnames", "n1"]
        self._call("scontrol", argv, self._environ, lambda end: done(read(end)))

    def close(self) -> None:
        """Give the calls up that are under way; they are not answered. `scancel` is, in all its
        calls together, given `LAST_CALLS_TIMEOUT` seconds to be done."""
        until = time.monotonic() + LAST_CALLS_TIMEOUT
        for call in tuple(self._calls):
            call.close(max(0.0, until - time.monotonic()))
        self._calls.clear()

    def _squeue(
        self, which: Sequence[str], done: Callable[[_End, tuple[QueueRow, ...]], object]
    ) -> None:
        separator = f"|{secrets.token_hex(6)}|"
        argv = [
            "--all", "--noheader", "--states=all", f"--Format={queue_format(separator)}", *which,
        ]  # fmt: skip
        self._call(
            "squeue", argv, self._environ, lambda end: done(end, read_queue(end.out, separator))
        )

    def _call(
        self,
        program: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        done: Callable[[_End], object],
    ) -> None:
        self._count += 1

        def over(end: _End) -> None:
            self._calls.discard(call)
            done(end)

        call = _Call(self._loop, f"slurm {id(self)} {self._count}", program, self._limit, over)
        self._calls.add(call)
        call.start(self._programs[program], arguments, environ)


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what belongs to Slurm: settings of its programs, an allocation that we are in."""
    return {name: value for name, value in environ.items() if not name.startswith(FAMILIES)}


def _queue(end: _End, rows: tuple[QueueRow, ...]) -> QueueAnswer:
    return Unreachable(end.text) if end.code or end.late else QueueListing(rows)


def _cancelled(end: _End) -> CancelAnswer:
    # Not by its status: 22.05 exits with 229 where all went well.
    if end.late or is_unreachable(end.said):
        return Unreachable(end.text)
    return Done() if is_over_already(end.said) else SubmissionRefused(end.text)


def _config(text: str) -> ConfigAnswer:
    def number(name: str) -> int:
        digits = read_setting(text, name).partition(" ")[0]
        return int(digits) if digits.isdigit() else 0

    version = read_setting(text, "SLURM_VERSION")
    if not version:
        return Unreachable("scontrol show config: no version in its answer")
    array = number("MaxArraySize")
    if tasks := re.search(r"\bmax_array_tasks=(\d+)", read_setting(text, "SchedulerParameters")):
        array = min(array, int(tasks[1]))
    return Config(version, array, number("MaxJobCount"), number("MinJobAge"))


# ── One call ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _End:
    """How a program ended. `late`: it was ended, or could not be begun; `said` is its errors."""

    program: str
    code: int | None
    out: str = ""
    said: str = ""
    late: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        said = one_line(self.said) or one_line(self.out if self.code and self.code > 0 else "")
        if not said and not self.late:
            said = f"exit status {self.code}"
        return f"{self.program}: " + "; ".join(filter(None, (said, self.late)))


class _Call:
    """One program under way: its output, its end, its time limit."""

    def __init__(
        self,
        loop: Loop,
        key: str,
        program: str,
        limit: float,
        over: Callable[[_End], object],
    ) -> None:
        self._loop = loop
        self._key = key
        self._program = program
        self._limit = limit
        self._over = over
        self._process: subprocess.Popen[bytes] | None = None
        self._read: dict[int, tuple[IO[bytes], bytearray]] = {}

    def start(self, path: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        try:
            if not path:
                raise FileNotFoundError("not found; is this a machine that submits to Slurm?")
            self._process = subprocess.Popen(
                [path, *arguments],
                cwd="/",
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is ours, not theirs
            )
        except OSError as error:
            end = _End(self._program, None, late=str(error.strerror or error))
            self._loop.call_after(self._key, 0.0, lambda: self._over(end))
            return
        self._loop.call_after(self._key, self._limit, self._too_late)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream
            fd = stream.fileno()
            os.set_blocking(fd, False)
            self._read[fd] = (stream, bytearray())
            self._loop.watch(fd, lambda fd=fd: self._readable(fd))  # type: ignore[misc]

    def _readable(self, fd: int) -> None:
        stream, so_far = self._read[fd]
        with suppress(BlockingIOError):
            while piece := os.read(fd, 1 << 16):
                so_far += piece
            self._loop.unwatch(fd)
            stream.close()
            if all(stream.closed for stream, _ in self._read.values()):
                self._ended()
            return
        if RETRYING in so_far and self._process and stream is self._process.stderr:
            # It now sleeps, for longer and longer: asking again later is the caller's.
            self._finish()

    def _too_late(self) -> None:
        self._finish(f"no answer within {self._limit:g} s")

    def _ended(self) -> None:
        """Both ends of its output are closed, which is not quite the end of the process."""
        assert self._process
        if self._process.poll() is None:
            self._loop.call_after(f"{self._key} end", LAST_CALLS_POLL, self._ended)
        else:
            self._finish()

    def _finish(self, late: str = "") -> None:
        assert self._process
        out, said = (bytes(text).decode(errors="replace") for _, text in self._read.values())
        self.close()
        self._over(_End(self._program, self._process.returncode, out, said, late))

    def close(self, patience: float = 0.0) -> None:
        """End it, unless it has ended; `scancel` after so many seconds."""
        if self._program == "scancel" and self._process and patience:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._loop.forget(self._key)
        self._loop.forget(f"{self._key} end")
        for fd, (stream, _) in self._read.items():
            if not stream.closed:
                self._loop.unwatch(fd)
                stream.close()
        self._read.clear()
        if self._process and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            # One that hangs on a file server is not waited for: it ends when that answers.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
