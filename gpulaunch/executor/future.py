"""`GpuFuture`, and waits that a Ctrl-C ends without leaving a lock taken.

A signal's Python handler, and with it a KeyboardInterrupt, runs in the main thread alone, and
there only where the interpreter checks: after a call has returned, at the beginning of a Python
function, at a jump back (`CHECK_EVAL_BREAKER` in Python/ceval.c and bytecodes.c, 3.10 to 3.13).
So a single call of a function written in C is never interrupted halfway, nor is a `with` statement
between the call of an `__enter__` written in C and the entry of its body. Several calls of Python
code are: `threading.Condition.__enter__` may take its lock and never return.

A blocking wait ends early only for a signal that comes *during* the wait (EINTR: `acquire_timed` in
Modules/_threadmodule.c). A signal that came just before, after the interpreter's last check, or
whose C handler ran in another thread, is noticed when the wait is over, which may be never. No call
waits for a lock and a signal at once, as `ppoll` does for descriptors; so the main thread waits in
slices.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import operator
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from itertools import starmap
from types import FrameType
from typing import Any, Protocol, TypeVar

from gpulaunch.base.errors import NO_CARDS, GpulaunchError, NoCardsError
from gpulaunch.core.model import Gpu

T = TypeVar("T")

SLICE = 0.2
"""Seconds after which the main thread checks for signals while it waits."""


def in_main_thread() -> bool:
    return _thread.get_ident() == threading.main_thread().ident


class Condition(threading.Condition):
    """A `threading.Condition` on an RLock that a signal handler's exception leaves intact.

    Wherever that is raised, the lock is neither kept after the `with` nor missing at its end.
    """

    # The lock's own methods, in C. Properties, as `with` looks for them in the type.
    __enter__ = property(operator.attrgetter("_lock.__enter__"))
    __exit__ = property(operator.attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        super().__init__(threading.RLock())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as the base class does; in the main thread, notice a signal within SLICE seconds."""
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        released: list[Any] = []
        try:
            # One call in C releases the lock and records that it did.
            released.extend(starmap(self._release_save, ((),)))  # type: ignore[attr-defined]
            return _acquired(waiter, timeout)
        finally:
            # INVARIANT: nothing is called before the lock is back. An RLock's `_acquire_restore`
            # is in C and waits through signals, for as long as another thread needs to notify.
            for state in released:
                self._acquire_restore(state)  # type: ignore[attr-defined]
            # Checked first: `remove` of an absent waiter words a ValueError, in which a signal's
            # exception is lost on Python 3.10 (`PyObject_Repr` checks for signals), or chained.
            if waiter in self._waiters:  # type: ignore[attr-defined]
                self._waiters.remove(waiter)  # type: ignore[attr-defined]


def _acquired(lock: _thread.LockType, timeout: float | None) -> bool:
    if not in_main_thread():
        return lock.acquire(True, -1 if timeout is None else max(timeout, 0))
    until = None if timeout is None else time.monotonic() + timeout
    left = SLICE if until is None else timeout
    while not lock.acquire(True, min(SLICE, max(left or 0, 0))):
        left = SLICE if until is None else until - time.monotonic()
        if left <= 0:
            return False
    return True


class Event(threading.Event):
    """A `threading.Event` on a `Condition` of this module."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition()


# ── What `concurrent.futures.wait` and `as_completed` do with a future ──────────────────────────


class Place(Protocol):
    """Where an item waits that is sent to a worker and has not begun."""

    def recall(self, future: GpuFuture[Any], tell: Callable[[bool], object]) -> None:
        """Take the future's item back, and tell whether that was so. Only changes its state."""


class GpuFuture(Future[T]):
    """A `concurrent.futures.Future`; `gpu` is the card on which its item runs or ran, else None.

    `place` is set while the item is ahead at a worker: to the base class, the future runs then.
    """

    gpu: Gpu | None = None
    place: Place | None = None

    def __init__(self) -> None:
        super().__init__()
        self._condition = _FuturesCondition()
        self._waiters = _Waiters()

    def cancel(self) -> bool:
        """Cancel the call, also one that is ahead at a worker; False where it has begun."""
        while not super().cancel():
            place = self.place
            if place is None or not _recalled(self, place):
                return super().cancel()  # it may have been taken back meanwhile
        return True

    def running(self) -> bool:
        return self.place is None and super().running()


def _recalled(future: GpuFuture[Any], place: Place) -> bool:
    """Take the future's item back from where it is ahead; return whether that was so.

    Not in the main thread, where an interrupt between two calls would lose the item.
    """
    told: list[bool] = []
    over = _thread.allocate_lock()
    over.acquire()

    def tell(found: bool) -> None:
        told.append(found)
        over.release()

    if in_main_thread():
        with suppress(RuntimeError):  # an interpreter that exits starts no thread any more
            _thread.start_new_thread(place.recall, (future, tell))
            _acquired(over, None)
            return told[0]
    place.recall(future, tell)
    return told[0]


class _Waiters(list[Any]):
    """A future's waiters. Each gets an `Event` of this module when it is added.

    Its thread holds the locks of all its futures then (`_AcquireFutures`): no thread has set the
    event that is replaced, or waits for it.
    """

    __slots__ = ()

    def append(self, waiter: Any) -> None:
        if type(getattr(waiter, "event", None)) is threading.Event:
            waiter.event = Event()
        super().append(waiter)


class _FuturesCondition(Condition):
    """A condition whose `acquire` holds SIGINT's handler back until `release`.

    `_AcquireFutures` takes the locks of many futures in a loop: an exception halfway would leave
    these locks taken. A `with` takes its one lock in a single call, and needs none of this.
    """

    def __init__(self) -> None:
        super().__init__()
        # The base class puts the lock's own methods into each instance.
        del self.acquire, self.release

    def acquire(self, *args: Any) -> bool:
        if in_main_thread():
            _sigint.hold(sys._getframe(1).f_back)
        return bool(self._lock.acquire(*args))  # type: ignore[attr-defined]

    def release(self) -> None:
        self._lock.release()  # type: ignore[attr-defined]
        if in_main_thread():
            _sigint.let_go()


class _Sigint:
    """Keeps SIGINT's handler waiting while the main thread takes the locks of many futures.

    The handler is replaced, and the signal not blocked: a signal that this thread blocks goes to
    another thread (a BLAS library's, say), and its Python handler runs in the main thread all the
    same. `_signal`'s functions are in C; those of `signal` raise an exception inside, to which an
    interrupt would be chained.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Any = None
        self._holder: FrameType | None = None
        self._came = False

    def hold(self, holder: FrameType | None) -> None:
        """Replace SIGINT's handler. `holder`: the function that releases all locks at its end."""
        if self._depth and self._holder is not holder and not _is_running(self._holder):
            self._restore()
        if self._depth == 0:
            handler = _signal.getsignal(_signal.SIGINT)
            self._handler, self._holder, self._came = None, holder, False
            if callable(handler):
                self._handler = handler
                with suppress(ValueError):  # not the main interpreter's main thread
                    _signal.signal(_signal.SIGINT, self._note)
        self._depth += 1

    def let_go(self) -> None:
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            handler = self._handler
            if self._restore():
                handler(_signal.SIGINT, sys._getframe(1))

    def _restore(self) -> bool:
        """Put SIGINT's handler back; return whether a signal came meanwhile.

        The handler is put back first: until then `_note` may run, which needs the other fields.
        """
        if self._handler is not None and _signal.getsignal(_signal.SIGINT) == self._note:
            _signal.signal(_signal.SIGINT, self._handler)
        came = self._came
        self._depth, self._handler, self._holder, self._came = 0, None, None, False
        return came

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if _is_running(self._holder, frame):
            self._came = True
            return None
        # The holder returned without releasing: it failed on an object that is no future.
        handler = self._handler
        self._restore()
        return handler(number, frame)


_sigint = _Sigint()


def _is_running(frame: FrameType | None, innermost: FrameType | None = None) -> bool:
    """Tell whether the frame is on the stack of the main thread, which calls this."""
    at = innermost or sys._getframe(1)
    while at is not None and at is not frame:
        at = at.f_back  # type: ignore[assignment]
    return at is not None


# ── Exceptions ────────────────────────────────────────────────────────────────────────────────────


class WorkerDiedError(GpulaunchError):
    """The worker's process ended while it ran this item; another worker takes the next items.

    `exit_code` or `signal` says how it ended (both None: not known), `gpu` is its card, and
    `stderr` the end of its standard error, at most 4 KiB.
    """

    def __init__(
        self,
        text: str,
        gpu: Gpu | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        stderr: str = "",
    ) -> None:
        super().__init__(text)
        self.gpu = gpu
        self.exit_code = exit_code
        self.signal = signal
        self.stderr = stderr

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.gpu, self.exit_code, self.signal, self.stderr)


class BrokenGpuExecutorError(BrokenExecutor, GpulaunchError):
    """No worker can be started any more: waiting items fail with this, and no more are accepted."""


class NoCardsForExecutorError(BrokenGpuExecutorError, NoCardsError):
    """The executor's cards can never be had, or none came free in the time that `wait` gave."""

    status = NO_CARDS


class RemoteError(Exception):
    """Stands for a function's exception that cannot be unpickled here: its type and text."""


class RemoteTraceback(Exception):
    """The cause of an exception from a worker; its text is the traceback in the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
