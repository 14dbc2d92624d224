"""Waits for other launchers: the holders of cards, and the one that gathers cards for a wide job.

Connects to each of them, whose end, or word, wakes this process. Takes no card's lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, TypeAlias

from gpulaunch.core.events import Elsewhere, GangGranted, HolderChanged
from gpulaunch.engines.protocol import Post
from gpulaunch.farside.proc import is_stopped
from gpulaunch.gpus.allowance import AllowedLeases
from gpulaunch.gpus.lease import Lease, gather_name, take_gather
from gpulaunch.gpus.lease_client import EntrustedLeases
from gpulaunch.gpus.names import UNKNOWN, Holder, NameHeldError, holder_of
from gpulaunch.gpus.waiter import POLL, Waiter
from gpulaunch.loop import Loop

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


class CardHolders:
    """Waits for the holders of cards. `names`: those of their leases, by UUID.

    `in_need` returns True if that holder is to give way to this run; `heard` is called
    once with what ended the wait for a card, and whose card it was. `allowed`: whether a lease that
    is handed over may be kept.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        loop: Loop,
        post: Post,
        in_need: Callable[[Identity | None], bool],
        heard: Callable[[str, News, Identity | None], None],
        allowed: AllowedLeases,
    ) -> None:
        self._names = names
        self._loop = loop
        self._post = post
        self._in_need = in_need
        self._heard = heard
        self._allowed = allowed
        self._pace = Pace(CONNECTS, POLL)
        self._waiters: dict[str, Waiter] = {}
        self._reported: dict[str, Holder] = {}  # as last posted

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────

    def wait_for(self, uuid: str, by_clock: bool = False) -> bool:
        """Connect to the card's holder, to hear when it gives the lease back; False: it has."""
        if uuid in self._waiters:
            return True
        # A holder that hangs up on waiters again and again, and keeps the card, is left alone.
        by_clock = by_clock or not self._pace.spend(uuid, self._loop.now())
        waiter = Waiter.connect(self._names[uuid], by_clock=by_clock, allowed=self._allowed)
        if waiter is None:
            return False
        waiter.want(self._in_need(waiter.holder))
        self._waiters[uuid] = waiter
        self._loop.watch(waiter.fileno(), lambda: self._woken(uuid, waiter))
        return True

    def _woken(self, uuid: str, waiter: Waiter) -> None:
        news, before = waiter.on_readable(), waiter.holder
        if news == "still":
            return
        self.stop(uuid)
        self._heard(uuid, news, before)

    def is_still_held(self, uuid: str, before: Identity | None) -> bool:
        """Wait for the card's holder again; return False if there is none, or another."""
        return self.wait_for(uuid) and self._waiters[uuid].holder in (None, before)

    def tell_need(self) -> None:
        """Tell all holders whether they are to give way; call this when that changes."""
        for waiter in self._waiters.values():
            waiter.want(self._in_need(waiter.holder))

    def stop(self, uuid: str) -> None:
        """Wait for this card's holder no more."""
        if waiter := self._waiters.pop(uuid, None):
            self._loop.unwatch(waiter.fileno())
            self._loop.forget("stopped:" + uuid)
            waiter.close()

    def close(self) -> None:
        for uuid in list(self._waiters):
            self.stop(uuid)

    def close_in_child(self) -> None:
        """Close a forked child's copies of the connections."""
        for waiter in self._waiters.values():
            waiter.close()

    # ── Who it is ───────────────────────────────────────────────────────────────────────────────

    def report(self, uuid: str, holder: Holder) -> Elsewhere:
        """Return in words who has the card. HolderChanged is posted when that is no longer so."""
        self._reported[uuid] = holder
        self._look_while_stopped(uuid)
        return Elsewhere(str(holder))

    def _look_while_stopped(self, uuid: str) -> None:
        """Poll a stopped holder: the kernel tells only its parent when it goes on."""
        if self._reported[uuid].stopped:
            self._loop.call_after("stopped:" + uuid, POLL, lambda: self.look(uuid))

    def look(self, uuid: str) -> None:
        """Post HolderChanged if the holder that was reported was stopped since, or goes on."""
        reported = self._reported[uuid]
        if is_stopped(reported.pid) != reported.stopped:
            with suppress(OSError):  # too few descriptors
                self.see(uuid, holder_of(self._names[uuid]))
        self._look_while_stopped(uuid)

    def see(self, uuid: str, now: Holder | None) -> None:
        """Post HolderChanged if another process has the card, or its holder stopped or goes on.

        Other changes, as of the holder's command line, are not reported.
        """
        if now not in (None, UNKNOWN) and _identity(now) != _identity(self._reported[uuid]):
            self._reported[uuid] = now
            self._post(HolderChanged(uuid, str(now)))


def _identity(holder: Holder) -> tuple[int, int, bool]:
    return holder.pid, holder.uid, holder.stopped


class GangRight:
    """The right to keep cards idle for a wide job, which one launcher at a time has; a lease.

    `changed` is called when the run has got the right, and when it ends.
    """

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
        by_clock = by_clock or not self._pace.spend("gang", self._loop.now())
        waiter = Waiter.connect(gather_name(self._scope), by_clock=by_clock)
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
