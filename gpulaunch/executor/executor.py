"""`GpuExecutor`, which people call. It keeps `concurrent.futures`' promises, also at exit and fork.

It takes no card and starts no worker: `executor.pool` does.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import os
import secrets
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from gpulaunch.base.errors import NoCardsError, UsageError
from gpulaunch.base.free_below import parse_free_below
from gpulaunch.core.model import Gpu, Selection
from gpulaunch.engines.environment import as_given
from gpulaunch.engines.pool import CardPool, SelectionError, open_pool
from gpulaunch.executor import transfer
from gpulaunch.executor.channel import HELLO
from gpulaunch.executor.future import GpuFuture
from gpulaunch.executor.item_queue import WorkItem
from gpulaunch.executor.mapping import chunks, flat, results, run_chunk
from gpulaunch.executor.pool import Manager, launching, running
from gpulaunch.executor.worker_handle import WorkerPlan
from gpulaunch.gpus.mask import MASK, ORDER

T = TypeVar("T")


class GpuExecutor(Executor):
    """Runs calls in worker processes that each hold one card and see only it, as `cuda:0`.

        def load():
            global model
            model = torch.load("model.pt").to("cuda:0")

        def predict(batch):
            return model(torch.as_tensor(batch).to("cuda:0")).cpu().numpy()

        with GpuExecutor(initializer=load) as executor:
            for result in executor.map(predict, batches):
                ...

    `gpus`: "all", how many (any), or which: indices as `gpulaunch gpus` shows them, or UUIDs.
    `per_gpu`: workers that share a card. `simulate`: how many simulated cards instead of real ones.
    `initializer(*initargs)` is called once in each worker before its first item.
    `max_tasks_per_child`: items (of `map`: chunks) after which a worker is replaced.
    `wait`: seconds to wait for a first card; None: for ever, as `gpulaunch run` does.
    `share_busy`: use cards on which processes run that hold no lease. `free_below`: memory that
    nobody is named for, and desktop programs, count from there on: "2GB", "5%".
    `cpus`: threads for numerical libraries; None: the card's share of the CPUs.
    `env`: variables for the workers beside this process's own; None removes one.

    A worker is started when there is an item for it, on the first card that can be had; others
    follow as more cards come free. Cards are held until `shutdown`; but a card whose worker died
    or was replaced goes first to a launcher that waits and holds no card.

    Functions and classes of `__main__` need no `if __name__` guard: a worker does not import it,
    and keeps one set of its globals for all calls. What a worker prints goes where this process
    prints. Large arrays and CPU tensors travel outside of the pickle; bring others by `.cpu()`.
    Workers start from the environment and working directory of this call.

    At the interpreter's exit pending work is done first, unless a Ctrl-C ended the program. A
    forked child cannot use the executor. Should this process be killed, the workers and all that
    they started are killed as well, within 10 s.

    When a worker dies, the one item that it ran fails (WorkerDiedError), and another worker takes
    its place. All waiting items fail with BrokenGpuExecutorError when three workers in a row did
    not become ready, or no card can be had (NoCardsForExecutorError).

    Raises NoCardsError where there is no such card at all, UsageError for arguments that cannot
    be, and whatever pickling `initializer` and `initargs` raises.
    """

    def __init__(
        self,
        gpus: str | int | Sequence[int | str] = "all",
        *,
        per_gpu: int = 1,
        simulate: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks_per_child: int | None = None,
        wait: float | None = None,
        share_busy: bool = False,
        free_below: str | None = None,
        cpus: int | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        _at_least_one(per_gpu=per_gpu, max_tasks_per_child=max_tasks_per_child, cpus=cpus)
        _at_least_one(simulate=simulate)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        streams = (_is_open(1), _is_open(2))  # before anything is opened, which may get 1 or 2
        environ = as_given(os.environ)
        plan = WorkerPlan(
            hello=transfer.message(HELLO, (sys.argv, initializer, initargs), to_worker=True),
            environ=environ,
            env=_checked(env or {}),
            cwd=os.getcwd(),
            streams=streams,
            per_gpu=per_gpu,
            cpus=cpus,
            wait=wait,
            most_items=max_tasks_per_child,
        )
        _hook()
        self._pid = os.getpid()
        self._manager = Manager(_pool(gpus, simulate, environ, share_busy, free_below), plan)
        # Once the executor is collected, waiting items are still done; then the cards go back.
        self._manager.asked_by = _Asker(self, _undertaker().put)
        self._manager.asked_by.manager = self._manager

    def __repr__(self) -> str:
        return f"<GpuExecutor on {', '.join(str(gpu.index) for gpu in self.gpus) or 'no card yet'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GpuExecutor cannot be pickled: it stays in the process that made it")

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards on which the executor has workers now, in the order of their indices."""
        return self._manager.gpus

    @property
    def _max_workers(self) -> int:
        """How many workers there may be; dask reads this name of any executor."""
        return self._manager.work.most

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> GpuFuture[T]:
        """Schedule `fn(*args, **kwargs)`; its future's `gpu` says on which card it runs.

        Raises RuntimeError after `shutdown` and in a forked child, BrokenGpuExecutorError.
        """
        self._check_process()
        future: GpuFuture[T] = GpuFuture()
        self._manager.work.put(WorkItem(future, fn, args, kwargs))
        self._manager.start()
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Return the results of `fn` in the order of the inputs, as `map(fn, *iterables)` does.

        `chunksize` inputs travel together as one item; an exception for one input is the only
        result of its chunk. `timeout`: seconds from this call until TimeoutError. `buffersize`:
        chunks that are submitted ahead of the results that were taken, at most, inputs being read
        as they are needed; None: all inputs are read at once.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        until = None if timeout is None else time.monotonic() + timeout
        inputs = chunks(zip(*iterables), chunksize)  # noqa: B905 - as map: the shortest decides
        ahead = inputs if buffersize is None else itertools.islice(inputs, buffersize)
        futures: deque[Future[list[T]]] = deque(
            self.submit(run_chunk, fn, chunk) for chunk in ahead
        )
        more = None if buffersize is None else inputs
        return flat(results(self if more else None, fn, futures, more, until))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more items, finish those submitted, and give the cards back.

        `cancel_futures`: cancel waiting items instead. `wait`: wait until all that is done; never
        in a callback of one of the executor's own futures. Idempotent.
        """
        if os.getpid() != self._pid:
            return
        self._manager.work.close(cancel_futures)
        self._join(wait)

    def terminate_workers(self) -> None:
        """Cancel waiting items, and end the workers by SIGTERM, and by SIGKILL after 10 s.

        Running items fail with BrokenGpuExecutorError. Waits until the cards are given back.
        """
        if os.getpid() != self._pid:
            return
        self._manager.terminate()
        self._join(True)

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        """Shut down; after a Ctrl-C, also one that comes meanwhile, terminate the workers."""
        try:
            if not _interrupted(error):
                self.shutdown()
                return
        except KeyboardInterrupt:
            self.terminate_workers()
            raise
        self.terminate_workers()

    def _join(self, wait: bool) -> None:
        if wait and threading.current_thread() not in self._manager.threads:
            self._manager.wait()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this GpuExecutor belongs to process {self._pid}, from which this one was forked:"
                " make another one here"
            )


# ── Arguments ───────────────────────────────────────────────────────────────────────────────────


def _at_least_one(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise TypeError(f"{name}: expected a whole number, found {number!r}")
        if number is not None and number < 1:
            raise ValueError(f"{name}: expected at least 1, found {number}")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _checked(env: Mapping[str, str | None]) -> dict[str, str | None]:
    for name in (MASK, ORDER):
        if name in env:
            raise UsageError(
                f"env: {name} is what gives each worker its own card; choose cards with gpus="
            )
    return dict(env)


def _pool(
    gpus: str | int | Sequence[int | str],
    simulate: int | None,
    environ: Mapping[str, str],
    share_busy: bool,
    free_below: str | None,
) -> CardPool:
    if isinstance(gpus, int):
        _at_least_one(gpus=gpus)
        spec: str | Selection = Selection(count=gpus)
    else:
        spec = gpus if isinstance(gpus, str) else str([*gpus])
    try:
        line = parse_free_below(free_below) if free_below else None
    except ValueError as error:
        raise UsageError(f"free_below={free_below!r}: {error}") from None
    run = f"executor-{secrets.token_hex(4)}"
    try:
        pool = open_pool(spec, simulate, environ, run, share_busy, line)
    except SelectionError as error:
        raise UsageError(f"gpus={gpus!r}: {error.text}") from None
    if not pool.size:
        notes = "".join(f"\n  {note}" for note in pool.notes)
        raise NoCardsError(
            "expected a card, found none here (to try without: simulate=N; what is wrong here:"
            f" gpulaunch doctor){notes}"
        )
    return pool


# ── Start, exit, fork ───────────────────────────────────────────────────────────────────────────


@functools.cache
def _hook() -> None:
    # As concurrent.futures' own executors do it: before the interpreter waits for other threads.
    threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
    os.register_at_fork(
        before=launching.acquire, after_in_parent=launching.release, after_in_child=_after_fork
    )


class _Asker(weakref.ref[GpuExecutor]):
    """A weak reference to an executor, with its manager."""

    manager: Manager


@functools.cache
def _undertaker() -> SimpleQueue[_Asker]:
    """Return the queue of collected executors, whose thread tells their managers.

    An exception that a signal handler raises in a destructor or a weak reference's callback is
    printed and lost. This queue's `put` is in C, and made for callbacks: no handler runs in it.
    """
    gone: SimpleQueue[_Asker] = SimpleQueue()
    _thread.start_new_thread(_reap, (gone,))
    return gone


def _reap(gone: SimpleQueue[_Asker]) -> None:
    while True:
        gone.get().manager.abandon()


def _at_exit() -> None:
    """Finish pending items; after a Ctrl-C that was not caught, end the workers instead.

    A Ctrl-C that comes now is reported, and ends the process, as one that is not caught does. An
    exception raised here would not: CPython prints an odd traceback for it, skips the exit hooks
    of other libraries, and exits with 0.
    """
    try:
        for manager in list(running):
            manager.work.close()
        if _interrupted(getattr(sys, "last_value", None)):
            _terminate_all()
        for manager in list(running):
            manager.wait()
    except KeyboardInterrupt as interrupt:
        _terminate_all()
        sys.excepthook(KeyboardInterrupt, interrupt, interrupt.__traceback__)
        # CPython notes a KeyboardInterrupt that leaves top-level code (`run_eval_code_obj` in
        # Python/pythonrun.c): the process then dies by SIGINT at the end of `Py_RunMain`.
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _terminate_all() -> None:
    for manager in list(running):
        manager.terminate()
    for manager in list(running):
        manager.wait()


def _interrupted(error: BaseException | None) -> bool:
    """Tell whether the error is a Ctrl-C, or was raised while one was being handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


def _after_fork() -> None:
    launching.release()
    for manager in list(running):
        with suppress(OSError):
            manager.close_in_child()
    running.clear()
    _undertaker.cache_clear()
