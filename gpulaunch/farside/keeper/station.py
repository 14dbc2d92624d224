"""What a monitor and its attempts share, and the end of the worker that stays between them."""

from __future__ import annotations

import os
import signal
import time

from ..wire import KeeperChannel
from .kernel import send_signal, terminate
from .start import ForkedChild
from .sweep import Sweep
from .worker import WorkerPipes


class Station:
    """The pair's socket and leases, what jobs start from, and what stays between attempts.

    `spare`: a child forked ahead; `spare_at`: when one is to be. `exec_only`: jobs exec although
    this interpreter could run them.
    """

    def __init__(
        self, channel: KeeperChannel, leases: list[int], environment: dict[bytes, bytes]
    ) -> None:
        self.channel = channel
        self.leases = leases
        self.environment = environment
        self.worker: WorkerPipes | None = None
        self.spare: ForkedChild | None = None
        self.spare_at: float | None = None
        self.exec_only = False

    def reap_worker(self, pid: int) -> bool:
        """Forget the worker if it was the process just reaped, and close its pipes; True if so."""
        if self.worker is None or self.worker.pid != pid:
            return False
        self.worker.close()
        self.worker = None
        return True


class Retirement:
    """The end of an idle worker: closed input, TERM after half the grace, KILL after all of it."""

    def __init__(self, station: Station, worker: WorkerPipes, now: bool) -> None:
        self.station = station
        self.asked = self.over = False
        at = time.monotonic()
        grace = 0.0 if now else worker.grace
        self.term_at: float | None = at + grace / 2
        self.kill_at = at + grace
        self.sweep = Sweep(station.channel, worker.by)
        worker.close_input()

    def hurry(self, now: bool) -> None:
        if now:
            self.kill_at = time.monotonic()

    def next_deadline(self) -> float:
        if self.station.worker is None or time.monotonic() >= self.kill_at:
            return time.monotonic() + self.sweep.nap
        return min(self.term_at or self.kill_at, self.kill_at)

    def advance(self, now: float) -> None:
        if self.reap():
            return
        worker = self.station.worker
        if worker is None or now >= self.kill_at:
            if worker:
                send_signal(-worker.pid, signal.SIGKILL)
            self.sweep.kill()
            self.reap()
        elif self.term_at is not None and now >= self.term_at:
            self.term_at = None
            terminate(worker.pid)

    def reap(self) -> bool:
        """Reap; return True, and be over, once no process is left."""
        try:
            while True:
                pid = os.waitpid(-1, os.WNOHANG)[0]
                if not pid:
                    return False
                self.sweep.nap = 0.0005
                self.station.reap_worker(pid)
        except ChildProcessError:
            self.over = True
            return True
