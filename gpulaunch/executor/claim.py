"""Items, and a worker's claim to them: what it runs, and what it has ahead.

A few items are sent to a worker ahead, while it runs another: it waits for nobody in between. Those
have not begun: they can be cancelled, and are taken back for a worker that has nothing to do.
Whether one was still to be had is the kernel's word, see `executor.channel`. A worker may run them
in another order: an answer bears the number of the item that it belongs to.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulaunch.executor.channel import ChannelMessage, ItemLine
from gpulaunch.executor.future import GpuFuture


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
    """One worker's claim to items. `void`: it gets no more of them.

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
