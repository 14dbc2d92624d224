"""Waits until other launchers of this user give cards back, where they hold all that they may.

Connects to each lease of the user's that is not this run's own, whatever card it is of; who is in
need says so there, and may be handed a card of which only the share in the allowance is of use.

A lease may be handed over, to this run or to a launcher of another user. A connection that the
holder has not accepted goes along with it, and nobody tells the launcher that waits there. So the
watch also looks every POLL seconds whether these leases are still the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from gpulaunch.engines.local.holders import CONNECTS, Identity, Pace
from gpulaunch.gpus.allowance import AllowedLeases, leases_of
from gpulaunch.gpus.lease import Lease
from gpulaunch.gpus.waiter import POLL, Waiter
from gpulaunch.loop import Loop


class AllowanceWatch:
    """Waits for the user's other leases. `in_need` is as `CardHolders` has it.

    `freed` is called whenever one of them is given back, with the lease if it was handed over.
    `own` returns the names of this run's leases.
    """

    def __init__(
        self,
        allowed: AllowedLeases,
        loop: Loop,
        in_need: Callable[[Identity | None], bool],
        freed: Callable[[Lease | None], None],
        own: Callable[[], Collection[str]],
    ) -> None:
        self._allowed = allowed
        self._loop = loop
        self._in_need = in_need
        self._freed = freed
        self._own = own
        self._pace = Pace(CONNECTS, POLL)
        self._waiters: dict[str, Waiter] = {}

    def watch(self) -> None:
        """Wait for the leases of this user that are not this run's own.

        `freed` is called from the loop where one is gone already, or there is none.
        """
        self._leave_all_but(others := self._others())
        for name in others:
            if name not in self._waiters:
                self._connect(name)
        if not self._waiters:
            self._loop.call_after(self, 0.0, lambda: self._freed(None))
        self._loop.call_after((self, "look"), POLL, self._look)

    def _others(self) -> list[str]:
        own = self._own()
        return [name for name in leases_of(os.geteuid()) if name not in own]

    def _leave_all_but(self, names: Collection[str]) -> bool:
        """Disconnect from the leases that are not in `names`; return True if there was one."""
        left = [name for name in self._waiters if name not in names]
        for name in left:
            self._stop(name)
        return bool(left)

    def _look(self) -> None:
        if not self._waiters:
            return
        self._loop.call_after((self, "look"), POLL, self._look)
        if self._leave_all_but(self._others()):
            self._freed(None)

    def _connect(self, name: str) -> None:
        # A holder that hangs up at once, again and again, is left alone.
        by_clock = not self._pace.spend(name, self._loop.now())
        waiter = Waiter.connect(name, False, by_clock, self._allowed)
        if waiter is None:
            self._loop.call_after(self, 0.0, lambda: self._freed(None))
            return
        waiter.want(self._in_need(waiter.holder))
        self._waiters[name] = waiter
        self._loop.watch(waiter.fileno(), lambda: self._woken(name, waiter))

    def _woken(self, name: str, waiter: Waiter) -> None:
        news = waiter.on_readable()
        if news != "still":
            self._stop(name)
            self._freed(news if isinstance(news, Lease) else None)

    def tell_need(self) -> None:
        """Tell all holders whether they are to give way; call this when that changes."""
        for waiter in self._waiters.values():
            waiter.want(self._in_need(waiter.holder))

    def _stop(self, name: str) -> None:
        waiter = self._waiters.pop(name)
        self._loop.unwatch(waiter.fileno())
        waiter.close()

    def stop(self) -> None:
        """Wait no more."""
        self._loop.forget(self)
        self._loop.forget((self, "look"))
        for name in list(self._waiters):
            self._stop(name)

    def close_in_child(self) -> None:
        """Close a forked child's copies of the connections."""
        for waiter in self._waiters.values():
            waiter.close()
