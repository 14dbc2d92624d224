"""The signals that a carrier hears, for `poll`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

PASSED = [
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
]  # fmt: skip


class Signals:
    """Hears the signals that are passed on, and that a child ended.

    What whoever started the carrier ignores (nohup, a script's `&`) is ignored on. `asked`: TERM
    came, whose sender waits for the end.
    """

    def __init__(self) -> None:
        self.asked = False
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.hear(signal.SIGCHLD)
        for number in PASSED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self.hear(number)

    def hear(self, number: int) -> None:
        signal.signal(number, lambda *_: None)

    def wait(self, until: float | None, *others: int) -> list[int]:
        """Wait for a signal, for one of the `others`, or until then; return those that are ready.

        `until`: by the monotonic clock; None: without end.
        """
        poller = select.poll()
        for fd in (self.fd, *others):
            poller.register(fd, select.POLLIN)
        left = None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1
        return [fd for fd, _ in poller.poll(left)]

    def take(self) -> list[int]:
        """Return the signals that came, but for the ends of children."""
        came = b""
        with contextlib.suppress(BlockingIOError):
            came = os.read(self.fd, 65536)
        self.asked = self.asked or signal.SIGTERM in came
        return [number for number in came if number != signal.SIGCHLD]
