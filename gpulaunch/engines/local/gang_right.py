"""The right to reserve a gang: one launcher at a time may keep cards idle for a wide job."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpulaunch.core.events import GangGranted
from gpulaunch.engines.local.entrusted import EntrustedLeases
from gpulaunch.engines.local.holders import CONNECTS
from gpulaunch.engines.local.pace import Pace
from gpulaunch.engines.protocol import Post
from gpulaunch.gpus.lease import POLL, Lease, NameHeldError, Waiter, take_gather
from gpulaunch.loop import Loop


class GangRight:
    """A lease of its own. `changed` is called when the run has got the right, and when it ends."""

    def __init__(
        self,
        scope: str,
        loop: Loop,
        post: Post,
        entrusted: EntrustedLeases,
        changed: Callable[[], None],
    ) -> None:
        self._scope = scope
        self._loop = loop
        self._post = post
        self._entrusted = entrusted
        self._changed = changed
        self._pace = Pace(CONNECTS, POLL)
        self._right: Lease | Waiter | None = None

    @property
    def held(self) -> bool:
        return isinstance(self._right, Lease)

    def ask(self) -> None:
        """Ask for the right, unless it is held or asked for; GangGranted is posted with it."""
        if self._right is None:
            self._try()

    def _try(self, by_clock: bool = False) -> None:
        while self._right is None:
            try:
                lease = self._right = take_gather(self._scope)
            except NameHeldError:
                self._right = self._wait(by_clock)
            else:
                self._entrusted.give(lease, lambda wanted: None, self._given_back)
                self._changed()
                self._post(GangGranted())

    def _wait(self, by_clock: bool) -> Waiter | None:
        by_clock = by_clock or not self._pace.spend("gang", time.monotonic())
        waiter = Waiter.connect_gather(self._scope, by_clock)
        if waiter:
            self._loop.watch(waiter.fileno(), self._heard)
        return waiter

    def _heard(self) -> None:
        assert isinstance(self._right, Waiter)
        news = self._right.on_readable()
        if news == "still":
            return
        if isinstance(news, Lease):  # this right is given back, never handed over
            news.close()
        self.end()
        self._try(by_clock=news == "odd")

    def _given_back(self) -> None:
        """Ask again for the right, if it was given back by the lease server."""
        if isinstance(self._right, Lease) and self._right.closed:
            self._right = None
            self._try()

    def end(self) -> None:
        """Give the right back, or ask for it no more."""
        right, self._right = self._right, None
        if isinstance(right, Waiter):
            self._loop.unwatch(right.fileno())
            right.close()
        elif right:
            self._entrusted.release(right)
        self._changed()

    def close_in_child(self) -> None:
        """Close a forked child's copies of the descriptors."""
        if self._right is not None:
            self._right.close()
