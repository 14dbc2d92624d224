"""The executor's one manager thread: cards, keepers and workers. `work` has callers and items.

    work ─(short of workers)─▶ core Run: a job for each worker ─▶ Acquire ... Launch ─▶ Worker
     ▲                                                                                    │
     └──────────── items, taken by the worker's own thread ◀──────────────────────────────┘

To the core, an executor is a run whose jobs are its workers: a job waits while there are items for
it, is cancelled when there are none any more, and retried later. So cards are taken, waited for
and given up as in a run. The thread sleeps unless one of its descriptors wakes it.
"""

from __future__ import annotations

import _thread
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from gpulaunch.core.causes import Because
from gpulaunch.core.events import (
    Asked,
    Cancel,
    Ended,
    Event,
    Instruction,
    Launch,
    Pause,
    Retry,
    StopAttempt,
    Submitted,
)
from gpulaunch.core.facts import Fact, JobSettled
from gpulaunch.core.model import (
    AttemptId,
    Demand,
    End,
    Gpu,
    Instant,
    Interrupted,
    Job,
    Lost,
    Outcome,
)
from gpulaunch.core.run import Run
from gpulaunch.core.state import OnCards, RunConfig
from gpulaunch.driver import Driver
from gpulaunch.engines.local.cards import CardLeases, CardUser
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import GpulaunchError
from gpulaunch.executor.errors import BrokenGpuExecutorError, NoCardsForExecutorError
from gpulaunch.executor.future import GpuFuture
from gpulaunch.executor.work import Work
from gpulaunch.executor.worker_handle import UnreadyError, WorkerHandle
from gpulaunch.executor.worker_slot import GRACE, Starter, WorkerPlan, WorkerSlot
from gpulaunch.loop import Loop
from gpulaunch.process import client
from gpulaunch.wording import job_reason

STARTS = 3
"""Workers in a row that do not become ready, after which no other is started."""
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
RETRY = 1.0
"""Seconds until a start that failed for lack of descriptors or memory is tried again."""

log = logging.getLogger("gpulaunch.executor")

launching = threading.RLock()
"""Held while a worker's descriptors are open and `close_in_child` cannot find them yet."""

running: set[Manager] = set()
"""The managers whose thread was to be started and has not ended."""


class Manager(CardUser):
    """The manager of one executor. `start` starts its thread.

    The thread ends by itself once `work` is done and every card is given back.
    """

    lingering = False  # a worker is over when its keepers are gone

    def __init__(self, pool: CardPool, plan: WorkerPlan) -> None:
        self._pool = pool
        self._plan = plan
        self._starter = Starter(pool, plan)
        self._waking = threading.RLock()
        self._wake = -1
        self._threads_ended: deque[tuple[WorkerHandle, UnreadyError | None]] = deque()
        self._crew: dict[AttemptId, WorkerSlot] = {}
        self._names = [f"worker-{n + 1}" for n in range(pool.size * plan.per_gpu)]
        self._free: list[str] = []
        self._asked: list[str] = []
        self._loop: Loop | None = None
        self._cards: CardLeases | None = None
        self._run = Run(pool.gpus, RunConfig(OnCards(pool.limit)))
        self._driver: Driver | None = None
        self._warned_waiting = False
        self._terminating = self._abandoned = False
        self._failures = self._readied = 0
        self._failure: UnreadyError | None = None
        self.work = Work(len(self._names), self._poke)
        self._begun = threading.Lock()
        self._over: GpuFuture[None] = GpuFuture()
        self.threads: frozenset[threading.Thread] = frozenset()
        """All threads of this executor. Replaced, never changed, as any thread may read it."""
        self.wanted = False
        self.asked_by: object = None
        """The weak reference to the executor, kept alive here so that its callback is called."""
        self.gpus: tuple[Gpu, ...] = ()

    def start(self) -> None:
        """Start the manager's thread, unless it was started. Raises RuntimeError if none can be.

        A signal handler's exception may interrupt this at any point: call it again then.

        `Thread.start` waits for the new thread on a condition that such an exception can leave
        locked: the thread then never runs, and cannot be joined. So a single call in C starts a
        thread, in which no signal handler runs, and that thread calls `Thread.start`.
        """
        if not self._begun.locked():
            self.wanted = True
            running.add(self)
            _thread.start_new_thread(self._begin, ())

    def _begin(self) -> None:
        """Start the manager's thread, from a thread of its own; only the first call does so."""
        if self._begun.acquire(blocking=False):
            # Made here: a Ctrl-C while a `Thread`, or any condition on a plain lock, is made shows
            # a second traceback on Python 3.10.
            thread = threading.Thread(target=self._main, name="gpulaunch-executor", daemon=True)
            self.threads = frozenset({thread})
            try:
                thread.start()
            except RuntimeError as error:
                self._fail(error)
                self._end()

    def wait(self) -> None:
        """Wait until the manager's thread has ended its work.

        Not by `Thread.join`: where that is interrupted, Python 3.10 to 3.12 take a running thread
        for one that has ended.
        """
        if not self.wanted:
            return
        try:
            self.start()  # an exception may have interrupted the first call
        except RuntimeError:  # an interpreter that exits starts no thread any more
            if not self._begun.locked():
                return
        self._over.result()

    def abandon(self) -> None:
        """Note that the executor was collected: nothing more can be submitted. Any thread."""
        self._abandoned = True
        self._poke()

    def terminate(self) -> None:
        """Cancel waiting items, and end the workers. Any thread."""
        self._terminating = True
        self.work.close(cancel=True)

    def close_in_child(self) -> None:
        """Close a forked child's copies of all descriptors, which would keep cards and workers."""
        for slot in self._crew.values():
            slot.pair.close()
            slot.port.close()
            slot.worker.channel.close()
            slot.worker.theirs.close()
            slot.worker.streams.close()
        if self._cards:
            self._cards.close_in_child()
        self._starter.close_in_child()
        if self._loop:
            self._loop.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    # ── The loop ────────────────────────────────────────────────────────────────────────────────

    def _main(self) -> None:
        try:
            with ExitStack() as stack:
                self._open(stack)
                while not self._finished():
                    self._loop_.turn()
                    self._turn()
        except BaseException as error:
            self._fail(error)
        for thread in self.threads - {threading.current_thread()}:
            if thread.ident is not None:
                thread.join()
        self._end()

    def _fail(self, error: BaseException) -> None:
        broken = BrokenGpuExecutorError(f"the executor has failed: {error!r}")
        broken.__cause__ = error
        self.work.drop()
        self.work.fail(broken)

    def _end(self) -> None:
        running.discard(self)
        self._over.set_result(None)

    def _open(self, stack: ExitStack) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        stack.callback(self._deafen)
        self._loop = Loop()
        stack.callback(self._loop.close)
        self._loop.watch(self._wake, lambda: os.eventfd_read(self._wake))
        self._driver = Driver(self._run, self._loop, self, self._plan.wait)
        environ = self._plan.environ
        self._cards = CardLeases(self._pool, self._loop, self._driver.post, environ, self)
        stack.callback(self._cards.close)
        stack.callback(self._close_crew)
        # The run has all its jobs now, and all are cancelled: none waits for a card yet.
        jobs = tuple(Job(name, (), demand=self._demand) for name in self._names)
        self._post(Asked(Pause(Because("no_items"))))
        self._post(Submitted(jobs))
        self._post(Asked(Cancel(None)))
        self._post(Asked(Pause(None)))
        self._turn()

    def _turn(self) -> None:
        """Handle what threads and cards have reported, then adjust the number of workers."""
        if self._abandoned:
            self._abandoned = False
            self.work.close()
        self.work.drop()
        while self._threads_ended:
            self._thread_left(*self._threads_ended.popleft())
        self._driver_.settle()
        self._balance()
        self._driver_.settle()
        if self._terminating:
            self.work.fail(BrokenGpuExecutorError("the executor's workers were terminated"))
        if self._terminating or self.work.done:
            self._stop_unneeded_workers()
        if not self._asked:
            self._driver_.want_no_card()

    def _finished(self) -> bool:
        busy = bool(self._crew) or self._driver_.busy
        return self.work.done and not busy and self._run.finished

    def _balance(self) -> None:
        """Ask the core for as many workers as there are items for, and cancel all others."""
        halted = self._failures >= STARTS
        if halted and not self.work.serving and not self._crew:
            self._give_up()
        more = self.work.balance(len(self._asked), halted)
        if more > 0:
            names = tuple(self._free.pop() for _ in range(more))
            self._asked.extend(names)
            self._post(Asked(Retry(names)))
        elif more < 0:
            self._post(Asked(Cancel(tuple(self._asked[more:]))))

    def _give_up(self) -> None:
        assert self._failure is not None
        text = f"{STARTS} workers in a row did not become ready: {self._failure}"
        error = BrokenGpuExecutorError(text)
        error.__cause__ = self._failure.__cause__
        self.work.fail(error)

    # ── What the driver asks ────────────────────────────────────────────────────────────────────

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        """Keep no record, but learn which workers are not asked for any more."""
        for fact in facts:
            if isinstance(fact, JobSettled):
                if fact.name in self._asked:
                    self._asked.remove(fact.name)
                self._free.append(fact.name)
                if fact.state == "failed" and not self._crew:
                    self.work.fail(NoCardsForExecutorError(job_reason(fact.reason)))

    def carry_out(self, instruction: Instruction) -> None:
        """Start workers, and take and release cards."""
        match instruction:
            case Launch():
                self._asked.remove(instruction.attempt.job)
                self._launch(instruction)
            case StopAttempt():
                pass  # for a worker that is known to be gone
            case _:
                self._cards_.carry_out(instruction)

    def working(self) -> bool:
        """Return whether there are workers on cards."""
        return bool(self._crew)

    def card_awaited(self) -> None:
        """Warn once that the items wait, and why."""
        why = job_reason(self._run.why_waiting(self._asked[0])) if self._asked else ""
        if why and not self._warned_waiting:
            self._warned_waiting = True
            log.warning("the executor %s", why)

    def wait_over(self) -> None:
        """Fail the items: `wait` has passed without a card."""
        if self._asked:
            why = job_reason(self._run.why_waiting(self._asked[0]))
            self.work.fail(NoCardsForExecutorError(f"no card came free in time: {why}"))
            self._balance()

    def _post(self, event: Event) -> None:
        self._driver_.post(event)

    # ── Workers ─────────────────────────────────────────────────────────────────────────────────

    def _launch(self, launch: Launch) -> None:
        if self.work.done:
            self._free_again(launch.attempt)
            return
        try:
            with launching:
                leases = self._cards_.descriptors([gpu.uuid for gpu in launch.gpus])
                slot = self._starter.begin(launch, leases, self.work, self._hear_thread)
                self._crew[launch.attempt] = slot
        except (OSError, GpulaunchError) as error:
            if isinstance(error, OSError) and error.errno in SCARCE:
                # Too few descriptors or too little memory is no failure of the worker's.
                key = f"launch:{launch.attempt}"
                self._loop_.call_after(key, RETRY, lambda: self._launch(launch))
                return
            self._count(UnreadyError(f"it could not be started: {error}"))
            self._free_again(launch.attempt)
            return
        self._loop_.watch(slot.pair.fileno(), lambda: self._hear(slot))
        self._loop_.watch(slot.worker.streams.fileno(), lambda: self._forward(slot))
        self._note_gpus()
        self.work.enter(slot.worker.claim)
        alive = (thread for thread in self.threads if thread.is_alive())
        self.threads = frozenset({*alive, slot.worker.thread})
        slot.worker.thread.start()

    def _hear_thread(self, worker: WorkerHandle, unready: UnreadyError | None) -> None:
        """Queue the report that a worker's thread serves no more. Runs in that thread."""
        self._threads_ended.append((worker, unready))
        self._poke()

    def _thread_left(self, worker: WorkerHandle, unready: UnreadyError | None) -> None:
        """Let the process of a worker whose thread serves no more end; stop it after GRACE."""
        if unready is not None and not self.work.done:
            self._count(unready)
        slot = self._crew.get(worker.attempt)
        if slot is None:
            return
        slot.thread_ended = True
        if slot.gone:
            self._leave(slot)
        elif worker.outcome is None:
            worker.let_go()
            self._loop_.call_after(f"end:{worker.attempt}", GRACE, lambda: self._stop(slot))

    def _count(self, unready: UnreadyError) -> None:
        if self._readied != self.work.readied:
            self._readied, self._failures = self.work.readied, 0
        self._failures += 1
        self._failure = unready
        log.warning("a worker did not become ready: %s", unready)

    def _stop_unneeded_workers(self) -> None:
        """Stop all workers when terminating; else those that are not ready and not needed."""
        for slot in self._crew.values():
            if self._terminating and not slot.worker.terminated:
                slot.worker.terminated = True
                self._stop(slot)
            elif not slot.worker.claim.ready:
                self._stop(slot)

    def _stop(self, slot: WorkerSlot) -> None:
        if not slot.stopped and slot.worker.outcome is None:
            slot.stopped = True
            slot.pair.stop("stopped", by="its executor")

    # ── What keepers say ────────────────────────────────────────────────────────────────────────

    def _forward(self, slot: WorkerSlot) -> None:
        if not slot.worker.streams.forward():
            self._loop_.unwatch(slot.worker.streams.fileno())

    def _hear(self, slot: WorkerSlot) -> None:
        for report in slot.pair.on_readable():
            match report:
                case client.ProgramStarted():
                    slot.put_away()
                case client.AttemptOver(end=end):
                    self._ended(slot, end.outcome)
                    slot.pair.end()
                case client.Unkillable(pids=pids):
                    log.warning(
                        "process %s of a worker cannot be killed; its card is not used again before"
                        " it is gone",
                        ", ".join(map(str, pids)),
                    )
                case client.Gone():
                    self._ended(slot, Lost(Because("keeper_killed")))
                    self._gone(slot)

    def _ended(self, slot: WorkerSlot, outcome: Outcome) -> None:
        if slot.worker.outcome is not None:
            return
        self._loop_.forget(f"end:{slot.worker.attempt}")
        slot.worker.log = slot.read_log()
        self.work.void(slot.worker.claim)
        slot.worker.end(outcome)

    def _gone(self, slot: WorkerSlot) -> None:
        """Close a worker whose keepers are gone: only this process has its card's lease now."""
        self._loop_.unwatch(slot.pair.fileno())
        self._loop_.unwatch(slot.worker.streams.fileno())
        slot.close()
        slot.gone = True
        # Where the worker never became ready, its thread has to report that first, before another
        # worker is started. A thread that served may be in a callback for long: no wait for it.
        if slot.thread_ended or slot.worker.claim.ready:
            self._leave(slot)

    def _leave(self, slot: WorkerSlot) -> None:
        worker = slot.worker
        if worker.claim.ready:
            self._failures = min(self._failures, STARTS - 1)
        del self._crew[worker.attempt]
        self._note_gpus()
        self.work.leave(worker.claim)
        self._free_again(worker.attempt)

    def _free_again(self, attempt: AttemptId) -> None:
        """Settle the worker's job without using up a retry, so that it can be asked for again."""
        self._post(Asked(Cancel((attempt.job,))))
        self._post(Ended(attempt, End(Interrupted(Because("executor")))))

    def _note_gpus(self) -> None:
        found = {slot.worker.gpu.uuid: slot.worker.gpu for slot in self._crew.values()}
        self.gpus = tuple(sorted(found.values(), key=lambda gpu: gpu.index))

    # ── Waking and closing ──────────────────────────────────────────────────────────────────────

    def _poke(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _deafen(self) -> None:
        with self._waking:
            os.close(self._wake)
            self._wake = -1

    def _close_crew(self) -> None:
        """Close all workers; there are some only after a failure here. Their keepers end them."""
        for slot in self._crew.values():
            slot.worker.end(Lost(Because("executor_failed")))
            slot.close()
        self._crew.clear()
        self._starter.close()

    @property
    def _loop_(self) -> Loop:
        assert self._loop is not None
        return self._loop

    @property
    def _driver_(self) -> Driver:
        assert self._driver is not None
        return self._driver

    @property
    def _cards_(self) -> CardLeases:
        assert self._cards is not None
        return self._cards

    @property
    def _demand(self) -> Demand:
        return Demand(gpus=1, per_gpu=self._plan.per_gpu, cpus=self._plan.cpus)
