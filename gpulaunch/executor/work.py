"""What waits to be done, and who waits for it: shared by callers, workers' threads and manager.

Owns the one lock. INVARIANT: nobody's code runs under it; futures change, and with them callbacks
run, outside of it. Starts nothing and knows nothing of processes.
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
    """`passed_on`: how many workers died without having begun it."""

    future: GpuFuture[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    passed_on: int = 0

    def begin(self) -> bool:
        """Its future runs from now on; False where it was cancelled."""
        return bool(self.passed_on) or self.future.set_running_or_notify_cancel()


@dataclass(slots=True, eq=False)
class Claim:
    """One worker's claim to items. `void`: it gets no more of them; `ready`: it began to ask."""

    void: bool = False
    ready: bool = False
    idle: bool = False


class Work:
    """Items in the order in which they came. `call` wakes the manager, from any thread."""

    def __init__(self, most: int, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.RLock()  # a signal's handler may call what its thread is in
        self._news = threading.Condition(self._lock)
        self._items: deque[WorkItem] = deque()
        self._dropped: list[WorkItem] = []
        self._tickets: set[Claim] = set()
        self.most = most
        self._asked = 0
        self._closed = False
        self._broken: BrokenGpuExecutorError | None = None
        self._in_hand = 0
        self.readied = 0
        """How many workers have ever become ready."""

    # ── Callers ─────────────────────────────────────────────────────────────────────────────────

    def put(self, item: WorkItem) -> None:
        """Raises RuntimeError after `close`, BrokenGpuExecutorError after `fail`."""
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

    def close(self, cancel: bool = False) -> None:
        """Nothing more comes. What waits is still done, unless it is to be cancelled (`drop`)."""
        with self._lock:
            self._closed = True
            if cancel:
                # One that a worker died with is running, for its caller: it cannot be cancelled.
                kept = deque(item for item in self._items if item.passed_on)
                dropped = [item for item in self._items if not item.passed_on]
                # Together: no call lies between the two, and so no Ctrl-C.
                self._items, self._dropped = kept, self._dropped + dropped
            self._news.notify_all()
        self._call()

    def fail(self, error: BrokenGpuExecutorError) -> None:
        """Nothing can be done any more: everything that waits fails, and so does what comes."""
        with self._lock:
            self._closed = True
            self._broken = self._broken or error
            failed = list(self._items)
            self._items.clear()
            self._news.notify_all()
        for item in failed:
            if item.begin():
                item.future.set_exception(error)

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    @property
    def broken(self) -> BrokenGpuExecutorError | None:
        return self._broken

    # ── Workers' threads ────────────────────────────────────────────────────────────────────────

    def take(self, ticket: Claim) -> WorkItem | None:
        """The next item, whose future then runs; waits for one. None: the worker is to go.

        To be followed by `over`, before the future is told, or by `put_back`.
        """
        while item := self._next(ticket):
            if item.begin():
                return item
            self.over()
        return None

    def _next(self, ticket: Claim) -> WorkItem | None:
        with self._lock:
            self.readied += not ticket.ready
            ticket.ready = ticket.idle = True
            while not (self._items or self._closed or ticket.void):
                self._news.wait()
            ticket.idle = False
            if ticket.void or not self._items:
                ticket.void = True
                if self._items:
                    self._news.notify()  # what woke this thread may have been meant for another
                return None
            item = self._items.popleft()
            self._in_hand += 1
            call = self._asked > self._short()
        if call:
            self._call()
        return item

    def over(self) -> None:
        """What has come of an item that was taken is between its worker and its future."""
        with self._lock:
            self._in_hand -= 1
            call = self._closed
        if call:
            self._call()

    def put_back(self, item: WorkItem) -> bool:
        """First in the line again: its worker died before it began. False: it is too late."""
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
        """Cancel what `close` has taken out of the line: where no Ctrl-C can leave half of it."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
        for item in dropped:
            if item.future.cancel():
                item.future.set_running_or_notify_cancel()

    def enter(self, ticket: Claim) -> None:
        with self._lock:
            self._tickets.add(ticket)

    def void(self, ticket: Claim) -> None:
        """Its worker is gone, or about to go: it gets no more items."""
        with self._lock:
            ticket.void = True
            self._news.notify_all()

    def leave(self, ticket: Claim) -> None:
        """Another worker may have its place."""
        with self._lock:
            self._tickets.discard(ticket)

    def balance(self, asked: int, halted: bool = False) -> int:
        """How many workers more (or, negative, fewer) to ask for, where `asked` are asked for and
        not launched; so many are counted as asked for from here on. `halted`: none at all."""
        with self._lock:
            more = (0 if halted else self._short()) - asked
            self._asked = asked + more
            return more

    @property
    def done(self) -> bool:
        """Closed, and nothing is left that waits, or may have to wait again."""
        with self._lock:
            return self._closed and not (self._items or self._dropped or self._in_hand)

    @property
    def serving(self) -> int:
        """How many workers have become ready, and are not about to go."""
        with self._lock:
            return sum(ticket.ready and not ticket.void for ticket in self._tickets)

    def _short(self) -> int:
        """Workers that could begin now, were they there: beside those that soon can."""
        soon = sum(not t.void and (t.idle or not t.ready) for t in self._tickets)
        room = self.most - len(self._tickets)
        return max(0, min(len(self._items) - soon, room))
