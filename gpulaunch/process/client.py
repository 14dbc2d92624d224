"""The supervisor's side of spawner and keeper pairs: sockets, messages, reports.

It owns the spawner's process and each pair's socket. It never waits for a job, never signals one
(keepers do), and never blocks: `on_readable` takes in what is there.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from gpulaunch.core.events import StopReason
from gpulaunch.core.model import Instant, Outcome
from gpulaunch.errors import GpulaunchError
from gpulaunch.peers import receive
from gpulaunch.process.command import Command, Main, Task
from gpulaunch.process.ends import End, end_from, read_end

KEEPER = Path(__file__).with_name("keeper.py")
SERVE = Path(__file__).with_name("serve.py")
"""A worker's own side: the program of a command with a task."""

_MAX_DESCRIPTORS = 253  # descriptors that a message brings (SCM_MAX_FD)


class SpawnerGoneError(GpulaunchError):
    """The spawner's process has died; start another one. Pairs forked before live on."""


@dataclass(frozen=True, slots=True)
class ProgramStarted:
    """The program runs as `pid`: its exec succeeded. `keeper` is the PID of its parent."""

    attempt: str
    pid: int
    keeper: int


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """No process of the attempt is left, and its end is in its file.

    `kept`: its worker stays, and waits for another item on this pair. `note` is a line for
    people about the worker, mostly empty. `no_space`: the disk was full, and nothing was run.
    """

    attempt: str
    outcome: Outcome
    leftovers: int
    started: Instant | None = None
    ended: Instant | None = None
    kept: bool = False
    note: str = ""
    no_space: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReaped:
    """No process is left of the worker that was to retire (or there was none)."""


@dataclass(frozen=True, slots=True)
class Unkillable:
    """Processes that SIGKILL has not ended for 8 s; the pair tries on and keeps its leases."""

    attempt: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """Both keepers are gone, and all processes below them. `attempt`: one whose end is lost."""

    attempt: str | None


@dataclass(frozen=True, slots=True)
class PairLeft:
    """The pair reads no more messages and gives its leases back; then it is Gone.

    It was idle while this process was stopped, or was never forked because its leases did not
    come. `attempt`: the one that was launched on it, and never begun.
    """

    attempt: str | None


@dataclass(frozen=True, slots=True)
class Lent:
    """Copies of the leases that the pair holds; the receiver closes them."""

    descriptors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartedCold:
    """The attempt is executed instead of going on in its server's interpreter; `why` in words.

    `for_good`: so would be every job of a server that has imported the same.
    """

    attempt: str
    why: str
    for_good: bool = False


Report: TypeAlias = (
    ProgramStarted | StartedCold | AttemptOver | WorkerReaped | Unkillable | PairLeft | Lent | Gone
)


class Spawner:
    """One process, executed once, that forks keeper pairs. `environ` is what jobs start from."""

    def __init__(
        self, python: str = sys.executable, environ: Mapping[str, str] | None = None
    ) -> None:
        self._said: IO[bytes] = _memory_file("keepers")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # If our own standard streams are closed, the socket has the number of one of them.
            control = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            self._process = subprocess.Popen(
                [python, "-I", "-S", str(KEEPER), str(control)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=_inherited() if environ is None else environ,
                pass_fds=[control],
                start_new_session=True,
            )
        except OSError as problem:
            self._socket.close()
            self._said.close()
            raise GpulaunchError(
                f"expected a Python to run keepers with, found {python}: {problem.strerror}"
            ) from problem
        finally:
            os.close(control)

    def fileno(self) -> int:
        """Return a descriptor that is readable only when the spawner is gone."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        """Return what spawner and keepers wrote to standard error: nothing unless one crashed."""
        return os.pread(self._said.fileno(), 65536, 0).decode("utf-8", "replace")

    def pair(
        self,
        leases: Sequence[int] = (),
        alive: int | None = None,
        link: int | None = None,
        gives_back: bool = False,
    ) -> Pair:
        """Return a new keeper pair that holds (copies of) these descriptors.

        `link`: a socket through which more leases come, in one message whose first byte says how
        many; if they do not come, the pair reports PairLeft. `gives_back`: an idle pair leaves, and
        closes its leases, when this process is stopped.

        Raises SpawnerGoneError. A pair that could not be forked reports Gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        passed = [theirs.fileno(), *([] if alive is None else [alive]), *leases]
        passed += [] if link is None else [link]
        message = {
            "alive": alive is not None,
            "fds": len(passed),
            "link": link is not None,
            "gives_back": gives_back,
        }
        with theirs:
            try:
                _send(self._socket, message, passed)
            except OSError as problem:
                ours.close()
                raise SpawnerGoneError(
                    f"the process that forks keepers (pid {self.pid}) is gone: {self.said()}"
                ) from problem
        return Pair(ours)

    def close(self) -> None:
        """Close the socket, and wait a second at most; the spawner exits once its pairs have."""
        if self._said.closed:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        _wait_readable(self._socket, 1.0)
        self._socket.close()
        try:
            self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            # The spawner outlives its pairs. It is our child until we exit, and then init's.
            self._process.returncode = 0
        self._said.close()

    def close_in_child(self) -> None:
        """Close a forked child's copies of the spawner's descriptors: it is not the child's own."""
        self._socket.close()
        self._said.close()
        self._process.returncode = 0

    def __enter__(self) -> Spawner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pair:
    """One pair of keepers with one set of leases; attempts run on it one after the other."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._attempt: str | None = None
        self._end_file = ""
        self._gone = False

    @property
    def attempt(self) -> str | None:
        """The attempt that runs on the pair: launched, and not reported as over."""
        return self._attempt

    def fileno(self) -> int:
        return self._socket.fileno()

    def launch(self, command: Command) -> None:
        """Start the attempt; reported by ProgramStarted, then AttemptOver or Gone."""
        if self._attempt is not None:
            raise RuntimeError(f"{self._attempt} runs here, {command.attempt} cannot")
        self._attempt, self._end_file = command.attempt, command.end
        with _memory_file("launch") as file:
            file.write(json.dumps(for_the_child(command)).encode())
            file.flush()
            self._tell(for_the_keeper(command), [file.fileno()])

    def stop(self, reason: StopReason, now: bool = False, by: str = "") -> None:
        """Stop the attempt, if one runs: TERM, the command's grace, KILL; `now`: KILL at once.

        The first reason decides the outcome's kind, unless the main process has ended by itself.
        """
        if self._attempt is not None:
            message = {"do": "stop", "attempt": self._attempt, "reason": reason, "by": by}
            self._tell({**message, "now": now})

    def retire(self, now: bool = False) -> None:
        """End the idle worker: close its input, TERM, KILL; reported by WorkerReaped."""
        if self._attempt is not None:
            raise RuntimeError(f"{self._attempt} runs here: its worker cannot retire")
        self._tell({"do": "retire", "now": now})

    def lend(self) -> None:
        """Ask for copies of the pair's leases; reported by Lent, or by PairLeft or Gone."""
        self._tell({"do": "lend"})

    def end(self) -> None:
        """End an idle pair, which gives its leases back; reported by Gone."""
        if self._attempt is not None:
            raise RuntimeError(f"{self._attempt} runs here: it cannot be ended as idle")
        self._tell({"do": "end"})

    def on_readable(self) -> list[Report]:
        """Return the reports that have come, without waiting. Gone is the last, and comes once."""
        return [
            report for message, fds in self._messages() for report in self._reports(message, fds)
        ]

    def close(self) -> None:
        """Close the socket. Keepers take that for the supervisor's death and stop the attempt."""
        self._socket.close()

    def _messages(self) -> Iterator[tuple[dict[str, Any] | None, list[int]]]:
        while not self._gone:
            try:
                data, fds = receive(self._socket, 65536, _MAX_DESCRIPTORS)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the pair left a message of ours unread; its last ones still come
            self._gone = not data
            yield (json.loads(data) if data else None), fds

    def _reports(self, message: dict[str, Any] | None, fds: Sequence[int]) -> Iterator[Report]:
        if message is None:
            yield from self._last_words()
        elif message["is"] == "started":
            yield ProgramStarted(message["attempt"], message["pid"], message["keeper"])
        elif message["is"] == "unkillable":
            # A guardian that sweeps because its monitor was killed does not know the attempt.
            if attempt := message["attempt"] or self._attempt:
                yield Unkillable(attempt, tuple(message["pids"]))
        elif message["is"] == "worker_gone":
            yield WorkerReaped()
        elif message["is"] == "left":
            attempt, self._attempt = self._attempt, None
            yield PairLeft(attempt)
        elif message["is"] == "lent":
            yield Lent(tuple(fds))
        elif message["is"] == "cold":
            yield StartedCold(message["attempt"], message["why"], message["for_good"])
        else:
            yield self._ended(end_from(message["end"]), message["kept"], message["note"])

    def _ended(self, end: End, kept: bool = False, note: str = "") -> AttemptOver:
        attempt, self._attempt = self._attempt, None
        name = attempt or end.attempt
        return AttemptOver(
            name,
            end.outcome,
            end.leftovers,
            end.started,
            end.ended,
            kept=kept,
            note=note,
            no_space=end.no_space,
        )

    def _last_words(self) -> Iterator[Report]:
        """Yield the end from its file, if the keeper died before it reported it; then Gone."""
        if self._attempt is not None:
            with contextlib.suppress(OSError):
                if (end := read_end(self._end_file)) is not None:
                    yield self._ended(end)
        attempt, self._attempt = self._attempt, None
        yield Gone(attempt)

    def _tell(self, message: dict[str, object], fds: Sequence[int] = ()) -> None:
        # A pair that is gone shows by its end of file; a full queue holds a stop already.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            _send(self._socket, message, fds)


def _send(to: socket.socket, message: Mapping[str, object], fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([json.dumps(message).encode()], rights, socket.MSG_NOSIGNAL)


def for_the_keeper(command: Command) -> dict[str, object]:
    """Return the keeper's part of a command; short, however long the command is."""
    return {
        "do": "launch",
        "attempt": command.attempt,
        "end": code(command.end),
        "outputs": bool(command.outputs),
        "timeout": command.timeout,
        "idle_timeout": command.idle_timeout,
        "grace": command.grace,
        "success_codes": sorted(command.success_codes),
        "worker": command.task is not None,
    }


def for_the_child(command: Command) -> dict[str, object]:
    """Return the rest of a command, which the process reads that becomes the job."""
    return {
        "attempt": command.attempt,
        "argv": _coded(command.argv),
        "env_set": {code(name): code(value) for name, value in command.env_set.items()},
        "env_unset": _coded(command.env_unset),
        "cwd": code(command.cwd),
        "log": code(command.log),
        "outputs": _coded(command.outputs),
        "hidden": None if command.hidden is None else _coded(command.hidden),
        "worker": None if command.task is None else _task(command, command.task),
        "main": None if command.main is None else _main(command.main),
    }


def _task(command: Command, task: Task) -> dict[str, object]:
    """Return a worker's item as `serve.py` reads it, which decodes names of files as we do."""
    return {
        "key": task.key,
        "values": dict(task.values),
        "env": dict(task.env),
        "items": task.items,
        "memory": task.memory,
        "load_timeout": task.load_timeout,
        "log": command.log,
        "cwd": command.cwd,
    }


def _main(main: Main) -> dict[str, object]:
    return {
        "argv": _coded(main.argv),
        "args": _coded(main.args),
        "name": code(main.name),
        "env": {code(name): code(value) for name, value in main.env.items()},
    }


def code(text: str) -> str:
    """Return the text's bytes for the kernel, a character each, so that any name survives JSON."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _coded(texts: Sequence[str]) -> list[str]:
    return [code(text) for text in texts]


def _inherited() -> dict[str, str]:
    """Return our environment without what the interpreter added in a C locale (PEP 538)."""
    environment = dict(os.environ)
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return environment
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        environment.pop("LC_CTYPE", None)
    return environment


def _memory_file(name: str) -> IO[bytes]:
    """Open a file without a name that is never on a disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create(f"gpulaunch-{name}"), "w+b")
    return tempfile.TemporaryFile(dir="/dev/shm")  # built for an old glibc


def _wait_readable(what: socket.socket, seconds: float) -> None:
    poller = select.poll()
    poller.register(what, select.POLLIN)
    poller.poll(seconds * 1000)
