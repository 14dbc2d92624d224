"""Runs a process for each message, which the run's loop watches: started without blocking, reaped.

Owns the processes: none outlives `close`, its time, or (by the kernel's doing) this process. Knows
nothing of what is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from gpulaunch import helper_process
from gpulaunch.loop import Loop

Done: TypeAlias = Callable[[str], None]
"""A callback, called once with why the message failed, or ""."""

DELIVERY_TIMEOUT = 30.0
"""Seconds that a message may take, its process's start included."""
KILL_MARGIN = 2.0


def start(request: Mapping[str, Any], seconds: float) -> subprocess.Popen[bytes]:
    """Start a sender with its request, in a session of its own. Raises OSError."""
    fd = os.memfd_create("request", os.MFD_CLOEXEC)
    try:
        # Memory, not a pipe: nothing blocks, and no address is on a command line or a disk.
        os.write(fd, json.dumps(request).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        line = helper_process.command("gpulaunch.notify.sender", str(seconds))
        return helper_process.start(line, stdin=fd, stdout=subprocess.PIPE)
    finally:
        os.close(fd)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a sender and what it started, unless it has ended by itself, and reap it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    if process.stdout is not None:
        process.stdout.close()


_LONGEST_ANSWER = 1 << 20
"""Bytes of a sender's answer that are read."""


class _Sending(Struct):
    target: int
    process: subprocess.Popen[bytes]
    done: Done
    heard: bytes = b""

    @property
    def fd(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()


class Delivery:
    """The messages under way, any number; `busy` has their targets."""

    def __init__(self, loop: Loop, limit: float = DELIVERY_TIMEOUT) -> None:
        self._loop = loop
        self._limit = limit
        self._sending: dict[int, _Sending] = {}

    @property
    def busy(self) -> set[int]:
        """The targets of the messages under way."""
        return {sending.target for sending in self._sending.values()}

    def send(self, target: int, request: Mapping[str, Any], done: Done) -> None:
        """Send a message. Never blocks, never raises; `done` is called by the loop, or at once."""
        try:
            process = start(request, self._limit)
        except OSError as error:
            done(f"no process can be started: {error.strerror}")
            return
        sending = _Sending(target, process, done)
        os.set_blocking(sending.fd, False)
        self._sending[sending.fd] = sending
        self._loop.watch(sending.fd, partial(self._hear, sending))
        late = f"no answer within {self._limit:g} s"
        self._loop.call_after(
            f"notify:{sending.fd}", self._limit + KILL_MARGIN, partial(self._finish, sending, late)
        )

    def give_up(self, why: str) -> None:
        """End all messages under way; call each one's `done` with why."""
        for sending in list(self._sending.values()):
            self._finish(sending, why)

    def close(self) -> None:
        """End all messages under way without a callback. Idempotent."""
        for sending in list(self._sending.values()):
            self._drop(sending)

    def _hear(self, sending: _Sending) -> None:
        try:
            said = os.read(sending.fd, 1 << 16)
        except BlockingIOError:
            return
        sending.heard = (sending.heard + said)[:_LONGEST_ANSWER]
        if not said:
            self._finish(sending, self._why(sending))

    def _why(self, sending: _Sending) -> str:
        """Return the sender's answer, or how it ended without one; its output is closed already."""
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = sending.process.wait(1.0)
        try:
            return str(json.loads(sending.heard)["trouble"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        if status in (-signal.SIGALRM, -signal.SIGKILL):
            return f"no answer within {self._limit:g} s"
        return "the process that was to send it died"

    def _finish(self, sending: _Sending, why: str) -> None:
        self._drop(sending)
        sending.done(why)

    def _drop(self, sending: _Sending) -> None:
        fd = sending.fd
        self._loop.forget(f"notify:{fd}")
        self._loop.unwatch(fd)
        del self._sending[fd]
        end(sending.process)
