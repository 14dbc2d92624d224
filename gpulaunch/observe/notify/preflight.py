"""Runs the sender's processes: one for each message, one that checks `notify:` before a run.

The check says what would keep messages from arriving, before anything is started. Apprise itself
reads the addresses, in a process of its own, while the caller does something else. The check sends
nothing. Nothing here knows what a message says, or tells an address.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from gpulaunch.base import helper_process
from gpulaunch.base.extras import missing
from gpulaunch.base.loop import Loop
from gpulaunch.jobfile.notify_spec import Target, secret_in
from gpulaunch.jobfile.shell import first_program
from gpulaunch.observe.present import words

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
        line = helper_process.command("gpulaunch.observe.notify.sender", str(seconds))
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
    """The messages under way, any number; `busy` has their targets.

    Owns their processes, which the run's loop watches: started without blocking, reaped. None
    outlives `close`, its time, or (by the kernel's doing) this process.
    """

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


# ── Check ─────────────────────────────────────────────────────────────────────────────────────────

SECONDS = 20.0
_NAMES = {
    "finish": "finish",
    "first_failure": "first failure",
    "paused": "pause",
    "gpu_idle": "idle card",
}


class Concern(Struct, frozen=True):
    """`key`: the field of the target it is about. `wrong`: a mistake of the file, no warning."""

    target: Target
    key: str
    text: str
    wrong: bool = False


class Looking:
    """Starts to look at once; `concerns` waits for what comes of it. Close it in any case.

    `kept`: each run keeps a copy of the file that has the targets.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        environ: Mapping[str, str],
        base: Path,
        kept: bool = True,
    ) -> None:
        self._targets = targets
        self._environ = environ
        self._base = base
        self._kept = kept
        self._lack = missing("notify") if targets else ""
        self._addresses = {
            number: address
            for number, target in enumerate(targets)
            if (address := target.address(environ))
        }
        self._process: subprocess.Popen[bytes] | None = None
        if self._addresses and not self._lack:
            with suppress(OSError):  # processes are scarce: no mistake of the file
                self._process = start({"look": list(self._addresses.values())}, SECONDS)

    def __enter__(self) -> Looking:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process)

    def concerns(self) -> list[Concern]:
        """Return the concerns in the file's order. Blocks for the looks, SECONDS at most."""
        looks = self._looks()
        return [
            concern
            for number, target in enumerate(self._targets)
            for concern in self._of(target, *looks.get(number, ("", False)))
        ]

    def _looks(self) -> dict[int, tuple[str, bool]]:
        """Return for each checked address why it would fail, and whether the address is wrong."""
        try:
            said = self._process.communicate(timeout=SECONDS)[0] if self._process else b""
            found = json.loads(said)["looks"]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            return dict.fromkeys(self._addresses, ("it could not be looked at", False))
        return dict(zip(self._addresses, map(tuple, found), strict=True))

    def _of(self, target: Target, why: str, wrong: bool) -> Iterator[Concern]:
        if target.run is not None:
            if lack := self._lacks(target.run):
                yield Concern(target, "run", lack)
        elif self._lack:
            yield Concern(target, "to", f"telling an address needs {self._lack}", wrong=True)
        elif target.variable:
            if target.variable not in self._environ:
                text = f"{target.variable} is not set in this environment: nobody is told"
                yield Concern(target, "to", text)
            elif why or not self._environ[target.variable]:
                said = why or "it is empty"
                yield Concern(target, "to", f"the address in {target.variable}: {said}")
        else:
            if why:
                yield Concern(target, "to", why, wrong)
            if self._kept and secret_in(target.to or ""):
                yield Concern(
                    target,
                    "to",
                    "a password or token in the file, of which each run keeps a copy; put the"
                    " address into a variable and write env:NAME",
                )

    def _lacks(self, run: str | tuple[str, ...]) -> str:
        """Return why a command could not be started, as far as known; else ""."""
        program = first_program(run, self._environ) if isinstance(run, str) else run[0]
        if not program:
            return ""
        if "/" in program:
            there = self._base / program
            found = there.is_file() and os.access(there, os.X_OK)
        else:
            found = shutil.which(program, path=self._environ.get("PATH")) is not None
        return "" if found else f"there is no program {words.visible(program)} here"


def describe(target: Target) -> str:
    """`notify[0] (env:NTFY_URL) on finish, first failure, every 50 failures`."""
    when = [said for name, said in _NAMES.items() if name in target.on]
    if target.every:
        when.append("every failure" if target.every == 1 else f"every {target.every} failures")
    return f"{target.name} on {', '.join(when)}"
