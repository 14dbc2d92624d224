"""Running an engine's client: what it wrote, its end, and a time limit where one is set.

A client runs below an attendant (`attendant.py`), which ends it with this process.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from contextlib import ExitStack, suppress

from msgspec import Struct

from gpulaunch.base import helper_process
from gpulaunch.base.text import as_shown
from gpulaunch.containers.attendant import GRACE

KEPT_BYTES = 1 << 24
"""Bytes at most that are kept of an output: `image inspect` says some hundred KiB at the most."""
REAP_SECONDS = 1.0
"""Seconds for an attendant to kill and reap all, after its grace."""
ATTENDANT = "gpulaunch.containers.attendant"


class ClientEnd(Struct, frozen=True):
    """How a client ended: its status (128 and more: by a signal), and all that it wrote."""

    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Return what says why it failed: most clients say that to their standard error."""
        return self.err if self.err.strip() else self.out


class ClientSilentError(Exception):
    """The client did not end within its time, and is being killed."""


def run(line: list[str], seconds: float | None = None) -> ClientEnd:
    """Run a client to its end.

    Raises ClientSilentError after `seconds`; None: it may take as long as it does. Messages are in
    English, whatever the caller's language: they are read here.
    """
    out, err = _Output(), _Output()
    held, theirs = socket.socketpair()
    with ExitStack() as undo:
        undo.callback(held.close)
        with theirs:
            attendant = _attendant(line, theirs)
        undo.callback(_reap, attendant, held)
        assert attendant.stdout is not None
        assert attendant.stderr is not None
        undo.enter_context(attendant.stdout)
        undo.enter_context(attendant.stderr)
        outputs = {attendant.stdout.fileno(): out, attendant.stderr.fileno(): err}
        _take_all(outputs, held.fileno(), seconds)
        return ClientEnd(attendant.wait(), out.text(), err.text())


def _attendant(line: list[str], stdin: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        helper_process.command(ATTENDANT, json.dumps(line)),
        stdin=stdin.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,  # it outlives this process, to end the client
    )


def _reap(attendant: subprocess.Popen[bytes], held: socket.socket) -> None:
    held.close()
    with suppress(subprocess.TimeoutExpired):  # a client inside the kernel cannot be killed
        attendant.wait(GRACE + REAP_SECONDS)


def _take_all(outputs: dict[int, _Output], attendant: int, seconds: float | None) -> None:
    """Take what comes until the attendant's end of the socket is closed, and what is there then.

    The outputs' own ends may never come: what a client leaves may hold them.
    """
    end = None if seconds is None else time.monotonic() + seconds
    ended = False
    with selectors.DefaultSelector() as selector:
        for fd in (*outputs, attendant):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0 and not ended:
                raise ClientSilentError
            ready = [key.fd for key, _ in selector.select(0 if ended else left)]
            if ended and not ready:
                return
            for fd in ready:
                if fd != attendant and (data := os.read(fd, 1 << 16)):
                    outputs[fd].take(data)
                else:
                    selector.unregister(fd)
                    ended = ended or fd == attendant


class _Output:
    def __init__(self) -> None:
        self._all = bytearray()

    def take(self, data: bytes) -> None:
        self._all += data
        del self._all[:-KEPT_BYTES]

    def text(self) -> str:
        lines = bytes(self._all).decode(errors="replace").rstrip("\n").split("\n")
        return "\n".join(map(as_shown, lines))
