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
"""A worker's own side: what a command with a task starts."""

_MAX_DESCRIPTORS = 253  # descriptors that a message brings (SCM_MAX_FD)


class SpawnerGoneError(GpulaunchError):
    """The spawner's process has died; start another one. Pairs forked before live on."""


@dataclass(frozen=True, slots=True)
class ProgramStarted:
    """The program runs: its exec succeeded."""

    attempt: str
    pid: int


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """Nothing of the attempt is left, and its end is in its file.

    `kept`: but for its worker, which waits for another item on this pair. `note` is a line for
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
    """Nothing is left of the worker that was to retire (or there was none)."""


@dataclass(frozen=True, slots=True)
class Unkillable:
    """SIGKILL has not ended these processes for 8 s; the pair tries on, and keeps its leases."""

    attempt: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """Both keepers are gone, and nothing of what they ran is left. `attempt`: its end is lost."""

    attempt: str | None


@dataclass(frozen=True, slots=True)
class PairLeft:
    """The pair takes nothing in any more, and gives its leases back; then it is Gone.

    It had nothing to run while this process was stopped, or was never forked: the leases were not
    to be had. `attempt`: what was launched on it, and never begun.
    """

    attempt: str | None


@dataclass(frozen=True, slots=True)
class Lent:
    """Copies of the leases that the pair holds: the receiver's to close."""

    descriptors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartedCold:
    """It was to go on in its server's interpreter, and is executed instead; `why` in words.

    `for_good`: so would be every other job of a server that has imported the same.
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
            # Where our own standard streams are closed, the socket has the number of one.
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
        """Readable when, and only when, the spawner is gone."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        """What spawner and keepers wrote to standard error: nothing, unless one has crashed."""
        return os.pread(self._said.fileno(), 65536, 0).decode("utf-8", "replace")

    def pair(
        self,
        leases: Sequence[int] = (),
        alive: int | None = None,
        link: int | None = None,
        gives_back: bool = False,
    ) -> Pair:
        """A new keeper pair that holds (copies of) these descriptors.

        `link`: a socket through which more of them come, in one message that begins with a byte
        that says how many; where they do not come, the pair has Left. `gives_back`: it leaves, and
        lets all of them go, when nothing runs on it and this process is stopped.

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
        """Let it go: it ends by itself when its pairs have ended; waited for at most a second."""
        if self._said.closed:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        _wait_readable(self._socket, 1.0)
        self._socket.close()
        try:
            self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            # It has pairs to outlive. It is our child until we end, and then init's.
            self._process.returncode = 0
        self._said.close()

    def close_in_child(self) -> None:
        """In a forked child, to which the spawner is no child: give up the copy of its socket."""
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
        """The attempt that it runs: launched, and not reported as ended."""
        return self._attempt

    def fileno(self) -> int:
        return self._socket.fileno()

    def launch(self, command: Command) -> None:
        """Start the attempt; answered by Started and Ended, or Ended alone, or Gone."""
        if self._attempt is not None:
            raise RuntimeError(f"{self._attempt} runs here, {command.attempt} cannot")
        self._attempt, self._end_file = command.attempt, command.end
        with _memory_file("launch") as file:
            file.write(json.dumps(for_the_child(command)).encode())
            file.flush()
            self._tell(for_the_keeper(command), [file.fileno()])

    def stop(self, reason: StopReason, now: bool = False, by: str = "") -> None:
        """TERM, the command's grace, KILL; `now`: KILL at once. Nothing, where nothing runs.

        The first reason decides the outcome's kind, unless the main process has ended by itself.
        """
        if self._attempt is not None:
            message = {"do": "stop", "attempt": self._attempt, "reason": reason, "by": by}
            self._tell({**message, "now": now})

    def retire(self, now: bool = False) -> None:
        """End the worker that stayed: end of its input, TERM, KILL; answered by WorkerReaped."""
        if self._attempt is not None:
            raise RuntimeError(f"{self._attempt} runs here: its worker cannot retire")
        self._tell({"do": "retire", "now": now})

    def lend(self) -> None:
        """Ask for copies of the leases that it holds; answered by Lent, or by Left or Gone."""
        self._tell({"do": "lend"})

    def end(self) -> None:
        """An idle pair finishes and gives its leases back; answered by Gone."""
        if self._attempt is not None:
            raise RuntimeError(f"{self._attempt} runs here: it cannot be ended as idle")
        self._tell({"do": "end"})

    def on_readable(self) -> list[Report]:
        """What has come, without waiting. Gone is the last one, and comes once."""
        return [
            report for message, fds in self._messages() for report in self._reports(message, fds)
        ]

    def close(self) -> None:
        """To the keepers this is the supervisor's death: what runs is ended."""
        self._socket.close()

    def _messages(self) -> Iterator[tuple[dict[str, Any] | None, list[int]]]:
        while not self._gone:
            try:
                data, fds = receive(self._socket, 65536, _MAX_DESCRIPTORS)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it left a message of ours unread; its last ones to us still come
            self._gone = not data
            yield (json.loads(data) if data else None), fds

    def _reports(self, message: dict[str, Any] | None, fds: Sequence[int]) -> Iterator[Report]:
        if message is None:
            yield from self._last_words()
        elif message["is"] == "started":
            yield ProgramStarted(message["attempt"], message["pid"])
        elif message["is"] == "unkillable":
            # The guardian, which sweeps when the monitor one was killed, knows no attempt.
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
        """A keeper may have been killed between writing the end and telling it."""
        if self._attempt is not None:
            with contextlib.suppress(OSError):
                if (end := read_end(self._end_file)) is not None:
                    yield self._ended(end)
        attempt, self._attempt = self._attempt, None
        yield Gone(attempt)

    def _tell(self, message: dict[str, object], fds: Sequence[int] = ()) -> None:
        # A pair that is gone says so by its end of file; a full queue holds a stop already.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            _send(self._socket, message, fds)


def _send(to: socket.socket, message: Mapping[str, object], fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([json.dumps(message).encode()], rights, socket.MSG_NOSIGNAL)


def for_the_keeper(command: Command) -> dict[str, object]:
    """What it goes by while the attempt runs; short, whatever the command is."""
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
    """The rest, which the process reads that becomes the job."""
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
    """As the worker's own side reads it, which decodes names of files as we do."""
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
    """The bytes that the kernel is to see, a character each: any name survives JSON."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _coded(texts: Sequence[str]) -> list[str]:
    return [code(text) for text in texts]


def _inherited() -> dict[str, str]:
    """Our environment, less what the interpreter itself put there in a C locale (PEP 538)."""
    environment = dict(os.environ)
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return environment
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        environment.pop("LC_CTYPE", None)
    return environment


def _memory_file(name: str) -> IO[bytes]:
    """A file without a name that is never on a disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create(f"gpulaunch-{name}"), "w+b")
    return tempfile.TemporaryFile(dir="/dev/shm")  # built for an old glibc


def _wait_readable(what: socket.socket, seconds: float) -> None:
    poller = select.poll()
    poller.register(what, select.POLLIN)
    poller.poll(seconds * 1000)
