"""Waits on descriptors, signals and timers in one thread. Owns nothing else; decides nothing.

Everything that happens to a run comes in through `turn`: a descriptor became readable, a timer is
due, a signal arrived. No wake-up happens without one of these.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from types import FrameType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Callback: TypeAlias = Callable[[], object]

LATEST = 0.02
"""Seconds for which callbacks are put off at most while there is always something else to do."""


class Loop:
    """A selector with timers. `close` gives back what it took, signal handlers included.

    `now` returns monotonic seconds: timers, and those who use the loop, go by it.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Hashable]] = []
        self._due: dict[Hashable, tuple[int, float, Callback]] = {}
        self._sequence = 0
        self._later: list[Callback] = []
        self._latest = 0.0
        self._signals: dict[int, Any] = {}
        self._arrived: list[int] = []
        self._wakeup: tuple[int, int] | None = None
        self._others_wakeup = -1

    def watch(self, fd: int, callback: Callback, write: bool = False) -> None:
        """Call back whenever `fd` is readable (`write`: whenever it is writable)."""
        mask = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        try:
            self._selector.modify(fd, mask, callback)
        except KeyError:
            self._selector.register(fd, mask, callback)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`, before it is closed. Unknown descriptors are ignored."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            return

    def call_at(self, key: Hashable, at: float, callback: Callback) -> None:
        """Call once at `at` (monotonic seconds); the newest of one key counts."""
        pending = self._due.get(key)
        if pending and pending[1] == at:
            self._due[key] = (pending[0], at, callback)
            return
        self._sequence += 1
        self._due[key] = (self._sequence, at, callback)
        heapq.heappush(self._timers, (at, self._sequence, key))

    def call_after(self, key: Hashable, seconds: float, callback: Callback) -> None:
        self.call_at(key, self.now() + seconds, callback)

    def forget(self, key: Hashable) -> None:
        self._due.pop(key, None)

    def later(self, callback: Callback) -> None:
        """Call once nothing has come, or after `LATEST` seconds: for what nobody waits for."""
        if not self._later:
            self._latest = self.now() + LATEST
        self._later.append(callback)

    def catch_up(self) -> None:
        """Call what was put off; `turn` does that before it waits, and at the latest when due."""
        while self._later:
            put_off, self._later = self._later, []
            for callback in put_off:
                callback()

    def in_thread(self, work: Callable[[], T], done: Callable[[T | Exception], object]) -> Callback:
        """Do `work` in a thread, then call `done` with what it returned or raised, from `turn`.

        Returns a function that forgets the work: `done` is not called any more, and the thread ends
        by itself. Raises OSError or RuntimeError if there is no descriptor or no thread left.
        """
        read, write = os.pipe2(os.O_CLOEXEC)
        found: list[T | Exception] = []
        still_open = [read]

        def work_on() -> None:
            try:
                found.append(work())
            except Exception as error:  # the thread of the loop decides what this means
                found.append(error)
            finally:
                os.close(write)

        def forget() -> None:
            while still_open:
                self.unwatch(read)
                os.close(still_open.pop())

        def over() -> None:
            forget()
            done(found[0])

        try:
            threading.Thread(target=work_on, daemon=True).start()
        except RuntimeError:
            os.close(read)
            os.close(write)
            raise
        self.watch(read, over)
        return forget

    def on_signals(self, numbers: Iterable[int], callback: Callable[[int], object]) -> None:
        """Deliver these signals as callbacks from `turn`. Main thread only."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = (read, write)
        self._others_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in numbers:
            self._signals[number] = signal.signal(number, self._note_signal)

        def deliver() -> None:
            os.read(read, 4096)
            arrived, self._arrived = self._arrived, []
            for number in arrived:
                callback(number)

        self.watch(read, deliver)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)

    def turn(self, block: bool = True) -> None:
        """Wait until something happens (with `block` false: not at all), and call back for it."""
        ready = self._selector.select(0)
        if self._later and not (ready and self.now() < self._latest):
            self.catch_up()
        if block and not ready:
            ready = self._selector.select(self._patience())
        woken = self.now()
        for key, _ in ready:
            # An earlier callback of this turn may have stopped watching this descriptor.
            if self._still(key):
                key.data()
        # A timer that a callback sets waits for the next turn, even if it is due at once.
        self._fire(woken)

    def _still(self, key: selectors.SelectorKey) -> bool:
        current = self._selector.get_map().get(key.fd)
        return current is not None and current.data is key.data

    def _next(self) -> float | None:
        """Return when the next timer is due; drop timers that were replaced or forgotten."""
        while self._timers:
            at, sequence, key = self._timers[0]
            if self._due.get(key, (0,))[0] == sequence:
                return at
            heapq.heappop(self._timers)
        return None

    def _patience(self) -> float | None:
        at = self._next()
        return None if at is None else max(0.0, at - self.now())

    def _fire(self, now: float) -> None:
        while (at := self._next()) is not None and at <= now:
            _, _, key = heapq.heappop(self._timers)
            self._due.pop(key)[2]()

    def close(self) -> None:
        for number, previous in self._signals.items():
            signal.signal(number, previous)
        if self._wakeup:
            signal.set_wakeup_fd(self._others_wakeup)
            for fd in self._wakeup:
                self.unwatch(fd)
                os.close(fd)
            self._wakeup = None
        self._signals.clear()
        self._selector.close()
