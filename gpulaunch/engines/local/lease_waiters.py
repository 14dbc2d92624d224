"""Waits for other launchers: holders of cards, this user's, and the one that gathers cards.

Connects to each of them, whose end, or word, wakes this process. Takes no card's lease.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Literal, TypeAlias

from gpulaunch.agent.proc import is_stopped
from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Elsewhere, GangGranted, HolderChanged
from gpulaunch.engines.protocol import Post
from gpulaunch.gpus.lease import (
    POLL,
    Claim,
    Lease,
    Waiter,
    gather_name,
    leases_of,
    take_gather,
    unlimited,
)
from gpulaunch.gpus.socket_locks import UNKNOWN, Holder, NameHeldError, holder_of

CONNECTS = 8
"""Connections in a row to a holder; then one in `POLL` seconds."""

Identity: TypeAlias = tuple[int, int]
"""A holder's process, as `Waiter.holder` gives it."""
News: TypeAlias = Lease | Literal["gone", "odd", "perhaps"]
"""A lease that was handed over; or what the connection to its holder tells."""


class Pace:
    """A token bucket for each key: `burst` uses at once; one comes back every `seconds`.

    `now` is in seconds of a clock that never goes back.
    """

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._remaining: dict[str, tuple[float, float]] = {}

    def spend(self, key: str, now: float) -> bool:
        """Count one more use of this key, if one is allowed now; return whether it is."""
        remaining, at = self._remaining.get(key, (float(self._burst), now))
        remaining = min(self._burst, remaining + (now - at) / self._seconds)
        allowed = remaining >= 1
        self._remaining[key] = (remaining - allowed, now)
        return allowed


class Waiters:
    """Connections to the holders of leases, by the leases' names.

    `in_need` returns True if that holder is to give way to this run. `heard` is called once with
    what ended a wait, and who the holder was. `claim`: whether a lease that is handed over may be
    kept.
    """

    def __init__(
        self,
        loop: Loop,
        in_need: Callable[[Identity | None], bool],
        heard: Callable[[str, News, Identity | None], None],
        claim: Claim = unlimited,
    ) -> None:
        self._loop = loop
        self._in_need = in_need
        self._heard = heard
        self._claim = claim
        self._pace = Pace(CONNECTS, POLL)
        self._waiters: dict[str, Waiter] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def wait_for(self, name: str, by_clock: bool = False) -> bool:
        """Connect to the lease's holder, to hear when it gives the lease back; False: it has."""
        if name in self._waiters:
            return True
        # A holder that hangs up on waiters again and again, and keeps the lease, is left alone.
        by_clock = by_clock or not self._pace.spend(name, self._loop.now())
        waiter = Waiter.connect(name, by_clock=by_clock, claim=self._claim)
        if waiter is None:
            return False
        waiter.want(self._in_need(waiter.holder))
        self._waiters[name] = waiter
        self._loop.watch(waiter.fileno(), lambda: self._woken(name, waiter))
        return True

    def _woken(self, name: str, waiter: Waiter) -> None:
        news, before = waiter.on_readable(), waiter.holder
        if news == "still":
            return
        self.stop(name)
        self._heard(name, news, before)

    def names(self) -> list[str]:
        """Return the names of the leases that are waited for."""
        return list(self._waiters)

    def holder(self, name: str) -> Identity | None:
        """Return the holder of a lease that is waited for; None if it was not connected to."""
        return self._waiters[name].holder

    def tell_need(self) -> None:
        """Tell all holders whether they are to give way; call this when that changes."""
        for waiter in self._waiters.values():
            waiter.want(self._in_need(waiter.holder))

    def stop(self, name: str) -> None:
        """Wait for this lease no more."""
        if waiter := self._waiters.pop(name, None):
            self._loop.unwatch(waiter.fileno())
            waiter.close()

    def close(self) -> None:
        for name in list(self._waiters):
            self.stop(name)

    def close_in_child(self) -> None:
        """Close a forked child's copies of the connections."""
        for waiter in self._waiters.values():
            waiter.close()


class CardHolders:
    """Waits for the holders of cards. `names`: those of their leases, by UUID.

    `in_need` returns True if that holder is to give way to this run. The others are as `Waiters`
    has them, but that `heard` gets the UUID.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        loop: Loop,
        post: Post,
        in_need: Callable[[Identity | None], bool],
        heard: Callable[[str, News, Identity | None], None],
        claim: Claim,
    ) -> None:
        self._names = names
        self._uuids = {name: uuid for uuid, name in names.items()}
        self._loop = loop
        self._post = post
        self._heard = heard
        self.waiters = Waiters(loop, in_need, self._woken, claim)
        self._reported: dict[str, Holder] = {}  # as last posted

    def wait_for(self, uuid: str, by_clock: bool = False) -> bool:
        """Connect to the card's holder, to hear when it gives the lease back; False: it has."""
        return self.waiters.wait_for(self._names[uuid], by_clock)

    def _woken(self, name: str, news: News, before: Identity | None) -> None:
        uuid = self._uuids[name]
        self.stop(uuid)
        self._heard(uuid, news, before)

    def is_still_held(self, uuid: str, before: Identity | None) -> bool:
        """Wait for the card's holder again; return False if there is none, or another."""
        return self.wait_for(uuid) and self.waiters.holder(self._names[uuid]) in (None, before)

    def stop(self, uuid: str) -> None:
        """Wait for this card's holder no more."""
        self._loop.forget("holder:" + uuid)
        self.waiters.stop(self._names[uuid])

    def close(self) -> None:
        for uuid in self._names:
            self.stop(uuid)

    # ── Who it is ───────────────────────────────────────────────────────────────────────────────

    def report(self, uuid: str, holder: Holder) -> Elsewhere:
        """Return in words who has the card. HolderChanged is posted when that is no longer so."""
        self._reported[uuid] = holder
        self._look_later(uuid)
        return Elsewhere(str(holder))

    def _look_later(self, uuid: str) -> None:
        """Look at the holder by the clock: the kernel tells only its parent that it stopped."""
        self._loop.call_after("holder:" + uuid, POLL, lambda: self.look(uuid))

    def look(self, uuid: str) -> None:
        """Post HolderChanged if the holder that was reported has stopped since, or continued."""
        reported = self._reported[uuid]
        if is_stopped(reported.pid) != reported.stopped:
            with suppress(OSError):  # too few descriptors
                self.see(uuid, holder_of(self._names[uuid]))
        self._look_later(uuid)

    def see(self, uuid: str, now: Holder | None) -> None:
        """Post HolderChanged if another process has the card, or its holder stopped or continued.

        Other changes, as of the holder's command line, are not reported.
        """
        if now not in (None, UNKNOWN) and _identity(now) != _identity(self._reported[uuid]):
            self._reported[uuid] = now
            self._post(HolderChanged(uuid, str(now)))


def _identity(holder: Holder) -> tuple[int, int, bool]:
    return holder.pid, holder.uid, holder.stopped


class AllowanceWatch:
    """Waits until other launchers of this user give cards back, where they hold all that they may.

    Connects to each lease of the user's that is not this run's own, whatever card it is of; who is
    in need says so there, and may be handed a card of which only the share in the allowance is of
    use. `freed` is called whenever one of them is given back, with the lease if it was handed over.
    `own` returns the names of this run's leases.

    A lease may be handed over, to this run or to a launcher of another user. A connection that the
    holder has not accepted goes along with it, and nobody tells the launcher that waits there. So
    the watch also looks every POLL seconds whether these leases are still the user's.
    """

    def __init__(
        self,
        loop: Loop,
        in_need: Callable[[Identity | None], bool],
        freed: Callable[[Lease | None], None],
        claim: Claim,
        own: Callable[[], Collection[str]],
    ) -> None:
        self._loop = loop
        self._freed = freed
        self._own = own
        self.waiters = Waiters(loop, in_need, self._woken, claim)

    def watch(self, limit: int) -> None:
        """Wait for the leases of this user that are not this run's own.

        `freed` is called from the loop where there are fewer than `limit`, as one was given back
        since they were counted, or where none of them is another's.
        """
        held = leases_of(os.geteuid())
        self._leave_all_but(others := self._not_own(held))
        waits = [self.waiters.wait_for(name) for name in others]
        if len(held) < limit or not all(waits) or not self.waiters:
            self._loop.call_after(self, 0.0, lambda: self._freed(None))
        self._loop.call_after((self, "look"), POLL, self._look)

    def _not_own(self, names: Collection[str]) -> list[str]:
        own = self._own()
        return [name for name in names if name not in own]

    def _leave_all_but(self, names: Collection[str]) -> bool:
        """Disconnect from the leases that are not in `names`; return True if there was one."""
        left = [name for name in self.waiters.names() if name not in names]
        for name in left:
            self.waiters.stop(name)
        return bool(left)

    def _look(self) -> None:
        if not self.waiters:
            return
        self._loop.call_after((self, "look"), POLL, self._look)
        if self._leave_all_but(self._not_own(leases_of(os.geteuid()))):
            self._freed(None)

    def _woken(self, name: str, news: News, before: Identity | None) -> None:
        self._freed(news if isinstance(news, Lease) else None)

    def stop(self) -> None:
        """Wait no more."""
        self._loop.forget(self)
        self._loop.forget((self, "look"))
        self.waiters.close()


class GangRight:
    """The right to keep cards idle for a wide job, which one launcher at a time has; a lease.

    `changed` is called when the run has got the right, and when it ends.
    """

    def __init__(self, scope: str, loop: Loop, post: Post, changed: Callable[[], None]) -> None:
        self._scope = scope
        self._post = post
        self._changed = changed
        self._waiters = Waiters(loop, lambda holder: False, self._heard)
        self._right: Lease | None = None

    @property
    def held(self) -> bool:
        return self._right is not None

    def ask(self, by_clock: bool = False) -> None:
        """Ask for the right, unless it is held or asked for; GangGranted is posted with it."""
        while self._right is None:
            try:
                self._right = take_gather(self._scope)
            except NameHeldError:
                if self._waiters.wait_for(gather_name(self._scope), by_clock):
                    return
            else:
                self._changed()
                self._post(GangGranted())

    def _heard(self, name: str, news: News, before: Identity | None) -> None:
        if isinstance(news, Lease):  # this right is given back, never handed over
            news.close()
        self.ask(by_clock=news == "odd")

    def end(self) -> None:
        """Give the right back, or ask for it no more."""
        self._waiters.close()
        right, self._right = self._right, None
        if right:
            right.close()
        self._changed()

    def close_in_child(self) -> None:
        """Close a forked child's copies of the descriptors."""
        self._waiters.close_in_child()
        if self._right is not None:
            self._right.close()
