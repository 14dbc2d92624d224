"""The signals by which an attempt is to be stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator


class StopSignals:
    """The stops asked for: TERM and USR1 with the job's grace; USR2, or TERM after either, at once.

    Slurm sends TERM, to the job as well; the client sends the others. The client's wish is also in
    its file, which is read without any signal: both are the same wish. INT and HUP are ignored:
    there is no terminal here.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self) -> None:
        self.stop = self.now = self.signalled = False
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in self.SIGNALS:
            signal.signal(number, self.hear)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def hear(self, number: int, _: object) -> None:
        if number == signal.SIGUSR2 or (number == signal.SIGTERM and self.signalled):
            self.now = True
        self.stop = self.signalled = True

    def read(self, now: bool) -> None:
        """Take in a stop that was read from the client's file."""
        self.stop, self.now = True, self.now or now

    def wait(self, seconds: float | None, *others: int) -> None:
        """Wait for a signal, for one of the `others` to be readable, or for so many seconds."""
        poller = select.poll()
        for fd in (self.fd, *others):
            poller.register(fd, select.POLLIN)
        poller.poll(None if seconds is None else seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block our signals, so that a process started inside inherits them blocked.

    Slurm signals all processes of a job at once, and keepers set their own mask only later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignals.SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
