"""The supervisor's side of spawner and keeper pairs: sockets, messages, reports.

It owns the spawner's process and each pair's socket. It never waits for a job, never signals one
(keepers do), and never blocks: `on_readable` takes in what is there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TypeAlias

import msgspec
from msgspec import Struct

from gpulaunch.agent.client import PairLink, decoded_json, new_pair, spawn
from gpulaunch.agent.launch import behind_message, launch_message, retire_message, stop_message
from gpulaunch.agent.proc import own_environment
from gpulaunch.agent.wire import coded, coded_all, coded_dict, coded_text, memory_file, packed
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.events import StopReason
from gpulaunch.core.model import End, SentWarning
from gpulaunch.engines.command import Command, Main, Task
from gpulaunch.journal.ends import EndRecord, count, end_from, read_end, seconds, text, warning_from

_DECODER = msgspec.json.Decoder(dict[str, Any])


SENSELESS = (ValueError, LookupError, TypeError, AttributeError, msgspec.MsgspecError)
"""What reading a message raises that no keeper of this version has sent."""


class SpawnerGoneError(GpulaunchError):
    """The spawner's process has died; start another one. Pairs forked before live on."""


class ProgramStarted(Struct, frozen=True):
    """The program runs as `pid`: its exec succeeded. `keeper` is the PID of its parent.

    `keeper_start`: when that started, in clock ticks since boot. `spent`: the CPU seconds of all
    that it had reaped before the attempt.
    """

    attempt: str
    pid: int
    keeper: int
    keeper_start: int | None = None
    spent: float | None = None


class ProgramWarned(Struct, frozen=True):
    """The program was sent the command's warning, or none of its processes takes that signal."""

    attempt: str
    warning: SentWarning


class AttemptOver(Struct, frozen=True):
    """No process of the attempt is left, and its end is in its file.

    `kept`: its worker stays, and waits for another item on this pair. `note` is a line for
    people about the worker, mostly empty. `no_space`: the disk was full, and nothing was run.
    `cpu`: the CPU seconds of all that was reaped during the attempt; None of a worker's item.
    """

    attempt: str
    end: End
    kept: bool = False
    note: str = ""
    no_space: bool = False
    cpu: float | None = None


class Unbegun(Struct, frozen=True):
    """The attempt was launched behind another one, and never begins here."""

    attempt: str


class WorkerReaped(Struct, frozen=True):
    """No process is left of the worker that was to retire (or there was none)."""


class Unkillable(Struct, frozen=True):
    """Processes that SIGKILL has not ended for 8 s; the pair tries on and keeps its leases."""

    attempt: str
    pids: tuple[int, ...]


class Gone(Struct, frozen=True):
    """Both keepers are gone, and all processes below them.

    `attempt`: the attempt that ran on the pair, whose end is lost. `unread`: the pair was killed
    before it read the launch of that attempt, which therefore never began.
    """

    attempt: str | None
    unread: bool = False


class StartedCold(Struct, frozen=True):
    """The attempt is executed instead of going on in its server's interpreter; `why` in words.

    `for_good`: so would be every job of a server that has imported the same.
    """

    attempt: str
    why: str
    for_good: bool = False


Report: TypeAlias = (
    ProgramStarted
    | ProgramWarned
    | StartedCold
    | AttemptOver
    | Unbegun
    | WorkerReaped
    | Unkillable
    | Gone
)


_left: list[int] = []
"""Processes of spawners that outlived their closing, which nobody has reaped."""


def reap() -> int:
    """Reap what is over of closed spawners; return how many still live, as their pairs do.

    A notebook closes one executor after the other, and is the parent of all their spawners.
    """
    _left[:] = filter(_lives, _left)
    return len(_left)


def _lives(pid: int) -> bool:
    """Tell whether a child lives; reap it if not."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:  # reaped by somebody else, or the child of a process that forked
        return False


class Spawner:
    """One process, executed once, that forks keeper pairs. `environ` is what jobs start from.

    `program` is that of the keepers (`engines.programs`).
    """

    def __init__(self, program: str, environ: Mapping[str, str] | None = None) -> None:
        self._said: IO[bytes] = memory_file("keepers")
        base = own_environment() if environ is None else environ
        reap()
        try:
            self._process, self._socket = spawn([program], base, stderr=self._said)
        except OSError as problem:
            self._said.close()
            raise GpulaunchError(f"{program} cannot be started: {problem.strerror}") from problem

    def fileno(self) -> int:
        """Return a descriptor that is readable only when the spawner is gone."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        """Return what spawner and keepers wrote to standard error: nothing unless one crashed."""
        return os.pread(self._said.fileno(), 65536, 0).decode("utf-8", "replace")

    def pair(self, leases: Sequence[int] = (), alive: int | None = None) -> Pair:
        """Return a new keeper pair that holds (copies of) these descriptors.

        Raises SpawnerGoneError. A pair that could not be forked reports Gone.
        """
        try:
            return Pair(new_pair(self._socket, leases, alive))
        except OSError as problem:
            raise SpawnerGoneError(
                f"the process that forks keepers (pid {self.pid}) is gone: {self.said()}"
            ) from problem

    def close(self) -> None:
        """Close the socket, and wait a second at most; the spawner exits once its pairs have."""
        if self._said.closed:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(1.0)
            self._socket.recv(1)
        self._socket.close()
        try:
            self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            # The spawner outlives its pairs. It is our child until we exit, and then init's.
            _left.append(self.pid)
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
        self._link = PairLink(ours, _decoded)
        self._runs: Command | None = None
        self._follows: Command | None = None
        self._launched_last = False  # the last message starts the attempt that runs
        self._distrusted = False

    @property
    def attempt(self) -> str | None:
        """The attempt that runs on the pair: launched, and not reported as over."""
        return None if self._runs is None else self._runs.attempt

    def fileno(self) -> int:
        return self._link.socket.fileno()

    def launch(self, command: Command) -> None:
        """Start the attempt; reported by ProgramStarted, then AttemptOver or Gone."""
        if self._runs is not None:
            raise RuntimeError(f"{self.attempt} runs here, {command.attempt} cannot")
        self._runs = command
        self._tell(message_of(command), launches=True)

    def launch_behind(self, command: Command) -> None:
        """Have the worker go on with this attempt as soon as the one that runs has ended.

        Reported by ProgramStarted, after the AttemptOver of the one before, or by Unbegun: where
        the worker does not stay, or `take_back` or `stop` come before it begins.
        """
        if self._runs is None or self._follows is not None:
            raise RuntimeError(f"{command.attempt} cannot follow {self.attempt}")
        self._follows = command
        self._tell(behind_message(message_of(command)))

    def take_back(self, attempt: str) -> None:
        """Withdraw an attempt that was launched behind another, unless it has begun."""
        self._tell(packed("back", coded_text(attempt)))

    def stop(
        self,
        reason: StopReason,
        now: bool = False,
        by: str = "",
        attempt: str | None = None,
        gently: bool = False,
    ) -> None:
        """Stop the attempt, if one runs: TERM, the command's grace, KILL; `now`: KILL at once.

        `gently`: where the command has a warning, that comes first, and TERM as long after it as
        the warning comes before a timeout.

        The first reason decides the outcome's kind, unless the main process has ended by itself.
        `attempt`: None is the one that runs; one that is behind it, and has not begun, is Unbegun.
        """
        attempt = attempt or self.attempt
        if attempt is not None:
            self._tell(stop_message(attempt, reason, by, now, gently))

    def retire(self, now: bool = False) -> None:
        """End the idle worker: close its input, TERM, KILL; reported by WorkerReaped."""
        if self._runs is not None:
            raise RuntimeError(f"{self.attempt} runs here: its worker cannot retire")
        self._tell(retire_message(now))

    def end(self) -> None:
        """End an idle pair, which gives its leases back; reported by Gone."""
        if self._runs is not None:
            raise RuntimeError(f"{self.attempt} runs here: it cannot be ended as idle")
        self._tell(packed("end"))

    def on_readable(self) -> list[Report]:
        """Return the reports that have come, without waiting. Gone is the last, and comes once.

        What follows an end is left for the next call: the pair stays readable then.
        """
        reports: list[Report] = []
        for message in self._link.messages():
            try:
                reports += self._reports(message)
            except SENSELESS:
                self._distrust()
            if reports and isinstance(reports[-1], AttemptOver):
                break
        return reports

    def _distrust(self) -> None:
        """Believe nothing that the pair still says, and have it end its attempt and itself.

        To keepers the end of the stream is the supervisor's death. Gone is reported once no process
        is left.
        """
        self._distrusted = True
        with contextlib.suppress(OSError):
            self._link.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket. Keepers take that for the supervisor's death and stop the attempt."""
        self._link.socket.close()

    def _tell(self, message: bytes, launches: bool = False) -> None:
        self._launched_last = launches
        self._link.tell(message)

    def _reports(self, message: dict[str, Any] | None) -> Iterator[Report]:
        if message is None:
            yield from self._last_words()
        elif self._distrusted:
            self._distrust()
        elif message["is"] == "started":
            yield msgspec.convert(message, ProgramStarted)
        elif message["is"] == "warned":
            if warning := warning_from(message["warned"]):
                yield ProgramWarned(text(message["attempt"]), warning)
        elif message["is"] == "unkillable":
            # A guardian that sweeps because its monitor was killed does not know the attempt.
            if attempt := message["attempt"] or self.attempt:
                yield Unkillable(text(attempt), tuple(map(count, message["pids"])))
        elif message["is"] == "worker_gone":
            yield WorkerReaped()
        elif message["is"] == "unbegun":
            unbegun = text(message["attempt"])
            if self.attempt == unbegun:
                self._runs = None
            else:
                self._follows = None
            yield Unbegun(unbegun)
        elif message["is"] == "cold":
            yield msgspec.convert(message, StartedCold)
        else:
            kept, note, cpu = bool(message["kept"]), text(message["note"]), message["cpu"]
            cpu = None if cpu is None else seconds(cpu)
            yield self._ended(end_from(message["end"]), kept, note, cpu)

    def _ended(
        self, record: EndRecord, kept: bool = False, note: str = "", cpu: float | None = None
    ) -> AttemptOver:
        over = self.attempt or record.attempt
        self._runs, self._follows = self._follows, None
        return AttemptOver(over, record.end, kept, note, record.no_space, cpu)

    def _last_words(self) -> Iterator[Report]:
        """Yield the end from its file, if the keeper died before it reported it; then Gone."""
        if self._runs is not None:
            with contextlib.suppress(OSError):
                record = read_end(self._runs.end, self._runs.slot)
                # In a slot, the record may be of the attempt before, whose end is known.
                if record is not None and record.attempt == self.attempt:
                    yield self._ended(record)
        unread = self._launched_last and self._link.unread
        yield Gone(self._forget(), unread)

    def _forget(self) -> str | None:
        attempt, self._runs, self._follows = self.attempt, None, None
        return attempt


def _decoded(message: bytes) -> dict[str, Any]:
    """Read a pair's message; `json` takes four times as long."""
    try:
        return _DECODER.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return decoded_json(message)  # text that UTF-8 cannot hold
    except (ValueError, RecursionError):
        return {}


def message_of(command: Command) -> bytes:
    """Return the message that starts the command's attempt."""
    return launch_message(for_the_keeper(command), for_the_child(command))


def for_the_keeper(command: Command) -> dict[str, object]:
    """Return the keeper's part of a command; short, however long the command is."""
    return {
        "attempt": command.attempt,
        "end": coded(command.end),
        "slot": command.slot,
        "cgroup": command.cgroup and coded(command.cgroup),
        "timeout": command.timeout,
        "warn_signal": command.warn.signal if command.warn else None,
        "warn_before": command.warn.before if command.warn else None,
        "idle_timeout": command.idle_timeout,
        "grace": command.grace,
        "success_codes": sorted(command.success_codes),
    }


def for_the_child(command: Command) -> dict[str, object]:
    """Return the rest of a command, which the process reads that becomes the job."""
    return {
        "argv": coded_all(command.argv),
        "env_set": coded_dict(command.env_set),
        "env_unset": coded_all(command.env_unset),
        "cwd": coded(command.cwd),
        "log": coded(command.log),
        "outputs": coded_all(command.outputs),
        "kept_outputs": coded_all(command.kept_outputs),
        "hidden": None if command.hidden is None else coded_all(command.hidden),
        "cpus": command.cpus and list(map(str, command.cpus)),
        "worker": None if command.task is None else _task(command, command.task),
        "main": None if command.main is None else _main(command.main),
    }


def _task(command: Command, task: Task) -> dict[str, object]:
    """Return an item and its limits; `agent/worker` reads it, and decodes file names as we do."""
    own = {"log": command.log, "cwd": command.cwd}
    return {
        "key": task.key,
        "items": task.items,
        "memory": task.memory,
        "load_timeout": task.load_timeout,
        "item": {**own, "env": dict(task.env), "values": dict(task.values)},
    }


def _main(main: Main) -> dict[str, object]:
    return {
        "argv": coded_all(main.argv),
        "args": coded_all(main.args),
        "name": coded(main.name),
        "env": coded_dict(main.env),
    }
