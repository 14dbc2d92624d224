"""The end of an idle worker."""

from __future__ import annotations

import os
import signal
import time

from .kernel import send_signal, terminate
from .station import Station
from .sweep import Sweep
from .worker import WorkerPipes


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
