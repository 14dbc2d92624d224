"""An executor's workers and cards (`Crew`), and the one thread that has them (`Manager`).

    Work ─(short of workers)─▶ core Run: a job for each worker ─▶ Acquire ... Launch ─▶ Worker
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from gpulaunch.agent.proc import named_unkillable
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.loop import Loop
from gpulaunch.base.wording import job_reason
from gpulaunch.core import events
from gpulaunch.core.causes import Because
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
from gpulaunch.engines import client
from gpulaunch.engines.local.leases import CardLeases, LeaseUser
from gpulaunch.engines.pool import CardPool
from gpulaunch.executor.future import BrokenGpuExecutorError, GpuFuture, NoCardsForExecutorError
from gpulaunch.executor.item_queue import Work
from gpulaunch.executor.worker_handle import UnreadyError, WorkerHandle, WorkerPlan
from gpulaunch.executor.worker_slot import GRACE, Starter, WorkerSlot
from gpulaunch.run.driver import Driver

STARTS = 3
"""Workers in a row that do not become ready, after which no other is started."""
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
RETRY = 1.0
"""Seconds until a start that failed for lack of descriptors or memory is tried again."""

log = logging.getLogger("gpulaunch.executor")

launching = threading.RLock()
"""Held while descriptors are open and `close_in_child` cannot find them yet."""


class Crew(LeaseUser):
    """The workers. All is called in the manager's thread, but for what says otherwise.

    `poke` ends a wait of the loop, from any thread.
    """

    lingering = False  # a worker is over when its keepers are gone

    def __init__(
        self, pool: CardPool, plan: WorkerPlan, work: Work, loop: Loop, poke: Callable[[], None]
    ) -> None:
        self._work = work
        self._loop = loop
        self._poke = poke
        self._starter = Starter(pool, plan)
        self._threads_ended: deque[tuple[WorkerHandle, UnreadyError | None]] = deque()
        self._slots: dict[AttemptId, WorkerSlot] = {}
        self._free: list[str] = []
        self._postponed: set[AttemptId] = set()  # to be launched once there are descriptors
        self._asked: list[str] = []
        self._warned_waiting = False
        self._failures = self._readied = 0
        self._failure: UnreadyError | None = None
        self.threads: frozenset[threading.Thread] = frozenset()
        """All workers' threads. Replaced, never changed, as any thread may read it."""
        self.gpus: tuple[Gpu, ...] = ()
        self._run = Run(pool.gpus, RunConfig(OnCards(pool.most, limited_by=pool.limited_by)))
        self._driver = Driver(self._run, loop, self, plan.wait)
        self._cards = CardLeases(pool, loop, self._driver.post, plan.environ, self)
        # The run has all its jobs now, and all are cancelled: none waits for a card yet.
        demand = Demand(gpus=1, per_gpu=plan.per_gpu, cpus=plan.cpus)
        jobs = tuple(Job(f"worker-{n + 1}", (), demand=demand) for n in range(work.most))
        self._driver.post(events.Asked(events.Pause(Because("no_items"))))
        self._driver.post(events.Submitted(jobs))
        self._driver.post(events.Asked(events.Cancel(None)))
        self._driver.post(events.Asked(events.Pause(None)))

    def turn(self) -> None:
        """Handle what threads and cards have reported, then adjust the number of workers."""
        self._work.drop()
        while self._threads_ended:
            self._thread_left(*self._threads_ended.popleft())
        self._driver.settle()
        self._balance()
        self._driver.settle()
        if self._work.terminating:
            self._work.fail(BrokenGpuExecutorError("the executor's workers were terminated"))
        if self._work.terminating or self._work.done:
            self._stop_unneeded_workers()
        if not self._asked:
            self._driver.want_no_card()

    @property
    def finished(self) -> bool:
        """True once there is nothing to do any more, and every card is given back.

        A worker that cannot be killed keeps its card, and is left to its keepers.
        """
        busy = self._driver.busy or not all(slot.unkillable for slot in self._slots.values())
        return self._work.done and not busy and self._run.finished

    def close(self) -> None:
        """Close all workers; there are some only after a failure here. Their keepers end them."""
        for slot in self._slots.values():
            slot.worker.end(Lost(Because("executor_failed")))
            slot.close()
        self._slots.clear()
        self._starter.close()
        self._cards.close()

    def close_in_child(self) -> None:
        """Close a forked child's copies of all descriptors, which would keep cards and workers."""
        for slot in self._slots.values():
            slot.pair.close()
            slot.port.close()
            slot.worker.theirs.close()
            slot.worker.close()
            slot.worker.streams.close()
        self._cards.close_in_child()
        self._starter.close_in_child()

    def _balance(self) -> None:
        """Ask the core for as many workers as there are items for, and cancel all others."""
        halted = self._failures >= STARTS
        if halted and not self._work.serving and not self._slots:
            self._give_up()
        more = self._work.balance(len(self._asked) + len(self._postponed), halted)
        if more > 0:
            names = tuple(self._free.pop() for _ in range(more))
            self._asked.extend(names)
            self._driver.post(events.Asked(events.Retry(names)))
        elif more < 0:
            self._driver.post(events.Asked(events.Cancel(tuple(self._asked[more:]))))

    def _give_up(self) -> None:
        assert self._failure is not None
        text = f"{STARTS} workers in a row did not become ready: {self._failure}"
        error = BrokenGpuExecutorError(text)
        error.__cause__ = self._failure.__cause__
        self._work.fail(error)

    # ── What the driver asks ────────────────────────────────────────────────────────────────────

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        """Keep no record, but learn which workers are not asked for any more."""
        for fact in facts:
            if isinstance(fact, JobSettled):
                if fact.name in self._asked:
                    self._asked.remove(fact.name)
                self._free.append(fact.name)
                if fact.state == "failed" and not self._slots:
                    self._work.fail(NoCardsForExecutorError(job_reason(fact.reason)))

    def carry_out(self, instruction: events.Instruction) -> None:
        """Start workers, and take and release cards."""
        match instruction:
            case events.Launch():
                self._asked.remove(instruction.attempt.job)
                self._launch(instruction)
            case events.StopAttempt():
                pass  # for a worker that is known to be gone
            case _:
                self._cards.carry_out(instruction)

    def working(self) -> bool:
        """Return whether there are workers on cards."""
        return bool(self._slots)

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
            self._work.fail(NoCardsForExecutorError(f"no card came free in time: {why}"))
            self._balance()

    # ── Workers ─────────────────────────────────────────────────────────────────────────────────

    def _launch(self, launch: events.Launch) -> None:
        self._postponed.discard(launch.attempt)
        if self._work.done:
            self._free_again(launch.attempt)
            return
        try:
            with launching:
                leases = self._cards.descriptors([gpu.uuid for gpu in launch.gpus])
                slot = self._starter.begin(launch, leases, self._work, self._hear_thread)
                self._slots[launch.attempt] = slot
        except (OSError, GpulaunchError) as error:
            if isinstance(error, OSError) and error.errno in SCARCE:
                # Too few descriptors or too little memory is no failure of the worker's.
                self._postponed.add(launch.attempt)
                key = f"launch:{launch.attempt}"
                self._loop.call_after(key, RETRY, lambda: self._launch(launch))
                return
            self._count(UnreadyError(f"it could not be started: {error}"))
            self._free_again(launch.attempt)
            return
        self._loop.watch(slot.pair.fileno(), lambda: self._hear(slot))
        self._loop.watch(slot.worker.streams.fileno(), lambda: self._forward(slot))
        self._note_gpus()
        self._work.enter(slot.worker.claim)
        alive = (thread for thread in self.threads if thread.is_alive())
        self.threads = frozenset({*alive, slot.worker.thread})
        slot.worker.thread.start()

    def _hear_thread(self, worker: WorkerHandle, unready: UnreadyError | None) -> None:
        """Queue the report that a worker's thread serves no more. Runs in that thread."""
        self._threads_ended.append((worker, unready))
        self._poke()

    def _thread_left(self, worker: WorkerHandle, unready: UnreadyError | None) -> None:
        """Let the process of a worker whose thread serves no more end; stop it after GRACE."""
        if unready is not None and not self._work.done:
            self._count(unready)
        slot = self._slots.get(worker.attempt)
        if slot is None:
            return
        slot.thread_ended = True
        if slot.gone:
            self._leave(slot)
        elif worker.outcome is None:
            worker.let_go()
            self._loop.call_after(f"end:{worker.attempt}", GRACE, lambda: self._stop(slot))

    def _count(self, unready: UnreadyError) -> None:
        if self._readied != self._work.readied:
            self._readied, self._failures = self._work.readied, 0
        self._failures += 1
        self._failure = unready
        log.warning("a worker did not become ready: %s", unready)

    def _stop_unneeded_workers(self) -> None:
        """Stop all workers when terminating; else those that are not ready and not needed."""
        for slot in self._slots.values():
            if self._work.terminating and not slot.worker.terminated:
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
            self._loop.unwatch(slot.worker.streams.fileno())

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
                        "%s of a worker cannot be killed; its card is not used again before it is"
                        " gone",
                        named_unkillable(pids),
                    )
                    slot.unkillable = True
                    self._ended(slot, Lost(Because("keeper_killed")))
                    attempt = slot.worker.attempt
                    self._driver.post(events.Asked(events.Cancel((attempt.job,))))
                    self._driver.post(events.Unending(attempt, pids))
                case client.Gone():
                    self._ended(slot, Lost(Because("keeper_killed")))
                    self._gone(slot)

    def _ended(self, slot: WorkerSlot, outcome: Outcome) -> None:
        if slot.worker.outcome is not None:
            return
        self._loop.forget(f"end:{slot.worker.attempt}")
        slot.worker.log = slot.read_log()
        self._work.void(slot.worker.claim)
        slot.worker.end(outcome)

    def _gone(self, slot: WorkerSlot) -> None:
        """Close a worker whose keepers are gone: only this process has its card's lease now."""
        self._loop.unwatch(slot.pair.fileno())
        self._loop.unwatch(slot.worker.streams.fileno())
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
        del self._slots[worker.attempt]
        self._note_gpus()
        self._work.leave(worker.claim)
        self._free_again(worker.attempt)

    def _free_again(self, attempt: AttemptId) -> None:
        """Settle the worker's job without using up a retry, so that it can be asked for again."""
        self._driver.post(events.Asked(events.Cancel((attempt.job,))))
        self._driver.post(events.Ended(attempt, End(Interrupted(Because("executor")))))

    def _note_gpus(self) -> None:
        found = {slot.worker.gpu.uuid: slot.worker.gpu for slot in self._slots.values()}
        self.gpus = tuple(sorted(found.values(), key=lambda gpu: gpu.index))


# ── Manager ───────────────────────────────────────────────────────────────────────────────────────

running: set[Manager] = set()
"""The managers whose thread was to be started and has not ended."""


class Manager:
    """The manager of one executor: its thread's start, its wake-ups and its end.

    The thread ends by itself once `work` is done and every card is given back.
    """

    def __init__(self, pool: CardPool, plan: WorkerPlan) -> None:
        self._pool = pool
        self._plan = plan
        self._waking = threading.RLock()
        self._wake = -1
        self._loop: Loop | None = None
        self._crew: Crew | None = None
        self._abandoned = False
        self.work = Work(pool.size * plan.per_gpu, self._poke)
        self._begun = threading.Lock()
        self._over: GpuFuture[None] = GpuFuture()
        self._thread: threading.Thread | None = None
        self.wanted = False
        self.asked_by: object = None
        """The weak reference to the executor, kept alive here so that its callback is called."""

    @property
    def threads(self) -> frozenset[threading.Thread]:
        """All threads of this executor."""
        own = (self._thread,) if self._thread else ()
        return frozenset((*own, *(self._crew.threads if self._crew else ())))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards on which there are workers now, in the order of their indices."""
        return self._crew.gpus if self._crew else ()

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
            self._thread = thread
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
        self.work.close(cancel=True, terminate=True)

    def close_in_child(self) -> None:
        """Close a forked child's copies of all descriptors, which would keep cards and workers."""
        if self._crew:
            self._crew.close_in_child()
        if self._loop:
            self._loop.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    # ── The thread ──────────────────────────────────────────────────────────────────────────────

    def _main(self) -> None:
        try:
            with ExitStack() as stack:
                self._open(stack)
                self._serve()
        except BaseException as error:
            self._fail(error)
        for thread in self._crew.threads if self._crew else ():
            if thread.ident is not None:
                thread.join()
        self._end()

    def _open(self, stack: ExitStack) -> None:
        with launching:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(self._deafen)
            loop = self._loop = stack.enter_context(closing(Loop()))
            loop.watch(self._wake, lambda: os.eventfd_read(self._wake))
            crew = Crew(self._pool, self._plan, self.work, loop, self._poke)
            self._crew = stack.enter_context(closing(crew))

    def _serve(self) -> None:
        assert self._loop
        assert self._crew
        while True:
            if self._abandoned:
                self._abandoned = False
                self.work.close()
            self._crew.turn()
            if self._crew.finished:
                return
            self._loop.turn()

    def _fail(self, error: BaseException) -> None:
        broken = BrokenGpuExecutorError(f"the executor has failed: {error!r}")
        broken.__cause__ = error
        self.work.drop()
        self.work.fail(broken)

    def _end(self) -> None:
        running.discard(self)
        self._over.set_result(None)

    def _poke(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _deafen(self) -> None:
        with self._waking:
            os.close(self._wake)
            self._wake = -1
