"""The states of an attempt, each with its own data. A stop or a timeout sends TERM.

    Forking ──▶ Running ──main ends──▶ Sweeping ──nothing left──▶ (Checking outputs) ──▶ over
                   └─TERM, main ends──▶ Terminating ──kill_at, or nothing left──▲

A worker's answer ends the attempt as its main process's end would. A worker that stays is not
swept; one that is to go has its input closed, and the attempt is Terminating until it is gone.
"""

from __future__ import annotations

import math
import os
import signal
import time

from ..launch import LaunchOrder
from ..wire import Any, shown
from . import host
from .attempt import KeeperAttempt, Phase
from .kernel import SCARCE, children, send_signal, terminate
from .looks import look_at_log, look_for_outputs
from .start import ForkedChild, Station, fork_child
from .sweep import Sweep
from .worker import WorkerPipes

OUTPUT_CHECK_LIMIT = 60.0  # seconds


def begun(station: Station, command: LaunchOrder) -> KeeperAttempt:
    """Return an attempt that is launched, or over where its end could not be laid out."""
    attempt = KeeperAttempt(station, command)
    if not attempt.over:
        launch(attempt)
    return attempt


def launch(attempt: KeeperAttempt) -> None:
    attempt.child = None
    attempt.phase = forking = Forking(attempt)
    forking.launch()


def start_cold(attempt: KeeperAttempt, what: str, reaped: bool = False) -> None:
    """Kill the child that hooks held up, and fork another one, which executes the job.

    The first child was not the job yet: its log does not exist. `reaped`: its number is free.
    """
    assert attempt.child is not None
    if not reaped:
        send_signal(-attempt.child.pid, signal.SIGKILL)
    Sweep(attempt.station.channel, attempt.id).to_the_end()
    attempt.child.close()
    attempt.result.error = None
    attempt.station.exec_only = True
    why = f"{host.AT_FORK} {what}"
    message = {"is": "cold", "attempt": attempt.id, "why": why, "for_good": True}
    attempt.station.channel.send(message)
    launch(attempt)


def check_or_finish(attempt: KeeperAttempt) -> None:
    if attempt.launch.all_outputs and attempt.result.succeeded(attempt.launch.success_codes):
        attempt.phase = Checking(attempt)
    else:
        attempt.finish()


class Forking(Phase):
    """There is no process yet. While processes or descriptors are scarce, it tries again."""

    def __init__(self, attempt: KeeperAttempt) -> None:
        super().__init__(attempt)
        self.since = time.monotonic()
        self.at: float | None = None
        self.pause = 0.01

    def launch(self) -> None:
        """Fork the job, or hand its item to the worker that waits; the attempt is Running then."""
        self.at = None
        station, item = self.attempt.station, self.attempt.item
        if item and station.worker:
            worker = station.worker
            self.begin(ForkedChild(worker.pid))
            worker.grace = self.attempt.launch.grace
            worker.hand(item, fresh=False)
            self.attempt.send_started()
            return
        pipes: list[int] = []
        try:
            for _ in (1, 2) if item else ():
                pipes.extend(os.pipe())
            child = self.fork((pipes[0], pipes[3]) if item else ())
        except OSError as problem:
            for fd in pipes:
                os.close(fd)
            if problem.errno not in SCARCE:
                raise
            self.at = time.monotonic() + self.pause
            self.pause = min(self.pause * 2, 1.0)
            return
        if item:
            os.close(pipes[0])
            os.close(pipes[3])
            item.loading = True
            station.worker = WorkerPipes(self.attempt.launch, item, child.pid, *pipes[1:3])
            station.worker.hand(item, fresh=True)
        if host.at_fork is not None and not station.exec_only:
            child.ready_by = time.monotonic() + host.at_fork_limit
        running = self.begin(child)
        if child.hear():
            running.start_clock()

    def fork(self, pipes: tuple[int, ...]) -> ForkedChild:
        """Return the child, which has its command: the one forked ahead, or else a new one."""
        station = self.attempt.station
        child, station.spare, station.spare_at = station.spare, None, None
        if child is None or not child.begin(self.attempt.launch, pipes):
            child = fork_child(station)
            child.begin(self.attempt.launch, pipes)
        return child

    def begin(self, child: ForkedChild) -> Running:
        self.attempt.child = child
        self.attempt.result.started = (time.monotonic(), time.time())
        running = self.attempt.phase = Running(self.attempt, child)
        return running

    def next_deadline(self) -> float | None:
        limit = self.attempt.limit()
        times = (self.at, self.since + limit if limit else None)
        return min((at for at in times if at is not None), default=None)

    def advance(self, now: float) -> None:
        result, limit = self.attempt.result, self.attempt.limit()
        if limit and now >= self.since + limit:
            result.cause = result.cause or "timeout"
        if result.cause:
            self.attempt.finish()
        elif self.at is not None and now >= self.at:
            self.launch()

    def stop(self, reason: str, by: str, at: float, now: bool) -> None:
        result = self.attempt.result
        if result.cause is None:
            result.cause, result.by = reason, by


class Running(Phase):
    """The main process runs, or a worker has the item. `kill_at`: it has had its TERM.

    `announced`: a stop of which it was warned, and when its TERM is due.
    """

    def __init__(self, attempt: KeeperAttempt, child: ForkedChild) -> None:
        super().__init__(attempt)
        self.child = child
        self.kill_at: float | None = None
        self.announced: tuple[float, str, str] | None = None
        self.start_clock()

    def start_clock(self) -> None:
        """Start the timeout and the idle timeout; a worker's loading has a limit of its own."""
        self.since = time.monotonic()
        limit = self.attempt.launch.idle_timeout
        loading = self.attempt.item and self.attempt.item.loading
        self.silence = Silence(limit, self.since) if limit and not loading else None

    def held_up(self, reaped: bool = False) -> None:
        start_cold(self.attempt, "ended the process", reaped)

    def next_deadline(self) -> float | None:
        if self.kill_at is not None or self.child.ready_by is not None:
            return self.child.ready_by if self.kill_at is None else self.kill_at
        limit, silence = self.attempt.limit(), self.silence
        announced = self.announced[0] if self.announced else None
        ends = self.since + limit if limit else None
        times = (ends, self.warn_at(), announced, silence.at if silence else None)
        return min((at for at in times if at is not None), default=None)

    def warn_at(self) -> float | None:
        """Return when the job is to be warned of its timeout.

        None: never, or it was warned, or is not executed yet.
        """
        launch, limit = self.attempt.launch, self.attempt.limit()
        warned = self.attempt.result.warned or self.child.pipe is not None
        if launch.warn_signal is None or not limit or warned:
            return None
        return self.since + max(0.0, limit - launch.warn_before)

    def advance(self, now: float) -> None:
        attempt, silence, limit = self.attempt, self.silence, self.attempt.limit()
        warn_at = self.warn_at()
        if attempt.result.status is not None:
            self.main_has_ended(now)
        elif self.kill_at is not None:
            if now >= self.kill_at:
                attempt.phase = Sweeping(attempt)
        elif self.child.ready_by is not None:
            if now >= self.child.ready_by:
                start_cold(attempt, f"had not returned after {host.at_fork_limit:g} s")
        elif self.announced and now >= self.announced[0]:
            attempt.stop(*self.announced[1:], now=False)
        elif limit and now >= self.since + limit:
            attempt.stop("timeout", "", now=False)
        elif warn_at is not None and now >= warn_at:
            if attempt.warn("timeout"):
                attempt.result.otherwise = ("timeout", "")
        elif silence and silence.at is not None and now >= silence.at and not attempt.looks.helper:
            silence.at = None if attempt.looks.ask(look_at_log, attempt.launch) else now + 1.0

    def main_has_ended(self, now: float) -> None:
        attempt, item, worker = self.attempt, self.attempt.item, self.attempt.worker
        if item and worker and item.keep:
            check_or_finish(attempt)
        elif worker:
            # Close the worker's input, TERM after half the grace, then KILL.
            worker.close_input()
            grace = attempt.launch.grace
            term_at = now + grace / 2 if self.kill_at is None else None
            attempt.phase = Terminating(attempt, self.child, self.kill_at or now + grace, term_at)
        elif attempt.result.cause:
            assert self.kill_at is not None
            attempt.phase = Terminating(attempt, self.child, self.kill_at)
        else:
            attempt.phase = Sweeping(attempt)

    def announce(self, reason: str, by: str) -> bool:
        attempt, result, launch = self.attempt, self.attempt.result, self.attempt.launch
        # Before its exec it has the keeper's signals blocked, and takes none.
        unready = self.child.ready_by is not None or self.child.pipe is not None
        if launch.warn_signal is None or unready or result.cause or result.status is not None:
            return False
        if self.announced:
            return True
        taken = result.warned[3] if result.warned else attempt.warn("stop")
        if not taken:
            return False
        limit, at = attempt.limit(), time.monotonic() + launch.warn_before
        self.announced = (min(at, self.since + limit) if limit else at, reason, by)
        result.otherwise = (reason, by)
        return True

    def stop(self, reason: str, by: str, at: float, now: bool) -> None:
        result = self.attempt.result
        self.announced = None
        if result.cause is not None:
            if now:
                self.kill_at = at
        elif result.status is None:  # else it ended by itself
            result.cause, result.by, self.kill_at = reason, by, at
            if not now:
                self.attempt.main_ended()  # if a forker has ended, the TERM is for its child
                # Once: to many programs a second TERM means "at once".
                terminate(self.child.pid)

    def answered(self, answer: dict[str, Any] | None) -> None:
        if self.attempt.result.cause is not None or self.silence is None:
            return
        if answer is None:
            self.silence.at = time.monotonic() + 1.0
        elif self.silence.lasts(answer["log"]):
            self.attempt.stop("idle_timeout", "", now=False)


class Silence:
    """How long a log has not grown; `at`: when to look at it, None while a look is under way."""

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.since = self.looked_at = now
        self.at: float | None = now + limit
        self.seen: list[int] = []

    def lasts(self, log: list[int]) -> bool:
        """Tell whether the silence has lasted to its limit; else plan the next look.

        `log` is the log's size and time of change (ns). The time counts only where it is plausible:
        a file server's clock may be wrong.
        """
        now = time.monotonic()
        if log != self.seen:
            age = time.time() - log[1] / 1e9
            fits = 0 <= age <= now - self.looked_at + 0.02
            self.since = now - age if fits else now
        self.seen, self.looked_at = log, now
        if now >= self.since + self.limit - 0.005:
            return True
        self.at = self.since + self.limit
        return False


class Terminating(Phase):
    """The main process has ended after a TERM, or a worker is to go: the rest has its grace.

    Processes of the main one's group have had their TERM; a second one means "at once" to many
    programs. A worker has its own TERM at `term_at`.
    """

    def __init__(
        self,
        attempt: KeeperAttempt,
        child: ForkedChild,
        kill_at: float,
        term_at: float | None = None,
    ) -> None:
        super().__init__(attempt)
        self.main = child.pid
        self.kill_at = kill_at
        self.term_at = term_at
        self.told: set[int] = set()

    def next_deadline(self) -> float | None:
        return self.kill_at if self.term_at is None else min(self.term_at, self.kill_at)

    def advance(self, now: float) -> None:
        self.attempt.looks.drop()
        if self.attempt.alone or now >= self.kill_at:
            self.attempt.phase = Sweeping(self.attempt)
            return
        worker = self.attempt.station.worker
        if self.term_at is not None and now >= self.term_at and worker:
            self.term_at = None
            terminate(worker.pid)
        for pid in children():
            if pid not in self.told and pid != self.main:
                self.told.add(pid)
                if os.getpgid(pid) != self.main:
                    send_signal(pid, signal.SIGTERM)
                    send_signal(pid, signal.SIGCONT)

    def stop(self, reason: str, by: str, at: float, now: bool) -> None:
        if now:
            self.kill_at = at

    def reaped(self, pid: int) -> None:
        self.told.discard(pid)


class Sweeping(Phase):
    """What is left is killed, until nothing is. `checked`: the outputs have been looked for."""

    def __init__(self, attempt: KeeperAttempt, checked: bool = False) -> None:
        super().__init__(attempt)
        self.checked = checked
        attempt.looks.drop()
        self.sweep = Sweep(attempt.station.channel, attempt.id)

    def next_deadline(self) -> float | None:
        return time.monotonic() + self.sweep.nap

    def advance(self, now: float) -> None:
        attempt = self.attempt
        if not attempt.alone:
            if attempt.result.status is None or attempt.worker:
                attempt.result.main_was_killed = True
                assert attempt.child is not None
                send_signal(-attempt.child.pid, signal.SIGKILL)
            self.sweep.kill()
            attempt.reap()
        if attempt.alone and self.checked:
            attempt.finish()
        elif attempt.alone:
            check_or_finish(attempt)

    def reaped(self, pid: int) -> None:
        self.sweep.nap = 0.0005


class Checking(Phase):
    """Its outputs are looked for, until `limit`; `cut`: a stop that came meanwhile."""

    def __init__(self, attempt: KeeperAttempt) -> None:
        super().__init__(attempt)
        self.at = time.monotonic()
        self.limit = self.at + OUTPUT_CHECK_LIMIT
        self.cut: tuple[str, str] | None = None

    def next_deadline(self) -> float | None:
        return min(self.at, self.limit)

    def advance(self, now: float) -> None:
        attempt = self.attempt
        if now >= self.limit and self.cut:
            attempt.result.cause, attempt.result.by = self.cut
            self.conclude([])
        elif now >= self.limit:
            words = f"(its file system gave no answer within {OUTPUT_CHECK_LIMIT:.0f} s)"
            self.conclude([f"{shown(path)} {words}" for path in attempt.launch.all_outputs])
        elif attempt.looks.helper is None and now >= self.at:
            assert attempt.end_file is not None
            asked = attempt.looks.ask(look_for_outputs, attempt.launch, attempt.end_file.since)
            self.at = math.inf if asked else now + 1.0

    def answered(self, answer: dict[str, Any] | None) -> None:
        if answer is None:
            self.at = time.monotonic() + 1.0
        else:
            self.conclude(answer["missing"])

    def conclude(self, missing: list[str]) -> None:
        attempt = self.attempt
        attempt.result.missing = missing
        if attempt.item and attempt.item.keep:
            attempt.looks.drop()
            attempt.finish()
        else:
            attempt.phase = Sweeping(attempt, checked=True)  # of the helper

    def stop(self, reason: str, by: str, at: float, now: bool) -> None:
        self.cut = self.cut or (reason, by)
        self.limit = min(self.limit, at)
