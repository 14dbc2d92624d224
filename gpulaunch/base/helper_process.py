"""Python processes of our own, beside the one that has the run: started, watched, killed, reaped.

They do what may hang (a driver, a dead file server, a network) or what nobody is to wait for. Each
is a module with a `main()`, which gets its arguments from `sys.argv[2]` on; the first is this PID.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.loop import Loop

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds until a helper that died is started again: at first, and at most after doublings."""
MAX_RESTARTS = 8
"""Restarts in a row, within about two minutes, before a helper is given up."""
STEADY_SECONDS = 600.0
"""Seconds of life after which a helper's death begins a new row of restarts."""
LARGEST_LINE = 64 << 20
"""Bytes of a line that a helper says, at most."""
REAP_TIMEOUT = 1.0
"""Seconds to wait at the end for each helper that was killed."""

# Isolated (-I), and neither `-m` nor the file: each would put a directory of somebody's files, the
# working directory even, before the standard library.
# The threshold is that of `__main__`, for the same reason. A program that uses gpulaunch as a
# library may ignore SIGCHLD: helpers would never learn how their own children ended.
_START = (
    "import gc, json, signal, sys; gc.set_threshold(20_000);"
    " signal.signal(signal.SIGCHLD, signal.SIG_DFL);"
    " sys.path = json.loads(sys.argv[1]); from {} import main; main()"
)


def command(module: str, *arguments: str, title: str = "") -> list[str]:
    """Return the command line of a helper: `sys.path`, our PID, then these arguments.

    Last comes its name for a list of processes: `gpulaunch-` and the title, or the module's name.
    """
    own = [json.dumps(sys.path), str(os.getpid())]
    name = f"gpulaunch-{title or module.rpartition('.')[2]}"
    return [sys.executable, "-I", "-X", "utf8", "-c", _START.format(module), *own, *arguments, name]


def start(line: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a helper by its command line; `options` are Popen's. Raises OSError."""
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "bufsize": 0}
    return subprocess.Popen(
        line,
        **{**silent, **options},
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C at the terminal must not end the helper
    )


class SenselessError(ValueError):
    """A helper has said what has no meaning."""


def understood(message: bytes, kind: type[T]) -> T:
    """Return a helper's JSON as a value of this type. Raises SenselessError where it is none."""
    try:
        return msgspec.convert(json.loads(message), kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise SenselessError(str(error)) from None


class Restarts(Struct, frozen=True):
    """The deaths of a helper in a row, and when it was started last. `now`: monotonic seconds."""

    deaths: int = 0
    started: float | None = None

    def after_start(self, now: float) -> Restarts:
        return replace(self, started=now)

    def after_death(self, now: float) -> Restarts:
        """Count a death; a start that failed is one too. A long life begins a new row."""
        steady = self.started is not None and now - self.started > STEADY_SECONDS
        return Restarts(1 if steady else self.deaths + 1)

    @property
    def pause(self) -> float | None:
        """Seconds until the next start; None: the helper is given up."""
        if self.deaths > MAX_RESTARTS:
            return None
        return min(FIRST_PAUSE * 2.0 ** (self.deaths - 1), LONGEST_PAUSE)


class Helper:
    """A helper with a socket as its standard input, one at a time; started anew with `start`.

    `said` is called by the loop with each line that it prints (with SOCK_SEQPACKET: with each
    message that it sends), `ended` once when it is gone: with its exit status, or None where that
    cannot be told within a second. Where `said` raises SenselessError, and after a line without
    end, the helper is killed and counts as gone.
    """

    def __init__(
        self,
        loop: Loop,
        said: Callable[[bytes], object],
        ended: Callable[[int | None], object],
        kind: int = socket.SOCK_STREAM,
    ) -> None:
        self._loop = loop
        self._said = said
        self._ended = ended
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._restarts = Restarts()
        self._piece = b""  # of a line whose end has not come
        self.link: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(
        self, line: list[str], environ: Mapping[str, str] | None, cwd: str | None = None
    ) -> None:
        """Start the helper, and have the loop watch it. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, self._kind)
        with theirs, ExitStack() as undo:
            undo.callback(ours.close)
            ours.setblocking(False)
            self._loop.watch(ours.fileno(), self.read)
            undo.callback(self._loop.unwatch, ours.fileno())
            out = theirs.fileno() if self._kind == socket.SOCK_STREAM else subprocess.DEVNULL
            self._process = start(line, stdin=theirs.fileno(), stdout=out, env=environ, cwd=cwd)
            undo.pop_all()
        self.link, self._piece = ours, b""
        self._restarts = self._restarts.after_start(self._loop.now())

    def restart(self, by: Callable[[], object]) -> bool:
        """Call `by`, which starts it, after a pause that grows with each death in a row.

        False: it has died too often and is given up.
        """
        self._restarts = self._restarts.after_death(self._loop.now())
        if (pause := self._restarts.pause) is None:
            return False
        self._loop.call_after(self, pause, by)
        return True

    def read(self) -> None:
        """Call back for what has come, without waiting for more."""
        while self.link is not None:
            try:
                data = self.link.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                try:
                    for message in self._whole(data):
                        self._said(message)
                except SenselessError:
                    self.kill()
                    self._ended(None)
            else:
                status = self._status()
                self.kill()
                self._ended(status)

    def _whole(self, data: bytes) -> list[bytes]:
        if self._kind != socket.SOCK_STREAM:
            return [data]
        *lines, self._piece = (self._piece + data).split(b"\n")
        if len(self._piece) > LARGEST_LINE:
            raise SenselessError("a line without end")
        return lines

    def _status(self) -> int | None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(REAP_TIMEOUT)
        return None

    def kill(self) -> None:
        """End the helper, without `ended` being called. Waits for nothing."""
        if self.link is not None:
            self._loop.unwatch(self.link.fileno())
            self.link.close()
            self.link = None
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None
        self._killed = [process for process in self._killed if process.poll() is None]

    def finish(self, seconds: float) -> None:
        """Let the helper end by itself, at the end of file that it gets now; then `close`.

        Waits at most so many seconds for that; what it still says is passed over.
        """
        end = time.monotonic() + seconds
        with suppress(OSError):
            if self.link is not None:
                self.link.shutdown(socket.SHUT_WR)
                while (left := end - time.monotonic()) > 0:
                    self.link.settimeout(left)
                    if not self.link.recv(1 << 16):
                        break
        self.close()

    def close(self) -> None:
        """End the helper and reap all that were started. Idempotent."""
        self._loop.forget(self)
        self.kill()
        for process in self._killed:
            # One that is stuck inside the kernel cannot be waited for.
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAP_TIMEOUT)
        self._killed.clear()
