"""The monitor: runs attempts, and minds the worker and the spare child between them."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time

from ..launch import LaunchOrder
from ..proc import is_stopped
from ..wire import peer
from .attempt import KeeperAttempt
from .kernel import (
    PR_SET_CHILD_SUBREAPER,
    Waker,
    prctl,
    rename,
    send_signal,
    started_at,
    terminate,
)
from .phases import begun
from .start import Station, fork_child
from .sweep import Sweep
from .worker import WorkerPipes

SPARE_AFTER = 0.015  # seconds of idleness before a child is forked ahead: a launch comes first
LOOK = 2.0  # seconds between an idle pair's looks at whether the supervisor is stopped
LOOKS = 2  # looks in a row that find the supervisor stopped before the pair returns its leases
SUPERVISOR_GONE = '{"kind": "because", "cause": "supervisor_gone"}'  # core.causes


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


class Monitor:
    """Runs attempts, one at a time, in one loop that waits for everything at once.

    `gives_back`: an idle monitor leaves when it finds the supervisor stopped, so that others have
    the cards. It tells the supervisor first and reads nothing afterwards, so that it alone decides
    whether a command was begun. `ahead`: what the worker goes on with when the attempt has ended.
    """

    def __init__(self, station: Station, watch: int, gives_back: bool = False) -> None:
        self.station = station
        self.channel = station.channel
        self.watch: int | None = watch
        self.attempt: KeeperAttempt | None = None
        self.retirement: Retirement | None = None
        self.pending: LaunchOrder | None = None
        self.ahead: LaunchOrder | None = None
        self.foreseen: LaunchOrder | None = None  # what may be launched next on an idle pair
        self.early_stop: tuple[str, str, bool] | None = None
        station.spare_at = time.monotonic() + SPARE_AFTER
        self.leaving = False
        self.supervisor = peer(station.channel.socket)[0] if gives_back else 0
        self.look_at: float | None = None
        self.found_stopped = 0
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # not inherited by fork
        self.waker = Waker()
        rename("keeper-monitor")
        station.start = started_at(os.getpid())

    def serve(self) -> None:
        while self.attempt or self.station.worker or self.pending or not self.leaving:
            ready = self.wait()
            self.waker.clear()
            if self.attempt:  # before the messages: an end that came before a stop is the job's own
                self.attempt.look(ready)
            elif self.station.spare and self.station.spare.is_dead():
                self.station.spare = None
            if self.channel.fd in ready:
                self.listen(ready[self.channel.fd])
            if self.watch in ready:
                self.watch = None  # the guardian is gone: the spawner has adopted this monitor
                self.leaving = True
            if self.attempt:
                self.attempt.advance(time.monotonic())
                if self.attempt.over:
                    self.attempt = None
                    self.station.spare_at = time.monotonic() + SPARE_AFTER
                    self.go_on()
            if not self.attempt:
                self.mind_worker()
            if (
                self.is_idle()
                and self.station.spare_at is not None
                and time.monotonic() >= self.station.spare_at
            ):
                self.fork_ahead()
            if self.supervisor:
                self.look_at_supervisor(time.monotonic())

    def is_idle(self) -> bool:
        return not (self.attempt or self.station.worker or self.retirement or self.pending)

    def look_at_supervisor(self, now: float) -> None:
        """Leave, if idle, and free the leases once the supervisor has been stopped for long."""
        if self.attempt or self.retirement or self.pending or self.leaving:
            self.look_at, self.found_stopped = None, 0
        elif self.look_at is None:
            self.look_at = now + LOOK
        elif now >= self.look_at:
            self.look_at = now + LOOK
            self.found_stopped = self.found_stopped + 1 if is_stopped(self.supervisor) else 0
            if self.found_stopped >= LOOKS:
                self.leave()

    def leave(self) -> None:
        """Leave: tell the supervisor, read no more messages, retire the worker.

        INVARIANT: what the supervisor sends from here on is never read, and never begun.
        """
        self.channel.send({"is": "left"})
        self.channel.fd = -1
        self.leaving = True
        self.look_at = None
        if self.station.worker:
            self.retire(now=False)

    def fork_ahead(self) -> None:
        """Fork the next attempt's child while idle: no step of a start costs more.

        INVARIANT: no such child beside an attempt or a worker, or ECHILD would prove nothing.
        """
        self.station.spare_at = None
        if not self.leaving:
            with contextlib.suppress(OSError):  # processes are scarce: the attempt will fork then
                self.station.spare = fork_child(self.station)

    def wait(self) -> dict[int, int]:
        poller = select.poll()
        poller.register(self.waker.fd, select.POLLIN)
        if self.watch is not None:
            poller.register(self.watch, select.POLLIN)
        if self.channel.fd >= 0:
            poller.register(self.channel.fd, select.POLLIN)
        milliseconds: float | None = None
        if self.station.worker and self.station.worker.outbox:
            poller.register(self.station.worker.items, select.POLLOUT)
        doing = self.attempt or self.retirement
        if doing:
            for fd in self.attempt.pipes() if self.attempt else ():
                poller.register(fd, select.POLLIN)
        rests = [self.station.spare_at if self.is_idle() else None, self.look_at]
        times = [doing.next_deadline()] if doing else rests
        at = min((each for each in times if each is not None), default=None)
        if at is not None:
            milliseconds = min(math.ceil(max(0.0, at - time.monotonic()) * 1000), 86_400_000)
        return dict(poller.poll(milliseconds))

    def listen(self, events: int) -> None:
        message, _ = (None, []) if events & select.POLLHUP else self.channel.receive()
        if message is None:
            self.leaving = True
            self.channel.fd = -1  # the socket stays open: it says that this keeper lives
            self.stop("interrupted", SUPERVISOR_GONE, now=False)
            return
        verb = message.next()
        if verb == b"launch":
            self.pending = LaunchOrder(message)
            self.begin()
        elif verb == b"behind":
            self.ahead = LaunchOrder(message)
            if not self.attempt:
                self.go_on()
        elif verb == b"foreseen":
            self.foreseen = LaunchOrder(message)
        elif verb == b"go":
            self.pending, self.foreseen = self.foreseen, None
            self.begin()
        elif verb == b"unforeseen":
            self.foreseen = None
        elif verb == b"back":
            if self.ahead and self.ahead.id == message.text():
                self.decline()
        elif verb == b"end":
            self.leaving = True
        elif verb == b"lend":
            self.channel.send({"is": "lent"}, self.station.leases)
        elif verb == b"retire":
            self.retire(message.flag(), asked=True)
        elif verb == b"stop":
            here, attempt = self.attempt or self.pending, message.text()
            if here and here.id == attempt:
                self.stop(message.text(), message.text(), message.flag(), message.flag())
            elif self.ahead and self.ahead.id == attempt:
                self.decline()

    def stop(self, reason: str, by: str, now: bool, gently: bool = False) -> None:
        """Stop the running attempt, or the one that waits for a worker to be gone."""
        if self.attempt:
            self.attempt.stop(reason, by, now, gently)
        elif self.pending:
            self.early_stop = (reason, by, now)

    # ── Workers: a process that stays from one attempt to the next ──────────────────────────

    def begin(self) -> None:
        """Start the pending attempt; first end a worker that cannot take it."""
        assert self.pending is not None
        if self.station.worker and not self.retirement:
            died = self.station.worker.has_died()  # between items: no attempt has failed by that
            item = self.pending.item
            if died or item is None or not self.station.worker.suits(item):
                self.retire(now=died)
        if self.retirement:
            return
        launch, self.pending = self.pending, None
        self.attempt = begun(self.station, launch)
        if self.early_stop:
            self.attempt.stop(*self.early_stop)
            self.early_stop = None
        if self.attempt.over:
            self.attempt = None

    def go_on(self) -> None:
        """Begin what is to follow, if the worker stays."""
        if self.ahead is None:
            return
        if self.leaving or self.retirement or not self.station.worker:
            self.decline()
        else:
            self.pending, self.ahead = self.ahead, None
            self.begin()

    def decline(self) -> None:
        """Tell the supervisor that what was to follow never begins here."""
        assert self.ahead is not None
        self.channel.send({"is": "unbegun", "attempt": self.ahead.id})
        self.ahead = None

    def mind_worker(self) -> None:
        """Between attempts: reap or end the worker; start the pending attempt once it is gone."""
        if self.station.worker and not self.retirement:
            if self.leaving:
                self.retire(now=False)
            elif self.station.worker.has_died():
                self.retire(now=True)
        if self.retirement:
            self.retirement.advance(time.monotonic())
            if self.retirement.over:
                asked, self.retirement = self.retirement.asked, None
                self.station.spare_at = time.monotonic() + SPARE_AFTER
                if asked:
                    self.channel.send({"is": "worker_gone"})
        if self.pending and not self.retirement:
            self.begin()

    def retire(self, now: bool, asked: bool = False) -> None:
        """End the idle worker; `asked`: report that it is gone, at once if there is none."""
        if self.attempt:
            return
        if self.retirement:
            self.retirement.hurry(now)
        elif self.station.worker:
            self.retirement = Retirement(self.station, self.station.worker, now)
        elif asked:
            self.channel.send({"is": "worker_gone"})
            return
        if self.retirement:
            self.retirement.asked = self.retirement.asked or asked
