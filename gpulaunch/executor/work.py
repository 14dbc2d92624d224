"""The items that wait, and the workers that wait for items: shared by callers, threads and manager.

Owns the one lock. INVARIANT: no caller's code runs under it: futures are changed, and so their
callbacks run, outside of it. Starts nothing and knows nothing of processes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulaunch.executor.errors import BrokenGpuExecutorError
from gpulaunch.executor.future import GpuFuture

_CLOSED = "cannot schedule new futures after shutdown"


@dataclass(slots=True, eq=False)
class WorkItem:
    """One call and its future. `passed_on`: how many workers died without having begun it."""

    future: GpuFuture[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    passed_on: int = 0

    def begin(self) -> bool:
        """Set the future to running; return False where it was cancelled."""
        return bool(self.passed_on) or self.future.set_running_or_notify_cancel()


@dataclass(slots=True, eq=False)
class Claim:
    """One worker's claim to items. `void`: it gets no more of them.

    `ready`: it has asked for a first item; `idle`: it waits for one.
    """

    void: bool = False
    ready: bool = False
    idle: bool = False


class Work:
    """The items in the order in which they came. `call` wakes the manager, from any thread.

    `most`: workers at most.
    """

    def __init__(self, most: int, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.RLock()  # a signal handler may call a method its thread is in
        self._news = threading.Condition(self._lock)
        self._items: deque[WorkItem] = deque()
        self._dropped: list[WorkItem] = []
        self._claims: set[Claim] = set()
        self.most = most
        self._asked = 0
        self._closed = False
        self._broken: BrokenGpuExecutorError | None = None
        self._in_hand = 0
        self.terminating = False
        self.readied = 0
        """How many workers have ever become ready."""

    # ── Callers ─────────────────────────────────────────────────────────────────────────────────

    def put(self, item: WorkItem) -> None:
        """Add an item. Raises RuntimeError after `close`, BrokenGpuExecutorError after `fail`."""
        with self._lock:
            if self._broken:
                raise type(self._broken)(str(self._broken))
            if self._closed:
                raise RuntimeError(_CLOSED)
            self._items.append(item)
            self._news.notify()
            call = self._asked < self._short()
        if call:
            self._call()

    def close(self, cancel: bool = False, terminate: bool = False) -> None:
        """Accept no more items. Waiting ones are still done; with `cancel`, `drop` cancels them.

        `terminate`: the workers are to be ended, whatever they do.
        """
        with self._lock:
            self._closed = True
            self.terminating = self.terminating or terminate
            if cancel:
                # An item that a worker died with is running, to its caller: it stays.
                kept = deque(item for item in self._items if item.passed_on)
                dropped = [item for item in self._items if not item.passed_on]
                # In one statement: without a call in between, no Ctrl-C can come in between.
                self._items, self._dropped = kept, self._dropped + dropped
            self._news.notify_all()
        self._call()

    def fail(self, error: BrokenGpuExecutorError) -> None:
        """Let all waiting items fail with this error, and accept no more."""
        with self._lock:
            self._closed = True
            self._broken = self._broken or error
            failed = list(self._items)
            self._items.clear()
            self._news.notify_all()
        for item in failed:
            if item.begin():
                item.future.set_exception(error)

    # ── Workers' threads ────────────────────────────────────────────────────────────────────────

    def take(self, claim: Claim) -> WorkItem | None:
        """Wait for the next item and return it, its future running; None: the worker is to end.

        Call `over` afterwards, before the future gets its result, or `put_back`.
        """
        while item := self._next(claim):
            if item.begin():
                return item
            self.over()
        return None

    def _next(self, claim: Claim) -> WorkItem | None:
        with self._lock:
            self.readied += not claim.ready
            claim.ready = claim.idle = True
            while not (self._items or self._closed or claim.void):
                self._news.wait()
            claim.idle = False
            if claim.void or not self._items:
                claim.void = True
                if self._items:
                    self._news.notify()  # this thread was woken for an item that it does not take
                return None
            item = self._items.popleft()
            self._in_hand += 1
            call = self._asked > self._short()
        if call:
            self._call()
        return item

    def over(self) -> None:
        """Count an item that was taken as no longer in hand: it will not be put back."""
        with self._lock:
            self._in_hand -= 1
            call = self._closed
        if call:
            self._call()

    def put_back(self, item: WorkItem) -> bool:
        """Put back, as the first, an item that a dead worker had not begun; False after `fail`."""
        with self._lock:
            self._in_hand -= 1
            if self._broken:
                return False
            item.passed_on += 1
            self._items.appendleft(item)
            self._news.notify()
        self._call()
        return True

    # ── The manager ─────────────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        """Cancel the items that `close` took out. Only in the manager's thread, without Ctrl-C."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
        for item in dropped:
            if item.future.cancel():
                item.future.set_running_or_notify_cancel()

    def enter(self, claim: Claim) -> None:
        with self._lock:
            self._claims.add(claim)

    def void(self, claim: Claim) -> None:
        """Give this worker no more items, as it is gone or about to go."""
        with self._lock:
            claim.void = True
            self._news.notify_all()

    def leave(self, claim: Claim) -> None:
        """Remove a worker, so that another may be started in its place."""
        with self._lock:
            self._claims.discard(claim)

    def balance(self, asked: int, halted: bool = False) -> int:
        """Return how many more workers (negative: fewer) to ask for, and count them as asked for.

        `asked`: how many are asked for and not launched yet. `halted`: ask for none at all.
        """
        with self._lock:
            more = (0 if halted else self._short()) - asked
            self._asked = asked + more
            return more

    @property
    def done(self) -> bool:
        """True once closed, with no item that waits or may be put back."""
        with self._lock:
            return self._closed and not (self._items or self._dropped or self._in_hand)

    @property
    def serving(self) -> int:
        """How many workers have become ready and still take items."""
        with self._lock:
            return sum(claim.ready and not claim.void for claim in self._claims)

    def _short(self) -> int:
        """Return how many more workers would find an item, beside those idle or starting."""
        soon = sum(not t.void and (t.idle or not t.ready) for t in self._claims)
        room = self.most - len(self._claims)
        return max(0, min(len(self._items) - soon, room))
