"""The client's end of the helper process (`probe`): asks one question at a time, within a limit.

Owns the process: starts it at the first question, kills it when a call into the driver hangs, and
starts another for the questions that are left. Knows nothing of cards.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Request: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = dict[str, Any]

START_LIMIT = 60.0

# Isolated (-I), and neither `-m` nor the file: each would put a directory of somebody's files, the
# working directory even, before the standard library.
_START = "import json, sys; sys.path = json.loads(sys.argv[1]); from {} import main"


def command(
    module: str, *arguments: str, package: str = "gpulaunch.gpus", title: str = ""
) -> list[str]:
    """Return the command line of a helper: its arguments are `sys.path`, our PID, then these."""
    start = _START.format(f"{package}.{module}") + "; main()"
    own = [json.dumps(sys.path), str(os.getpid())]
    return [sys.executable, "-I", "-c", start, *own, *arguments, f"gpulaunch-{title or module}"]


class DriverHelper:
    """A helper process. An answer is the request with more fields, or with an "error".

    `fileno()` stays the same, whatever becomes of the process. `limit` in seconds, per question;
    the start of the process is not counted in it.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, limit: float = 10.0) -> None:
        self.limit = limit
        self._environ = None if environ is None else dict(environ)
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._since = 0.0
        self._scarce = ""
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._heard = b""
        self._ready = False
        self._poll = select.epoll()

    def __enter__(self) -> DriverHelper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._poll.fileno()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def deadline(self) -> float | None:
        """The monotonic time at which the question under way is overdue; None without one."""
        if self._current is None:
            return None
        if self._scarce:
            return self._since
        return self._since + (self.limit if self._ready else max(self.limit, START_LIMIT))

    def ask(self, request: Request) -> None:
        self._queue.append(request)
        self._go_on()

    def on_readable(self) -> list[Answer]:
        """Return the answers that have come; the question of a helper that died gets an error."""
        if self._link is None:
            return []
        try:
            said = self._link.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            said = b""
        answers = self._lines(said) if said else self._reap()
        self._go_on()
        return answers

    def overdue(self, now: float) -> Answer | None:
        """Kill the helper if its question takes too long, and return an error; else None.

        A question that could not be asked, for want of processes or descriptors, is overdue at
        once: its error is "Unasked" and says nothing about a card.
        """
        if self.deadline is None or now < self.deadline:
            return None
        if self._scarce:
            return self._give_up("Unasked", f"the driver cannot be asked now: {self._scarce}")
        if not self._ready:
            return self._give_up("Hung", "the process that asks the driver does not start")
        return self._give_up("Hung", f"the driver did not answer for it within {self.limit:g} s")

    def run(self, requests: Iterable[Request]) -> list[Answer]:
        """Ask all of these and return the answers in order. Blocks up to the limit for each."""
        wanted = 0
        for request in requests:
            self.ask(request)
            wanted += 1
        answers: list[Answer] = []
        while len(answers) < wanted:
            rest = max(0.0, (self.deadline or 0.0) - time.monotonic())
            if self._poll.poll(rest):
                answers += self.on_readable()
            elif late := self.overdue(time.monotonic()):
                answers.append(late)
        return answers

    def close(self) -> None:
        """End the helper. Idempotent."""
        if self._poll.closed:
            return
        self._current = None
        self._scarce = ""
        self._queue.clear()
        self._kill()
        for process in self._killed:
            # One that is stuck inside the kernel cannot be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        self._poll.close()

    def _go_on(self) -> None:
        while self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._since = time.monotonic()
            try:
                link = self._link or self._start()
            except OSError as error:
                self._scarce = error.strerror or str(error)
                return
            # Either the helper died, which its end of file shows next, or it hangs: soon overdue.
            with contextlib.suppress(OSError):
                link.sendall(json.dumps(self._current).encode() + b"\n")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            ours.setblocking(False)
            self._poll.register(ours.fileno(), select.EPOLLIN)  # closing it undoes this
            self._process = subprocess.Popen(
                command("probe"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,  # a Ctrl-C at the terminal must not end the helper
            )
            stack.pop_all()
        self._link = ours
        self._ready = False
        return ours

    def _lines(self, said: bytes) -> list[Answer]:
        *lines, self._heard = (self._heard + said).split(b"\n")
        if lines and not self._ready:
            del lines[0]
            self._ready = True
            self._since = time.monotonic()
        if lines:
            self._current = None  # one question, one line
        return [json.loads(line) for line in lines]

    def _reap(self) -> list[Answer]:
        process = self._process
        kind, how = "Crashed", ""
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(1.0)
                how = f" (by signal {-status})" if status < 0 else f" (status {status})"
                if status in (-signal.SIGKILL, -signal.SIGTERM):
                    kind = "Unasked"  # somebody, or the kernel for memory, killed it: no card did
        answer = self._give_up(kind, f"the process that asked the driver died{how}")
        return [] if answer is None else [answer]

    def _give_up(self, kind: str, text: str) -> Answer | None:
        request, self._current = self._current, None
        self._scarce = ""
        self._kill()
        self._go_on()
        if request is None:
            return None
        return {**request, "error": {"code": None, "kind": kind, "text": text}}

    def _kill(self) -> None:
        if self._link is not None:
            self._poll.unregister(self._link.fileno())
            self._link.close()
            self._link = None
        self._heard = b""
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None
        self._killed = [process for process in self._killed if process.poll() is None]
