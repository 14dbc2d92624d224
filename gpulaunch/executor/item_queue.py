"""The items that wait, and the workers that wait for items: shared by callers, threads and manager.

    put ─▶ items ─▶ take ─▶ a worker runs it ─▶ over, answered
             │  ▲                                      ▲
             │  └─ put back: its worker died           │ begun
             └─▶ take_ahead ─▶ ahead at a worker ──────┘
                                    └─▶ taken back: by a free worker's take, by cancel, by a death

Owns the lock of it all; a claim has its own, taken last. INVARIANT: no caller's code runs under
them: futures are changed, and so their callbacks run, outside. Starts nothing and knows nothing of
processes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulaunch.executor.channel import ChannelMessage, ItemLine
from gpulaunch.executor.future import BrokenGpuExecutorError, GpuFuture

# ── Items and claims ──────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class WorkItem:
    """One call and its future. `passed_on`: how many workers died without having begun it.

    `message`: the item as it is sent, where that is known and does not go ahead. `since`: when it
    went ahead. `number`: no other item of this process has it.
    """

    future: GpuFuture[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    passed_on: int = 0
    message: ChannelMessage | None = None
    since: float = 0
    number: int = field(default_factory=itertools.count(1).__next__)

    def begin(self) -> bool:
        """Set the future to running; return False where it was cancelled."""
        return bool(self.passed_on) or self.future.set_running_or_notify_cancel()

    def wait_again(self) -> None:
        """Set the future, which nobody runs, back to pending.

        Two stores, without the future's lock: whoever calls this is the only one who has the item.
        """
        self.future._state = "PENDING"  # first: whoever finds no place can cancel it
        self.future.place = None


@dataclass(slots=True, eq=False)
class Claim:
    """One worker's claim to items: what it runs, and what it has ahead. `void`: it gets no more.

    A few items are sent to a worker ahead, while it runs another, so that it waits for nobody in
    between. They have not begun: they can be cancelled, and are taken back for a worker that has
    nothing to do. Whether one was still to be had is the kernel's word, see `executor.channel`. A
    worker may run them in another order: an answer bears the number of its item.

    `ready`: it has asked for a first item; `idle`: it waits for one; `taking`: it is about to get
    one ahead. `ahead`: those, from then until they have begun, the next one first. `readmit` is
    told of an item that `recall` took back.
    """

    line: ItemLine | None = None
    readmit: Callable[[WorkItem], None] | None = None
    void: bool = False
    ready: bool = False
    idle: bool = False
    taking: bool = False
    ahead: deque[WorkItem] = field(default_factory=deque)
    unsent: WorkItem | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get_ahead(self, item: WorkItem, now: float) -> None:
        """Add an item, which is to be sent. `now`: the time, in seconds."""
        with self._lock:
            item.since, item.future.place = now, self
            self.ahead.append(item)
            self.unsent = item

    def send(self, item: WorkItem, message: ChannelMessage) -> bool:
        """Send the item, unless it was taken back meanwhile; False where the line does not take it.

        It is not ahead any more then, but in the caller's hand.
        """
        assert self.line
        with self._lock:
            if self.unsent is not item:
                return True
            self.unsent = None
            if self.line.put(message, wait=False):
                return True
            self._remove(item)
            return False

    def take_back(self, item: WorkItem) -> bool:
        """Make the item, which is ahead, wait again; False where it has begun, or is not ahead.

        It stays in hand: the caller has to take it, or to put it back.
        """
        if item not in self.ahead:  # in a forked child, nobody would release the lock
            return False
        with self._lock:
            if item is self.unsent:
                self.unsent = None
            else:
                if not (item in self.ahead and self.line and self.line.take_back(item.number)):
                    return False
            self._remove(item)
            return True

    def recall(self, future: GpuFuture[Any], tell: Callable[[bool], object]) -> None:
        """Take the future's item back, so that it can be cancelled, and tell whether that was so.

        The item waits again then. It is told before that: nobody waits for the lock of `Work`.
        """
        for item in list(self.ahead):
            if item.future is future and self.take_back(item):
                tell(True)
                if self.readmit:
                    self.readmit(item)
                return
        tell(False)

    def answered(self, running: WorkItem, number: int) -> tuple[WorkItem | None, WorkItem | None]:
        """Return the item that this number answers, and the one that is taken for running then.

        No item for a number that was answered before: a process that the worker forked says it.
        """
        with self._lock:
            if number == running.number:
                return running, self._pop(0)
            for at, item in enumerate(self.ahead):
                if item.number == number:
                    return self._pop(at), running
            return None, running

    def begun(self) -> WorkItem | None:
        """Return the first of those that were ahead, which is ahead no more."""
        with self._lock:
            return self._pop(0)

    def _pop(self, at: int) -> WorkItem | None:
        if not self.ahead:
            return None
        item = self.ahead[at]
        del self.ahead[at]
        item.future.place = None
        return item

    def _remove(self, item: WorkItem) -> None:
        self.ahead.remove(item)
        item.wait_again()


# ── The queue ─────────────────────────────────────────────────────────────────────────────────────

AHEAD = 4
"""Items that a worker has ahead, at most."""
AHEAD_TOO_LONG = 0.05
"""Seconds that an item waits ahead at one worker while others begin items that came later."""

_CLOSED = "cannot schedule new futures after shutdown"


class Work:
    """The items in the order in which they came. `call` wakes the manager, from any thread.

    `most`: workers at most. `clock`: the time, in seconds.
    """

    def __init__(
        self, most: int, call: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._call = call
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may call a method its thread is in
        self._news = threading.Condition(self._lock)
        self._items: deque[WorkItem] = deque()
        self._dropped: list[WorkItem] = []
        self._cancelling = False
        self._claims: dict[Claim, None] = {}
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
                self._items, self._dropped, self._cancelling = kept, self._dropped + dropped, True
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
            while (item := self._first(claim)) is None and not claim.void:
                # An item that another worker is about to get ahead may be wanted here after all.
                if self._closed and not any(other.taking for other in self._claims):
                    break
                self._news.wait()
            claim.idle = False
            if item is None:
                claim.void = True
                if self._items:
                    self._news.notify()  # this thread was woken for an item that it does not take
                return None
            call = self._asked > self._short()
        if call:
            self._call()
        return item

    def _first(self, claim: Claim) -> WorkItem | None:
        """Return the item that this worker is to run, now in hand."""
        if claim.void:
            return None
        item = self._from_another(claim, AHEAD_TOO_LONG if self._items else 0)
        if item is None and self._items:
            item = self._items.popleft()
            self._in_hand += 1
        return item

    def _from_another(self, claim: Claim, since: float) -> WorkItem | None:
        """Take back, and return, what is ahead at another worker for so many seconds; the first."""
        # Lists, as items that have begun or are cancelled leave without this lock.
        ahead = [(item, at) for at in self._claims if at is not claim for item in list(at.ahead)]
        if ahead:
            late = self._clock() - since
            for item, at in sorted(ahead, key=lambda pair: pair[0].since):
                if item.since <= late and at.take_back(item):
                    return item
        return None

    def take_ahead(self, claim: Claim) -> WorkItem | None:
        """Return an item for a worker that runs one, to be sent ahead; None: there is none.

        No item that a free worker could begin is one. It may be taken back at once.
        """
        with self._lock:
            if len(claim.ahead) >= AHEAD or not self._spare(claim):
                return None
            item = self._from_another(claim, AHEAD_TOO_LONG)
            if item is None:
                if self._items[0].passed_on or self._items[0].message:
                    return None
                item = self._items.popleft()
                self._in_hand += 1
            claim.taking = True
        began = item.begin()
        with self._lock:
            sent = began and self._spare(claim)
            if sent:
                claim.get_ahead(item, self._clock())
                claim.taking = False
        if not sent:
            self._not_ahead(claim, item, began)
        return claim.unsent

    def _not_ahead(self, claim: Claim, item: WorkItem, began: bool) -> None:
        """Put the item back after all, unless it was cancelled: then `began` is False."""
        if began:
            item.wait_again()
            self.readmit(item)
        else:
            self.over()
        with self._lock:
            claim.taking = False
            self._news.notify_all()

    def _spare(self, claim: Claim) -> bool:
        """Tell whether the worker may get an item ahead: as there are more than for free ones."""
        idle = sum(other.idle and not other.void for other in self._claims)
        waiting = len(self._items) + claim.taking
        return waiting > idle and not (claim.void or self._cancelling or self._broken)

    def answered(
        self, claim: Claim, running: WorkItem, number: int
    ) -> tuple[WorkItem | None, WorkItem | None]:
        """Count the item that this number answers as over, and return it, and the one running now.

        See `Claim.answered`. `running`: the one that was taken for running until now.
        """
        with self._lock:
            done, now = claim.answered(running, number)
            self._in_hand -= done is not None
            call = self._closed or self._asked > self._short()
        if call:
            self._call()
        return done, now

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
            if self._broken:
                self._in_hand -= 1
                return False
            item.passed_on += 1
            self._put_first(item)
        self._call()
        return True

    def readmit(self, item: WorkItem) -> None:
        """Put an item back that was ahead and was taken back: as if it had never been taken."""
        with self._lock:
            broken = self._broken
            if broken:
                self._in_hand -= 1
            else:
                self._put_first(item)
        self._call()
        if broken and item.begin():
            item.future.set_exception(broken)

    def _put_first(self, item: WorkItem) -> None:
        self._in_hand -= 1
        if self._cancelling and not item.passed_on:
            self._dropped.append(item)
        else:
            self._items.appendleft(item)
            self._news.notify()

    # ── The manager ─────────────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        """Cancel what waits and `close` was to cancel. In the manager's thread alone: no Ctrl-C."""
        with self._lock:
            if self._cancelling:
                for claim in self._claims:
                    ahead = [item for item in list(claim.ahead) if claim.take_back(item)]
                    self._in_hand -= len(ahead)
                    self._dropped.extend(ahead)
            dropped, self._dropped = self._dropped, []
        for item in dropped:
            if item.future.cancel():
                item.future.set_running_or_notify_cancel()

    def enter(self, claim: Claim) -> None:
        with self._lock:
            self._claims[claim] = None

    def void(self, claim: Claim) -> None:
        """Give this worker no more items, as it is gone or about to go."""
        with self._lock:
            claim.void = True
            self._news.notify_all()

    def leave(self, claim: Claim) -> None:
        """Remove a worker, so that another may be started in its place."""
        with self._lock:
            self._claims.pop(claim, None)

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
        waiting = len(self._items) + sum(t.taking + len(t.ahead) for t in self._claims)
        return max(0, min(waiting - soon, room))
