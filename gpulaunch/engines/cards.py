"""Cards on this machine: leases taken, waited for, handed over; cards looked at before and after.

acquire ─▶ take the lease ──held by another──▶ Refused(Elsewhere), and wait for its hangup
                │                                                     │
                ▼                                                     ▼
           look at the card ─busy, sick─▶ Refused                   Freed
                │
                ▼
             Granted        drain ─▶ look until the memory is back ─▶ Drained | Refused(Sick)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Elsewhere,
    Freed,
    Gather,
    GatherGranted,
    Granted,
    Instruction,
    Occupied,
    Refusal,
    Refused,
    Release,
    Sick,
    Wanted,
)
from gpulaunch.core.model import Gpu
from gpulaunch.engines.eyes import Eyes, Seen, Then
from gpulaunch.engines.pace import Pace
from gpulaunch.engines.protocol import Post
from gpulaunch.gpus.lease import POLL, Held, Lease, Waiter, scope_of, take, take_gather
from gpulaunch.loop import Loop

DRAIN_PATIENCE = 30.0
DRAIN_PAUSE = 0.2
CONNECTS = 8
"""So many times in a row a card's holder is connected to, then once in `POLL` seconds."""


class Cards:
    """The leases this run holds or waits for. Never chooses which card to take.

    `working` says whether anything of ours runs on a card; `letting_go` is called before a lease
    is given back, for those that hold its descriptors as well. `lingering`: those may have it for
    a moment longer, which is no news; else whoever has it is another launcher, be it in this very
    process.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        loop: Loop,
        post: Post,
        eyes: Eyes,
        environ: Mapping[str, str],
        working: Callable[[], bool] = lambda: True,
        letting_go: Callable[[str], None] = lambda gpu: None,
        lingering: bool = True,
    ) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._loop = loop
        self._post = post
        self._eyes = eyes
        self._working = working
        self._letting_go = letting_go
        self._lingering = lingering
        self._scope = scope_of(environ)
        self._leases: dict[str, Lease] = {}
        self._waiters: dict[str, Waiter] = {}
        self._handed: dict[str, Lease] = {}
        self._before: dict[str, Seen] = {}
        self._gathering: Lease | Waiter | None = None
        self._given_back: set[str] = set()
        self._returning: set[str] = set()
        self._connects = Pace(CONNECTS, POLL)

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Acquire(gpu):
                try:
                    self.acquire(gpu)
                except OSError as error:  # too few descriptors, an unfit lock: the core asks again
                    why = f"its lease cannot be taken now: {error.strerror or error}"
                    self._post(Refused(gpu, Occupied(why)))
            case Release(gpu):
                if self.holds(gpu):  # else its Refused(Sick) is on the way, and it was given back
                    self.release(gpu)
            case Drain(gpu):
                self.drain(gpu)
            case Gather(on):
                self.gather(on)
            case _:
                raise TypeError(f"cards cannot carry out {instruction!r}")

    def look(self, gpu: Gpu, then: Then) -> None:
        """Look at a card, whoever has it; the answer comes through the callback."""
        self._eyes.look(gpu, then)

    # ── Taking and giving back ──────────────────────────────────────────────────────────────────

    def acquire(self, uuid: str) -> None:
        self._returning.discard(uuid)
        lease = self._handed.pop(uuid, None) or self._take_or_wait(uuid)
        if isinstance(lease, Held):
            if uuid in self._given_back and lease.holder.pid == os.getpid():
                # Our own keepers, let go a moment ago and not yet gone: no news for anybody.
                self._returning.add(uuid)
            else:
                self._post(Refused(uuid, Elsewhere(str(lease.holder))))
            return
        self._stop_waiting(uuid)
        self._given_back.discard(uuid)
        self._leases[uuid] = lease
        self.say_want()
        self._eyes.look(self._gpus[uuid], lambda look: self._looked(uuid, lease, look))

    def _take_or_wait(self, uuid: str) -> Lease | Held:
        """The card's lease; else who holds it, while we wait to be told that it is let go."""
        while True:
            try:
                return take(self._gpus[uuid].key, self._scope)
            except Held as held:
                if self._wait_for(uuid):
                    return held

    def _looked(self, uuid: str, lease: Lease, look: Seen | Sick) -> None:
        if self._leases.get(uuid) is not lease:
            return
        if isinstance(look, Sick):
            self._refuse(uuid, look)
            return
        if unfit := self._eyes.unfit(look):
            self._refuse(uuid, unfit)
            return
        self._before[uuid] = look
        for fd in lease.selectables():
            self._loop.watch(fd, lambda: self._visited(uuid, lease))
        self._post(Granted(uuid, look.memory_free))

    def _refuse(self, uuid: str, why: Refusal) -> None:
        self.release(uuid)
        self._post(Refused(uuid, why))

    def release(self, uuid: str) -> None:
        """Give the lease back, to the launcher that waits for it where one does."""
        self._letting_go(uuid)
        lease = self._leases.pop(uuid)
        self._before.pop(uuid, None)
        self._loop.forget("drain:" + uuid)
        for fd in lease.selectables():
            self._loop.unwatch(fd)
        lease.hand_over()
        if self._lingering:
            self._given_back.add(uuid)
        self.say_want()

    def holds(self, uuid: str) -> bool:
        return uuid in self._leases

    def descriptors(self, uuids: Sequence[str]) -> list[int]:
        """What keepers and jobs on these cards must hold open."""
        return [fd for uuid in uuids for fd in self._leases[uuid].filenos()]

    def _visited(self, uuid: str, lease: Lease) -> None:
        before = lease.wanted
        if lease.on_readable() != before:
            self._post(Wanted(uuid, lease.wanted))

    # ── Waiting for other launchers ─────────────────────────────────────────────────────────────

    def _wait_for(self, uuid: str, by_clock: bool = False) -> bool:
        """Be told when the card's lease is let go. False: it already was."""
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
        except OSError:  # that is for acquire to say, which the core asks for
            self._post(Freed(uuid))

    def _heard(
        self,
        uuid: str,
        news: Lease | Literal["gone", "odd", "perhaps"],
        holder: tuple[int, int] | None,
    ) -> None:
        if uuid in self._returning:
            if isinstance(news, Lease):
                self._handed[uuid] = news
            self._returning.discard(uuid)
            self.acquire(uuid)
        elif isinstance(news, Lease):
            self._hand_in(uuid, news)
        elif news == "odd":
            self._wait_for(uuid, by_clock=True)
        elif news == "perhaps":
            # Only the clock woke us: a card that is held as before is no news for anybody.
            taken = self._take_or_wait(uuid)
            if isinstance(taken, Lease):
                self._hand_in(uuid, taken)
        elif not self._wait_for(uuid) or self._waiters[uuid].holder not in (None, holder):
            self._post(Freed(uuid))

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
            waiter.close()

    def _in_need(self) -> bool:
        """Whether others are to give way to us: we hold no card, or only such as wait for more."""
        gathering = isinstance(self._gathering, Lease)
        return not self._leases or (gathering and not self._working())

    def say_want(self) -> None:
        """Tell those whose cards we wait for whether we are in need; to be called on a change."""
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
            except Held:
                self._gathering = self._wait_to_gather(by_clock)
            else:
                self.say_want()
                self._post(GatherGranted())

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
        if isinstance(news, Lease):  # this right is let go, never handed over
            news.close()
        self._end_gathering()
        self._try_gathering(by_clock=news == "odd")

    def _end_gathering(self) -> None:
        if isinstance(self._gathering, Waiter):
            self._loop.unwatch(self._gathering.fileno())
        if self._gathering is not None:
            self._gathering.close()
        self._gathering = None
        self.say_want()

    # ── After an attempt ────────────────────────────────────────────────────────────────────────

    def drain(self, uuid: str) -> None:
        self._look_again(uuid, self._leases[uuid], time.monotonic() + DRAIN_PATIENCE)

    def _look_again(self, uuid: str, lease: Lease, until: float) -> None:
        self._eyes.look(self._gpus[uuid], lambda look: self._is_drained(uuid, lease, look, until))

    def _is_drained(self, uuid: str, lease: Lease, look: Seen | Sick, until: float) -> None:
        if self._leases.get(uuid) is not lease:
            return
        if isinstance(look, Sick):
            self._refuse(uuid, look)
        elif self._eyes.drained(self._before[uuid], look):
            self._post(Drained(uuid, look.memory_free))
        elif time.monotonic() >= until:
            why = f"its memory was not given back within {DRAIN_PATIENCE:.0f} s of its last job"
            self._refuse(uuid, Sick(why))
        else:
            self._loop.call_after(
                "drain:" + uuid, DRAIN_PAUSE, lambda: self._look_again(uuid, lease, until)
            )

    def settle(self) -> None:
        """Keep the leases that are held, and nothing else: nothing more will be asked for."""
        self._end_gathering()
        for uuid in list(self._waiters):
            self._stop_waiting(uuid)
        for uuid in list(self._handed):
            self._drop_handed(uuid)
        self._eyes.close()

    def close_in_child(self) -> None:
        """In a forked child: give up its copies, without a word to anybody."""
        for lease in (*self._leases.values(), *self._handed.values()):
            lease.close()
        for waiter in self._waiters.values():
            waiter.close()
        if self._gathering is not None:
            self._gathering.close()

    def close(self) -> None:
        self.settle()
        for uuid in list(self._leases):
            self.release(uuid)
