"""Cards on this machine: leases taken, waited for, handed over; cards looked at before and after.

acquire ─▶ take the lease ──held by another──▶ Refused(Elsewhere), and wait for its hangup
                │                                                     │
                ▼                                                     ▼
           look at the card ─busy, sick─▶ Refused           HolderChanged, Freed
                │
                ▼
             Granted        drain ─▶ look until the memory is back ─▶ Drained | Refused(Sick)

A lease that was taken is given to the lease server (`gpus.lease_server`), and this process's own
copies of it are closed once it has arrived there. That server gives leases back while this process
is stopped; afterwards the lease is regained:

    given back ─▶ copies from keepers that still hold it ─────────────────────▶ all is as before
       └─▶ taken once more ─▶ look at the card ─▶ as before; or, where it cannot be had,
                              Refused, to Acquire and to Drain, and LeaseLost for an idle card
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Elsewhere,
    Freed,
    GangGranted,
    Granted,
    HolderChanged,
    Instruction,
    LeaseLost,
    Occupied,
    Refusal,
    Refused,
    Release,
    ReserveGang,
    Sick,
    Wanted,
)
from gpulaunch.core.model import Gpu
from gpulaunch.engines.card_probe import CardProbe, CardSnapshot, SnapshotCallback
from gpulaunch.engines.local.pace import Pace
from gpulaunch.engines.protocol import Post
from gpulaunch.errors import GpulaunchError
from gpulaunch.gpus.lease import (
    POLL,
    Holder,
    Lease,
    NameHeldError,
    Waiter,
    holder,
    lent,
    scope_of,
    take,
    take_gather,
)
from gpulaunch.gpus.lease_client import LeaseClient, LeaseServerGoneError, LentLeases
from gpulaunch.gpus.names import UNKNOWN, is_stopped
from gpulaunch.loop import Loop

DRAIN_PATIENCE = 30.0
"""Seconds for which a card's memory may take to come back before the card counts as sick."""
DRAIN_PAUSE = 0.2
"""Seconds between two looks at a card that drains."""
SERVERS = 3
"""Lease servers that are started at most; without one, a stopped launcher keeps its leases."""
CONNECTS = 8
"""Connections in a row to a card's holder; then one in `POLL` seconds."""


class LeaseAwayError(GpulaunchError):
    """A card's lease is being regained: whether this run keeps it will be known in a while."""


class LeaseLostError(GpulaunchError):
    """A card's lease is not held any more."""


_Away: TypeAlias = Literal["borrowing", "waiting", "looking"]


@dataclass(slots=True)
class _Kept:
    """A lease that the lease server keeps. `wanted`: another launcher waits for it.

    `uuid`: its card; empty for the right to reserve a gang.
    """

    uuid: str
    wanted: bool = False


class CardLeases:
    """The leases this run holds or waits for. Never chooses which card to take.

    `working` returns whether an attempt of this run is on a card; `letting_go` is called before a
    lease is given back, for keepers that hold its descriptors as well. `lingering`: these keepers
    may hold a lease a moment longer, which is not reported; else any holder is another launcher,
    even one in this process.

    `start_server` starts the lease server; None: this process keeps its leases. `borrow` asks
    keepers that hold a card's descriptors for copies, which come to `hand_back`; it returns false
    where no keeper holds any. `settled` is called once it is known whether the run has regained a
    lease that was given back.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        loop: Loop,
        post: Post,
        probe: CardProbe,
        environ: Mapping[str, str],
        working: Callable[[], bool] = lambda: True,
        letting_go: Callable[[str], None] = lambda gpu: None,
        lingering: bool = True,
        start_server: Callable[[], LeaseClient] | None = None,
        borrow: Callable[[str], bool] = lambda gpu: False,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._loop = loop
        self._post = post
        self._probe = probe
        self._working = working
        self._letting_go = letting_go
        self._lingering = lingering
        self._scope = scope_of(environ)
        # The leases that this run has. Their descriptors are closed while the server keeps them.
        self._leases: dict[str, Lease] = {}
        self._waiters: dict[str, Waiter] = {}
        self._handed: dict[str, Lease] = {}
        self._reported: dict[str, Holder] = {}  # the holders of awaited cards, as last posted
        self._before: dict[str, CardSnapshot] = {}
        self._gathering: Lease | Waiter | None = None
        self._given_back: set[str] = set()
        self._returning: set[str] = set()
        self._connects = Pace(CONNECTS, POLL)
        self._start_server = start_server
        self._borrow = borrow
        self._settled = settled
        self._server: LeaseClient | None = None
        self._servers_started = 0
        self._kept: dict[int, _Kept] = {}
        self._away: dict[str, _Away] = {}
        self._asked: set[str] = set()
        self._draining: set[str] = set()

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Acquire(gpu):
                try:
                    self.acquire(gpu)
                except OSError as error:  # too few descriptors, an unfit lock: the core asks again
                    self._asked.discard(gpu)
                    self._post(Refused(gpu, _untakable(error)))
            case Release(gpu):
                if self.holds(gpu):  # else it was given back already, with its Refused(Sick)
                    self.release(gpu)
            case Drain(gpu):
                self.drain(gpu)
            case ReserveGang(on):
                self.gather(on)
            case _:
                raise TypeError(f"cards cannot carry out {instruction!r}")

    def look(self, gpu: Gpu, then: SnapshotCallback) -> None:
        """Look at a card, whoever has its lease; the answer comes through the callback."""
        self._probe.look(gpu, then)

    # ── Taking and giving back ──────────────────────────────────────────────────────────────────

    def acquire(self, uuid: str) -> None:
        self._returning.discard(uuid)
        self._asked.add(uuid)
        lease = self._handed.pop(uuid, None) or self._take_or_wait(uuid)
        if isinstance(lease, NameHeldError):
            if uuid in self._given_back and lease.holder.pid == os.getpid():
                # This run's own keepers, which were dismissed and will be gone in a moment.
                self._returning.add(uuid)
            else:
                self._asked.discard(uuid)
                self._post(Refused(uuid, self._elsewhere(uuid, lease.holder)))
            return
        self._given_back.discard(uuid)
        self._have(uuid, lease)
        self.say_want()
        self._probe.look(self._gpus[uuid], lambda look: self._looked(uuid, lease, look))

    def _have(self, uuid: str, lease: Lease) -> None:
        """Record that this run has the lease, and give it to the lease server."""
        self._stop_waiting(uuid)
        self._leases[uuid] = lease
        self._entrust(uuid, lease)

    def _take_or_wait(self, uuid: str) -> Lease | NameHeldError:
        """Return the card's lease; else who holds it, after connecting to hear when it is free."""
        while True:
            try:
                return take(self._gpus[uuid].key, self._scope)
            except NameHeldError as held:
                if self._wait_for(uuid):
                    return held

    def _looked(self, uuid: str, lease: Lease, look: CardSnapshot | Sick) -> None:
        if self._leases.get(uuid) is not lease or self._away.get(uuid, "looking") != "looking":
            return
        if isinstance(look, Sick):
            self._refuse(uuid, look)
            return
        if unfit := self._probe.unfit(look):
            self._refuse(uuid, unfit)
            return
        self._before[uuid] = look
        self._away.pop(uuid, None)
        if uuid in self._asked:
            self._asked.discard(uuid)
            self._watch(uuid, lease)
            self._post(Granted(uuid, look.memory_free))
            if any(each.uuid == uuid and each.wanted for each in self._kept.values()):
                self._post(Wanted(uuid, True))
        else:
            self._watch(uuid, lease)
            self._is_back(uuid)

    def _watch(self, uuid: str, lease: Lease) -> None:
        """Watch for launchers that wait for the lease, where no server does that."""
        if self._number(uuid) is None:
            for fd in lease.selectables():
                self._loop.watch(fd, lambda: self._visited(uuid, lease))

    def _refuse(self, uuid: str, why: Refusal) -> None:
        known = uuid in self._asked or uuid in self._draining
        self.release(uuid)
        self._post(Refused(uuid, why) if known else LeaseLost(uuid, why))
        self._settled()

    def release(self, uuid: str) -> None:
        """Give the lease back, to the launcher that waits for it where one does."""
        if self._away.pop(uuid, None):
            self._stop_waiting(uuid)
        self._letting_go(uuid)
        lease = self._leases.pop(uuid, None)
        self._before.pop(uuid, None)
        self._loop.forget("drain:" + uuid)
        self._asked.discard(uuid)
        self._draining.discard(uuid)
        if lease:
            self._take_out(uuid, lease)
        if self._lingering:
            self._given_back.add(uuid)
        self.say_want()

    def holds(self, uuid: str) -> bool:
        return uuid in self._leases or uuid in self._away

    def descriptors(self, uuids: Sequence[str]) -> list[int]:
        """Return the leases' descriptors, which keepers and jobs on these cards must hold open.

        Only for leases that this process keeps itself.
        """
        return [fd for uuid in uuids for fd in self._leases[uuid].filenos()]

    def lend(self, uuids: Sequence[str]) -> LentLeases:
        """Return what keepers and jobs on these cards must hold open, wherever the leases are.

        Raises LeaseAwayError, LeaseLostError, OSError.
        """
        if any(uuid in self._away for uuid in uuids):
            raise LeaseAwayError("its card is being asked for anew")
        if lost := [uuid for uuid in uuids if uuid not in self._leases]:
            index = self._gpus[lost[0]].index
            raise LeaseLostError(f"GPU {index} was given back while this launcher was stopped")
        ours = [uuid for uuid in uuids if not self._leases[uuid].closed]
        there = [self._number(uuid) for uuid in uuids if uuid not in ours]
        link = None
        if there:
            assert self._server is not None
            try:
                link = self._server.lend([number for number in there if number is not None])
            except LeaseServerGoneError:
                self._lose_server()
                return self.lend(uuids)
        return LentLeases(self.descriptors(ours), link)

    def _visited(self, uuid: str, lease: Lease) -> None:
        before = lease.wanted
        if lease.on_readable() != before:
            self._post(Wanted(uuid, lease.wanted))

    # ── The server ──────────────────────────────────────────────────────────────────────────────

    def _entrust(self, uuid: str, lease: Lease) -> None:
        """Give the lease to the lease server; where none can be had, this process keeps it."""
        if self._start_server is None or lease.closed:
            return
        try:
            if self._server is None:
                if self._servers_started >= SERVERS:
                    return
                self._servers_started += 1
                self._server = self._start_server()
                self._loop.watch(self._server.fileno(), self._hear_server)
            self._kept[self._server.keep(lease)] = _Kept(uuid)
        except LeaseServerGoneError:
            self._lose_server()
            self._entrust(uuid, lease)
        except OSError:  # too few descriptors or processes
            return

    def _number(self, uuid: str) -> int | None:
        found = (number for number, each in self._kept.items() if each.uuid == uuid)
        return next(found, None)

    def _take_out(self, uuid: str, lease: Lease) -> None:
        """Give a lease back, wherever it is kept, or hand it over to who waits for it."""
        number = self._number(uuid)
        if number is None or self._server is None:
            for fd in lease.selectables():
                self._loop.unwatch(fd)
            if not lease.closed:
                lease.hand_over()
            return
        del self._kept[number]
        lease.close()  # the server's copy is the one that is handed over
        try:
            self._server.release(number)
        except LeaseServerGoneError:
            self._lose_server()

    def _hear_server(self) -> None:
        assert self._server is not None
        try:
            states = self._server.on_readable()
        except LeaseServerGoneError:
            self._lose_server()
            return
        for state in states:
            kept = self._kept.get(state.number)
            if kept is None:  # taken out meanwhile
                continue
            if not state.held:
                del self._kept[state.number]
                self._let_go(kept)
            elif kept.uuid:
                self._leases[kept.uuid].close()
                self._is_wanted(kept, state.wanted)
            elif self._gathering:
                self._gathering.close()

    def _is_wanted(self, kept: _Kept, wanted: bool) -> None:
        if wanted != kept.wanted:
            kept.wanted = wanted
            self._post(Wanted(kept.uuid, wanted))

    def _lose_server(self) -> None:
        """Give the lease server up, as it is gone; then regain the leases that it alone kept."""
        if self._server is None:
            return
        self._loop.unwatch(self._server.fileno())
        self._server.close()
        self._server = None
        lost, self._kept = self._kept, {}
        for kept in lost.values():
            self._let_go(kept)

    def _let_go(self, kept: _Kept) -> None:
        """Regain a lease that the server has given back, unless this process has it still."""
        uuid = kept.uuid
        if not uuid:
            self._gather_anew()
            return
        self._is_wanted(kept, False)
        lease = self._leases[uuid]
        if not lease.closed:  # it never arrived at the server
            self._watch(uuid, lease)
            return
        self._loop.forget("drain:" + uuid)
        self._regain(uuid)

    def _regain(self, uuid: str) -> None:
        if self._borrow(uuid):
            self._away[uuid] = "borrowing"
            return
        self._away[uuid] = "waiting"
        try:
            lease = self._handed.pop(uuid, None) or self._take_or_wait(uuid)
        except OSError as error:
            self._lose(uuid, _untakable(error))
            return
        if isinstance(lease, Lease):
            self._regained(uuid, lease)
        elif lease.holder.pid != os.getpid():
            self._lose(uuid, self._elsewhere(uuid, lease.holder))
        # else this run's own keepers have it and are leaving: they hang up soon

    def hand_back(self, uuid: str, descriptors: Sequence[int]) -> None:
        """Take up a lease again by copies that keepers lent; try otherwise if they lent none.

        The descriptors stay the caller's.
        """
        if self._away.get(uuid) != "borrowing":
            return
        lease = lent(self._gpus[uuid].key, self._scope, descriptors)
        if lease is None:
            self._regain(uuid)
            return
        del self._away[uuid]
        self._have(uuid, lease)
        self._watch(uuid, lease)
        self._is_back(uuid)

    def _regained(self, uuid: str, lease: Lease) -> None:
        """Look at the card of a lease that was taken once more, as others may have used it."""
        self._away[uuid] = "looking"
        self._have(uuid, lease)
        self._probe.look(self._gpus[uuid], lambda look: self._looked(uuid, lease, look))

    def _is_back(self, uuid: str) -> None:
        if uuid in self._draining:
            self.drain(uuid)
        self._settled()

    def _lose(self, uuid: str, why: Refusal) -> None:
        """Post that a lease could not be regained. Freed follows once its holder gives it back."""
        known = uuid in self._asked or uuid in self._draining
        self._asked.discard(uuid)
        self._draining.discard(uuid)
        self._away.pop(uuid)
        self._leases.pop(uuid, None)
        self._before.pop(uuid, None)
        self._letting_go(uuid)
        self.say_want()
        self._post(Refused(uuid, why) if known else LeaseLost(uuid, why))
        self._settled()

    # ── Waiting for other launchers ─────────────────────────────────────────────────────────────

    def _wait_for(self, uuid: str, by_clock: bool = False) -> bool:
        """Connect to the card's holder, to hear when it gives the lease back; False: it has."""
        if uuid in self._waiters:
            return True
        # A holder that hangs up on waiters again and again, and keeps the card, is left alone.
        by_clock = by_clock or not self._connects.spend(uuid, time.monotonic())
        key, want = self._gpus[uuid].key, self._in_need()
        waiter = Waiter.connect(key, self._scope, want, by_clock)
        if waiter is None:
            return False
        self._waiters[uuid] = waiter
        self._loop.watch(waiter.fileno(), lambda: self._woken(uuid, waiter))
        return True

    def _woken(self, uuid: str, waiter: Waiter) -> None:
        news, holder = waiter.on_readable(), waiter.holder
        if news == "still":
            return
        self._stop_waiting(uuid)
        try:
            self._heard(uuid, news, holder)
        except OSError:  # the core answers Freed with Acquire, which reports the error
            self._post(Freed(uuid))

    def _heard(
        self,
        uuid: str,
        news: Lease | Literal["gone", "odd", "perhaps"],
        before: tuple[int, int] | None,
    ) -> None:
        if uuid in self._away:
            if isinstance(news, Lease):
                self._handed[uuid] = news
            self._regain(uuid)
        elif uuid in self._returning:
            if isinstance(news, Lease):
                self._handed[uuid] = news
            self._returning.discard(uuid)
            self.acquire(uuid)
        elif isinstance(news, Lease):
            self._hand_in(uuid, news)
        elif news == "odd":
            self._wait_for(uuid, by_clock=True)
        elif news == "perhaps":
            # Only the timer fired: a card that is held as before is not reported.
            taken = self._take_or_wait(uuid)
            if isinstance(taken, Lease):
                self._hand_in(uuid, taken)
            else:
                self._see_holder(uuid, taken.holder)
        elif not self._wait_for(uuid) or self._waiters[uuid].holder not in (None, before):
            self._post(Freed(uuid))
        else:
            self._look_at_holder(uuid)

    def _elsewhere(self, uuid: str, holder: Holder) -> Elsewhere:
        self._reported[uuid] = holder
        self._look_while_stopped(uuid)
        return Elsewhere(str(holder))

    def _look_while_stopped(self, uuid: str) -> None:
        """Poll a stopped holder: the kernel tells only its parent when it goes on."""
        if self._reported[uuid].stopped:
            self._loop.call_after("stopped:" + uuid, POLL, lambda: self._look_at_holder(uuid))

    def _look_at_holder(self, uuid: str) -> None:
        reported = self._reported[uuid]
        if is_stopped(reported.pid) != reported.stopped:
            with suppress(OSError):  # too few descriptors
                self._see_holder(uuid, holder(self._gpus[uuid].key, self._scope))
        self._look_while_stopped(uuid)

    def _see_holder(self, uuid: str, now: Holder | None) -> None:
        """Post HolderChanged if another process has the card, or its holder stopped or goes on.

        Other changes, as of the holder's command line, are not reported.
        """
        if now not in (None, UNKNOWN) and _identity(now) != _identity(self._reported[uuid]):
            self._reported[uuid] = now
            self._post(HolderChanged(uuid, str(now)))

    def _hand_in(self, uuid: str, lease: Lease) -> None:
        self._handed[uuid] = lease
        # The core takes it with Acquire while it handles Freed, or has no use for it.
        self._loop.call_after("handed:" + uuid, 0.0, lambda: self._drop_handed(uuid))
        self._post(Freed(uuid))

    def _drop_handed(self, uuid: str) -> None:
        if lease := self._handed.pop(uuid, None):
            lease.hand_over()

    def _stop_waiting(self, uuid: str) -> None:
        if waiter := self._waiters.pop(uuid, None):
            self._loop.unwatch(waiter.fileno())
            self._loop.forget("stopped:" + uuid)
            waiter.close()

    def _in_need(self) -> bool:
        """Whether others are to give way: this run has no card, or only idle ones of a gang."""
        gathering = isinstance(self._gathering, Lease)
        return not self._leases or (gathering and not self._working())

    def say_want(self) -> None:
        """Tell the holders of awaited cards whether this run is in need; call this on a change."""
        for waiter in self._waiters.values():
            waiter.want(self._in_need())

    # ── The right to gather ─────────────────────────────────────────────────────────────────────

    def gather(self, on: bool) -> None:
        if not on:
            self._end_gathering()
        elif self._gathering is None:
            self._try_gathering()

    def _try_gathering(self, by_clock: bool = False) -> None:
        while self._gathering is None:
            try:
                self._gathering = take_gather(self._scope)
            except NameHeldError:
                self._gathering = self._wait_to_gather(by_clock)
            else:
                self._entrust("", self._gathering)
                self.say_want()
                self._post(GangGranted())

    def _wait_to_gather(self, by_clock: bool) -> Waiter | None:
        by_clock = by_clock or not self._connects.spend("gather", time.monotonic())
        waiter = Waiter.connect_gather(self._scope, by_clock)
        if waiter:
            self._loop.watch(waiter.fileno(), self._gather_news)
        return waiter

    def _gather_news(self) -> None:
        assert isinstance(self._gathering, Waiter)
        news = self._gathering.on_readable()
        if news == "still":
            return
        if isinstance(news, Lease):  # this right is given back, never handed over
            news.close()
        self._end_gathering()
        self._try_gathering(by_clock=news == "odd")

    def _gather_anew(self) -> None:
        """Ask again for the right to reserve a gang, if it was given back by the server."""
        if isinstance(self._gathering, Lease) and self._gathering.closed:
            self._gathering = None
            self._try_gathering()

    def _end_gathering(self) -> None:
        if isinstance(self._gathering, Waiter):
            self._loop.unwatch(self._gathering.fileno())
        if isinstance(self._gathering, Lease):
            self._take_out("", self._gathering)
        elif self._gathering is not None:
            self._gathering.close()
        self._gathering = None
        self.say_want()

    # ── After an attempt ────────────────────────────────────────────────────────────────────────

    def drain(self, uuid: str) -> None:
        self._draining.add(uuid)
        if not self.holds(uuid):  # it was given back, and could not be regained until now
            self._regain(uuid)
        elif uuid not in self._away:
            self._look_again(uuid, self._leases[uuid], time.monotonic() + DRAIN_PATIENCE)

    def _look_again(self, uuid: str, lease: Lease, until: float) -> None:
        self._probe.look(self._gpus[uuid], lambda look: self._is_drained(uuid, lease, look, until))

    def _is_drained(self, uuid: str, lease: Lease, look: CardSnapshot | Sick, until: float) -> None:
        if self._leases.get(uuid) is not lease or uuid in self._away:
            return
        if isinstance(look, Sick):
            self._refuse(uuid, look)
        elif self._probe.drained(self._before[uuid], look):
            self._draining.discard(uuid)
            self._post(Drained(uuid, look.memory_free))
        elif time.monotonic() >= until:
            why = f"its memory was not given back within {DRAIN_PATIENCE:.0f} s of its last job"
            self._refuse(uuid, Sick(why))
        else:
            self._loop.call_after(
                "drain:" + uuid, DRAIN_PAUSE, lambda: self._look_again(uuid, lease, until)
            )

    def settle(self) -> None:
        """Close all but the leases that are held, as nothing more will be asked for."""
        self._end_gathering()
        for uuid in list(self._waiters):
            self._stop_waiting(uuid)
        for uuid in list(self._handed):
            self._drop_handed(uuid)
        self._probe.close()

    def close_in_child(self) -> None:
        """Close a forked child's copies of all descriptors, without giving any lease back."""
        for lease in (*self._leases.values(), *self._handed.values()):
            lease.close()
        for waiter in self._waiters.values():
            waiter.close()
        if self._gathering is not None:
            self._gathering.close()

    def close(self) -> None:
        self.settle()
        for uuid in {**self._leases, **self._away}:
            self.release(uuid)
        if self._server:
            self._loop.unwatch(self._server.fileno())
            self._server.close()
            self._server = None


def _identity(holder: Holder) -> tuple[int, int, bool]:
    return holder.pid, holder.uid, holder.stopped


def _untakable(error: OSError) -> Occupied:
    return Occupied(f"its lease cannot be taken now: {error.strerror or error}")
