"""Slurm's programs, called without waiting: each call has a time limit, and answers once.

    submit                  sbatch      queue, scripts  squeue, all of this user's jobs
    cancel, signal          scancel     show   scontrol, one job
    hold, release, ask      scontrol    look_for_config  scontrol, without the controller

An answer comes from a later turn of the loop, never from within the call. `Unreachable` says
nothing about any job: such a submission may have reached the controller, and is looked up by its
name before it is made again. Nothing here decides or retries. `Limits` remembers what the site has
refused; it is pure, and told the time.
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
from pathlib import Path
from typing import IO, TypeAlias, TypeVar

from msgspec import Struct, field

from gpulaunch.base.loop import Loop
from gpulaunch.engines.slurm import reading
from gpulaunch.engines.slurm.reading import QueueRow, is_mixed

T = TypeVar("T")
CALL_TIMEOUT = 30.0
"""Seconds for a call. Slurm's programs themselves wait 10 s for an answer (MessageTimeout)."""
LAST_CALLS_TIMEOUT = 2.0
"""Seconds for which a launcher that ends waits for its last calls of `scancel`."""
LAST_CALLS_POLL = 0.01
"""Seconds between two looks whether a program that closed its output has exited."""
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
CHOSEN = {
    "SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS",
    "SBATCH_RESERVATION", "SBATCH_CONSTRAINT", "SBATCH_WCKEY", "SBATCH_TIMELIMIT",
    "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE",
}  # fmt: skip
"""The variables that people set for all their submissions: where they run and who pays. Slurm's
other variables would change what is done (SBATCH_WAIT) or printed (SQUEUE_STATES)."""
FAMILIES = ("SLURM_", "SLURMD_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SALLOC_", "SRUN_", "SACCT_")


class SubmissionAccepted(Struct, frozen=True):
    """Slurm took the submission. `id` is the job's number, or the array's."""

    id: str


class Full(Struct, frozen=True):
    """Slurm's queue is full: try later. `text` is what Slurm said."""

    text: str


class SubmissionRefused(Struct, frozen=True):
    """Slurm refused, in these words, and would again.

    `plain`: in Slurm's own words. In another program's words (a site's wrapper) Slurm may have the
    job nevertheless.
    """

    text: str
    plain: bool = True


class Unreachable(Struct, frozen=True):
    """No answer, or none that can be believed. Says nothing about any job."""

    text: str


class QueueListing(Struct, frozen=True):
    """The jobs that Slurm knows. It has forgotten any other job, or never knew it."""

    rows: tuple[QueueRow, ...]


class Done(Struct, frozen=True):
    """Slurm did what it was told, or there was nothing left to do."""


class Config(Struct, frozen=True):
    """The cluster's configuration, as far as it matters here.

    `array` is the smaller of MaxArraySize (1 more than the largest index) and `max_array_tasks`; 0:
    no arrays.
    """

    version: str
    array: int


SubmitAnswer: TypeAlias = SubmissionAccepted | Full | SubmissionRefused | Unreachable
QueueAnswer: TypeAlias = QueueListing | Unreachable
CancelAnswer: TypeAlias = Done | SubmissionRefused | Unreachable
ConfigAnswer: TypeAlias = Config | Unreachable
ScriptsAnswer: TypeAlias = tuple[tuple[str, str], ...] | Unreachable
Answer: TypeAlias = SubmitAnswer | QueueAnswer | CancelAnswer | ConfigAnswer


class Slurm:
    """Slurm's programs as found on `environ`'s PATH, each called for `limit` seconds at most."""

    def __init__(self, loop: Loop, environ: Mapping[str, str], limit: float = CALL_TIMEOUT) -> None:
        self._loop = loop
        self._limit = limit
        self._chosen = {name: value for name, value in environ.items() if name in CHOSEN}
        own = without_slurm(environ) | self._chosen
        # Without this a long list of waiting tasks is cut, and a task that waits seems to be gone.
        self._environ = own | {"SLURM_BITSTR_LEN": "0"}
        path = environ.get("PATH", os.defpath)
        self._programs = {name: shutil.which(name, path=path) or "" for name in PROGRAMS}
        self._calls: set[_Call] = set()
        self._count = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of Slurm's programs that are not on this machine."""
        return tuple(name for name, path in self._programs.items() if not path)

    def submit(
        self,
        options: Sequence[str],
        script: Path,
        environ: Mapping[str, str],
        done: Callable[[SubmitAnswer], object],
        arguments: Sequence[str] = (),
    ) -> None:
        """Submit the script with `environ`, without its SLURM_ and SBATCH_ variables.

        `options` must ask for `--parsable`; `arguments` are the script's.
        """
        argv, given = [*options, str(script), *arguments], without_slurm(environ) | self._chosen
        self._call("sbatch", argv, given, lambda end: done(_submitted(end)))

    def queue(self, done: Callable[[QueueAnswer], object]) -> None:
        """List all jobs of this user that Slurm knows, in hidden partitions as well.

        Slurm shows the waiting tasks of an array in one row, with the reasons of all of them. Where
        the reasons differ (one task is held), a second call lists each task by itself.
        """
        mine = f"--user={os.getuid()}"

        def seen(answer: QueueAnswer) -> None:
            rows = answer.rows if isinstance(answer, QueueListing) else ()
            if any(row.tasks and is_mixed(row.reason) for row in rows):
                self._squeue([mine, "--array"], done)
            else:
                done(answer)

        self._squeue([mine], seen)

    def scripts(self, done: Callable[[ScriptsAnswer], object]) -> None:
        """List the name and the command of each job of this user that waits or runs."""
        separator = f"|{secrets.token_hex(6)}|"
        form = f"--Format={reading.queue_format(separator, reading.SCRIPTS)}"

        def read(end: _End) -> ScriptsAnswer:
            if end.code or end.late:
                return Unreachable(end.text)
            return reading.read_scripts(end.out, separator)

        self._ask("squeue", ["--all", "--noheader", f"--user={os.getuid()}", form], read, done)

    def show(self, id: str, done: Callable[[QueueAnswer], object]) -> None:
        """List one job (`12`), one task (`12_3`), or an array with all its tasks (`12`).

        The listing is empty where the controller answers that it knows no such job.

        Through `scontrol`, a second source: a site may wrap, cache or cut `squeue`.
        """
        self._ask("scontrol", ["--all", "show", "job", id], _shown, done)

    def cancel(self, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        """Cancel jobs. Those that run get SIGTERM, and SIGKILL after KillWait.

        Not with `--state=PENDING`: for one task that cancels all waiting tasks of its array (seen
        in 22.05).
        """
        self._ask("scancel", ids, _cancelled, done)

    def signal(self, ids: Sequence[str], name: str, done: Callable[[CancelAnswer], object]) -> None:
        """Send the signal `name` ("TERM") to the batch scripts of running jobs, and to them alone.

        Running jobs only: for one that waits, `scancel` itself waits until it runs. The signal goes
        through the controller: a machine that submits need not reach the nodes.
        """
        argv = ["--ctld", "--batch", f"--signal={name}", *ids]
        self._ask("scancel", argv, _cancelled, done)

    def hold(self, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        """Hold waiting jobs (`12`), tasks (`12_3`) and ranges of tasks (`12_[3-7]`) in the queue.

        Waiting ones only: one that runs would go on, and be held if Slurm put it back.
        """
        self._ask("scontrol", ["hold", ",".join(ids)], _held, done)

    def release(self, ids: Sequence[str], done: Callable[[CancelAnswer], object]) -> None:
        """Release held jobs, so that they may start."""
        self._ask("scontrol", ["release", ",".join(ids)], _held, done)

    def ask(self, done: Callable[[ConfigAnswer], object]) -> None:
        """Ask the controller for the cluster's configuration."""
        self._ask("scontrol", ["show", "config"], _config, done)

    def look_for_config(self, done: Callable[[str], object]) -> None:
        """Ask why Slurm's programs find no configuration here; "" if they do, or if unknown.

        The controller is not asked.
        """

        def read(end: _End) -> str:
            return end.text if end.code and reading.is_unconfigured(end.said) else ""

        self._ask("scontrol", ["show", "hostnames", "n1"], read, done)

    def close(self) -> None:
        """End the calls under way without an answer; wait for `scancel` before.

        All its calls together have `LAST_CALLS_TIMEOUT` seconds.
        """
        until = time.monotonic() + LAST_CALLS_TIMEOUT
        for call in tuple(self._calls):
            call.close(max(0.0, until - time.monotonic()))
        self._calls.clear()

    def _squeue(self, which: Sequence[str], done: Callable[[QueueAnswer], object]) -> None:
        separator = f"|{secrets.token_hex(6)}|"
        form = f"--Format={reading.queue_format(separator)}"

        def read(end: _End) -> QueueAnswer:
            if end.code or end.late:
                return Unreachable(end.text)
            return QueueListing(reading.read_queue(end.out, separator))

        self._ask("squeue", ["--all", "--noheader", "--states=all", form, *which], read, done)

    def _ask(
        self,
        program: str,
        arguments: Sequence[str],
        read: Callable[[_End], T],
        done: Callable[[T], object],
    ) -> None:
        self._call(program, arguments, self._environ, lambda end: done(read(end)))

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
    """Return `environ` without Slurm's variables: its programs' settings, our own allocation."""
    return {name: value for name, value in environ.items() if not name.startswith(FAMILIES)}


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


def _submitted(end: _End) -> SubmitAnswer:
    if end.code == 0 and (id := reading.read_id(end.out)):
        return SubmissionAccepted(id)
    if end.code and not end.is_lost and reading.is_full(end.said):
        return Full(end.text)
    # Killed by a signal, or no number printed: the controller may have the job.
    if end.is_lost or not end.code or end.code < 0:
        return Unreachable(end.text)
    return SubmissionRefused(end.text, bool(reading.is_plain_no(end.said)))


def _shown(end: _End) -> QueueAnswer:
    if not end.is_lost and end.code and reading.is_unknown(end.out + end.said):
        return QueueListing(())
    rows = () if end.is_lost or end.code else reading.read_shown(end.out)
    return QueueListing(rows) if rows else Unreachable(end.text)


def _cancelled(end: _End) -> CancelAnswer:
    # Not by its status: 22.05 exits with 229 where all went well.
    if end.is_lost:
        return Unreachable(end.text)
    return Done() if reading.is_over_already(end.said) else SubmissionRefused(end.text)


def _held(end: _End) -> CancelAnswer:
    if end.is_lost:
        return Unreachable(end.text)
    over = reading.is_over_already(end.out + end.said)
    return Done() if end.code == 0 or over else SubmissionRefused(end.text)


def _config(end: _End) -> ConfigAnswer:
    if end.code or end.late:
        return Unreachable(end.text)
    version = reading.read_setting(end.out, "SLURM_VERSION")
    if not version:
        return Unreachable("scontrol show config: no version in its answer")
    size = reading.read_setting(end.out, "MaxArraySize")
    array = int(size) if size.isdigit() else 0
    parameters = reading.read_setting(end.out, "SchedulerParameters")
    if tasks := re.search(r"\bmax_array_tasks=(\d+)", parameters):
        array = min(array, int(tasks[1]))
    return Config(version, array)


# ── One call ────────────────────────────────────────────────────────────────────────────────────


class _End(Struct, frozen=True):
    """How a program ended. `late`: why it was killed or not started; `said`: its standard error."""

    program: str
    code: int | None
    out: str = ""
    said: str = ""
    late: str = ""

    @property
    def is_lost(self) -> bool:
        """True where it got no answer from the controller."""
        return bool(self.late or reading.is_unreachable(self.said))

    @property
    def text(self) -> str:
        """The failure in one line for people."""
        out = self.out if self.code and self.code > 0 else ""
        said = reading.one_line(self.said) or reading.one_line(out)
        if not said and not self.late:
            said = f"exit status {self.code}"
        return f"{self.program}: " + "; ".join(filter(None, (said, self.late)))


class _Call(Struct, eq=False):
    """One program under way: its output, its end, its time limit."""

    _loop: Loop
    _key: str
    _program: str
    _limit: float
    _over: Callable[[_End], object]
    _process: subprocess.Popen[bytes] | None = None
    _read: dict[int, tuple[IO[bytes], bytearray]] = field(default_factory=dict)

    def start(self, path: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        try:
            if not path:
                raise FileNotFoundError("not found; is this a machine that submits to Slurm?")
            self._process = subprocess.Popen(
                [path, *arguments], cwd="/", env=environ, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is ours, not theirs
            )  # fmt: skip
        except OSError as error:
            end = _End(self._program, None, late=str(error.strerror or error))
            self._loop.call_after(self._key, 0.0, lambda: self._over(end))
            return
        late = f"no answer within {self._limit:g} s"
        self._loop.call_after(self._key, self._limit, lambda: self._finish(late))
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
        if reading.RETRYING in so_far and self._process and stream is self._process.stderr:
            # sbatch now sleeps for longer and longer; the caller decides when to try again.
            self._finish()

    def _ended(self) -> None:
        """Finish once the process has exited, which may come after its output was closed."""
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
        """Kill the program unless it has ended; `scancel` gets `patience` seconds before that."""
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
            # A process that hangs on a file server dies only when the server answers: no waiting.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)


# ── Limits of the site ────────────────────────────────────────────────────────────────────────────
