"""The executor's one manager thread: its start, its wake-ups and its end. `crew` has what it does.

The thread sleeps unless one of its descriptors wakes it.
"""

from __future__ import annotations

import _thread
import os
import threading
from contextlib import ExitStack, closing

from gpulaunch.core.model import Gpu
from gpulaunch.engines.pool import CardPool
from gpulaunch.executor.crew import Crew, launching
from gpulaunch.executor.errors import BrokenGpuExecutorError
from gpulaunch.executor.future import GpuFuture
from gpulaunch.executor.work import Work
from gpulaunch.executor.worker_handle import WorkerPlan
from gpulaunch.loop import Loop

running: set[Manager] = set()
"""The managers whose thread was to be started and has not ended."""


class Manager:
    """The manager of one executor. `start` starts its thread.

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
