"""An attempt: one start of a job, from the fork to the proof that no process of it is left."""

from __future__ import annotations

import errno
import os
import signal
import time

from ..launch import LaunchOrder, WorkerItem
from ..wire import NO_SPACE, Any, shown
from .end import AttemptResult, EndFile
from .kernel import has_ended, send_signal, spent_by_children
from .looks import Looks
from .start import ELSEWHERE, FULL, ForkedChild, Station
from .warning import warn
from .worker import WorkerAnswer, WorkerPipes

NOT_NEAR = "the CPUs near its card were not allowed any more: it ran on those that were"
TERM_COMES = 0.05  # seconds within which a TERM that is sent to many processes reaches them all


class Phase:
    """A state of an attempt; see `phases.py`. One that is recorded has nothing more to do."""

    def __init__(self, attempt: KeeperAttempt) -> None:
        self.attempt = attempt

    def next_deadline(self) -> float | None:
        """Return when `advance` has something to do although nothing has happened."""
        return None

    def advance(self, now: float) -> None:
        """Do what is due."""

    def announce(self, reason: str, by: str) -> bool:
        """Warn the job of a stop, which follows later; False: it cannot be, and is to stop now."""
        return False

    def stop(self, reason: str, by: str, at: float, now: bool) -> None:
        """Take in a stop: TERM, and KILL `at` a time, which is at once where `now` is set."""

    def answered(self, answer: dict[str, Any] | None) -> None:
        """Take in a look's answer. None: it failed (no memory, no file yet)."""

    def start_clock(self) -> None:
        """Begin a job's own time: hooks at its fork are done, or its worker has loaded."""

    def held_up(self, reaped: bool = False) -> None:
        """Take in that hooks at its fork ended the child (`reaped`): it was not the job yet."""

    def reaped(self, pid: int) -> None:
        """Take in that a process below the keeper has been reaped."""


class KeeperAttempt:
    """What all phases of an attempt share (see `phases.py`).

    `alone`: at the last reaping no process was left below the keeper. `over`: its end is recorded,
    and no process of it is left.
    """

    def __init__(self, station: Station, launch: LaunchOrder) -> None:
        self.station = station
        self.launch = launch
        self.item = launch.item
        self.spent = spent_by_children()
        self.result = AttemptResult()
        self.looks = Looks()
        self.child: ForkedChild | None = None
        self.alone = self.over = False
        self.end_file: EndFile | None = None
        self.phase = Phase(self)
        try:
            self.end_file = EndFile(launch.end, launch.slot)
        except OSError as problem:
            self.result.error = f"cannot lay out {shown(launch.end)}: {problem.strerror}"
            self.result.kind = NO_SPACE if problem.errno == errno.ENOSPC else None
            self.finish()

    @property
    def id(self) -> str:
        return self.launch.id

    @property
    def worker(self) -> WorkerPipes | None:
        """The worker that has the attempt's item."""
        return self.station.worker if self.item else None

    def limit(self) -> float | None:
        """Return the seconds that the attempt may take, or a worker's loading."""
        if self.item and self.item.loading and self.item.load_timeout is not None:
            return self.item.load_timeout
        return self.launch.timeout

    # ── Start ───────────────────────────────────────────────────────────────────────────────

    def send_started(self) -> None:
        assert self.child is not None
        me = os.getpid()
        message = {"is": "started", "attempt": self.id, "pid": self.child.pid, "keeper": me}
        more = {"keeper_start": self.station.start, "spent": self.spent}
        self.station.channel.send({**message, **more})

    def read_child(self) -> None:
        """Read the exec's result: words are an error; end of file without words is a start.

        A child that was killed before its exec shows as a start too.
        """
        child = self.child
        if child is None or child.pipe is None:
            return
        over = child.read()
        if child.hear():
            self.phase.start_clock()
        if not over:
            return
        child.close()
        words = child.words
        if words.startswith(ELSEWHERE):
            words, self.result.note = words[len(ELSEWHERE) :], NOT_NEAR
        if words.startswith(FULL):
            words, self.result.kind = words[len(FULL) :], NO_SPACE
        if words:
            self.result.error = words.decode("utf-8", "replace")
        elif child.ready_by is None:
            self.send_started()

    # ── What happens meanwhile ──────────────────────────────────────────────────────────────

    def pipes(self) -> list[int]:
        fds = [self.looks.helper.fd] if self.looks.helper else []
        if self.worker and not self.worker.silent:
            fds.append(self.worker.answers)
        if self.child and self.child.pipe is not None:
            fds.append(self.child.pipe)
        return fds

    def next_deadline(self) -> float | None:
        return self.phase.next_deadline()

    def look(self, ready: dict[int, int]) -> None:
        """Handle what has happened: the exec's result, dead children, a helper's answer."""
        child = self.child
        unready = child is not None and child.ready_by is not None
        unready = unready and self.result.cause is None and self.main_ended()
        self.read_child()
        if unready and child is not None and child.ready_by is not None:
            self.phase.held_up()
        self.hear_worker()
        self.reap()  # before the helper: a job that has ended cannot be too silent
        for answer in self.looks.answers(ready):
            self.phase.answered(answer)

    def reap(self) -> None:
        child = self.child
        if child is None:
            return
        if self.result.status is None and self.result.cause is None and self.main_ended():
            # While the main process is unreaped, its group is certainly the job's: one signal that
            # no fork escapes.
            send_signal(-child.pid, signal.SIGKILL)
        self.alone = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.alone = True
                return
            if pid == 0:
                return
            self.phase.reaped(pid)
            if pid == child.pid:
                self.read_child()  # it may have been a forker
            if pid == child.pid:
                if child.ready_by is not None and self.result.cause is None:
                    # It ended since `look` asked: hooks ended it, and it was not the job yet.
                    self.phase.held_up(reaped=True)
                    return
                self.main_reaped(pid, status)
            elif not self.looks.reaped(pid) and os.WIFSIGNALED(status):
                if self.result.status is not None and not self.result.main_was_killed:
                    self.result.leftovers += os.WTERMSIG(status) == signal.SIGKILL

    def main_ended(self) -> bool:
        child = self.child
        assert child is not None
        if not has_ended(child.pid):
            return False
        if child.forker:
            self.read_child()
        return has_ended(child.pid)

    def main_reaped(self, pid: int, status: int) -> None:
        self.hear_worker()  # its last answer, which it gave before it died
        result = self.result
        unanswered = self.station.reap_worker(pid) and result.status is None and not result.cause
        if self.item:
            self.item.keep = False
        if unanswered and not result.error and status == 0:
            status, result.note = 1 << 8, "its worker ended, with status 0, before it answered"
        if result.status is None:
            result.status = status

    # ── A worker's item ─────────────────────────────────────────────────────────────────────

    def hear_worker(self) -> None:
        """Handle the worker's answers; kill a worker that gives an invalid one."""
        item, worker = self.item, self.worker
        if item is None or worker is None:
            return
        worker.flush()
        for answer in worker.hear():
            if answer and answer.item == 0 and item.loading:
                item.loading = False
                self.phase.start_clock()
            elif answer and answer.item == worker.count and self.result.status is None:
                self.answered(item, worker, answer)
            else:
                self.result.note = "its worker gave an answer that is none, and was killed"
                item.keep = False
                send_signal(-worker.pid, signal.SIGKILL)

    def answered(self, item: WorkerItem, worker: WorkerPipes, answer: WorkerAnswer) -> None:
        result = self.result
        result.error = answer.error or None
        result.status = answer.code << 8
        result.answered = (time.monotonic(), time.time())
        item.keep = not result.cause and not answer.spoiled and worker.may_stay()

    # ── What follows from it ────────────────────────────────────────────────────────────────

    def warn(self, why: str) -> int:
        """Send the job its warning; return how many of its processes took it."""
        assert self.child is not None
        number = self.launch.warn_signal
        assert number is not None
        at = time.monotonic(), time.time()
        taken = warn(self.child.pid, number)
        self.result.warned = (*at, number, taken, why)
        told = self.result.warned
        self.station.channel.send({"is": "warned", "attempt": self.id, "warned": told})
        return taken

    def stop(self, reason: str, by: str, now: bool, gently: bool = False) -> None:
        """Send TERM unless the attempt is over already; `advance` does the rest.

        `gently`: the job's warning comes first, where it has one.
        """
        if gently and not now and self.phase.announce(reason, by):
            return
        self.phase.stop(reason, by, time.monotonic() + (0.0 if now else self.launch.grace), now)

    def advance(self, now: float) -> None:
        while not self.over:
            phase = self.phase
            phase.advance(now)
            if self.phase is phase:
                return

    def finish(self) -> None:
        """Record the end: first in the file, then to the supervisor. No process of it is left."""
        self.phase, self.over = Phase(self), True
        by, result = self.launch.term_by, self.result
        # Slurm sends TERM to all processes of a job, one by one: the job may have ended at it
        # before it reached us. So a success waits for it a moment; a failure has Slurm's state.
        if by and result.succeeded(self.launch.success_codes):
            if signal.sigtimedwait({signal.SIGTERM}, TERM_COMES):
                result.cause, result.by = "interrupted", by
        result.conclude(self.launch.success_codes)
        record = result.record(self.launch, self.child.pid if self.child else None, self.limit())
        if self.end_file is not None and result.kind == NO_SPACE:  # nothing was run: it goes again
            self.end_file.give_up()
        elif self.end_file is not None:
            self.end_file.write(record)
        kept = self.station.worker is not None
        cpu = None if self.item else spent_by_children() - self.spent
        message = {"is": "ended", "end": record, "kept": kept, "note": result.note, "cpu": cpu}
        self.station.channel.send(message)
