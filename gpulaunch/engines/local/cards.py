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

Where the user's launchers may together hold so many cards and no more (`gpus.allowance`), a lease
that would be one too many is not taken: Refused(AllowanceSpent). AllowanceFreed is posted when
another one of this user is given back.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from gpulaunch.core import events
from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.allowance_watch import AllowanceWatch
from gpulaunch.engines.local.holders import CardHolders, GangRight, Identity, News
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.protocol import Post
from gpulaunch.errors import GpulaunchError
from gpulaunch.gpus.allowance import AllowanceSpentError, AllowedLeases
from gpulaunch.gpus.lease import (
    Lease,
    lease_name,
    lent,
    scope_of,
)
from gpulaunch.gpus.lease_client import EntrustedLeases
from gpulaunch.gpus.machine import (
    CardReading,
    LookCallback,
    drained,
    is_free,
    memory_free,
    not_drained,
)
from gpulaunch.gpus.names import NameHeldError
from gpulaunch.loop import Loop

DRAIN_TIMEOUT = 30.0
"""Seconds for which a card's memory may take to come back before the card counts as sick."""
DRAIN_PAUSE = 0.2
"""Seconds between two looks at a card that drains."""
LEFT_FOR = 0.5
"""Seconds for which a card that has come free is left to who came earlier, at most."""
LEFT_PAUSE = 0.05
"""Seconds between two looks whether that one still waits."""


class LeaseAwayError(GpulaunchError):
    """A card's lease is being regained: whether this run keeps it will be known in a while."""


class LeaseLostError(GpulaunchError):
    """A card's lease is not held any more."""


_Away: TypeAlias = Literal["borrowing", "waiting", "looking"]


class LeaseUser:
    """Who works on the run's cards, and holds their leases beside it; here, nobody.

    `lingering`: keepers may hold a lease a moment longer than the run, which is not reported; else
    any holder is another launcher, even one in this process. `entrusts`: leases are given to a
    lease server; else this process keeps them.
    """

    lingering = True
    entrusts = False

    def working(self) -> bool:
        """Return whether an attempt of this run is on a card."""
        return True

    def let_go(self, gpu: str) -> None:
        """Close the card's lease, which is about to be given back."""

    def is_for_others(self, gpu: str) -> bool:
        """Return whether somebody came earlier who waits for this card, which has come free."""
        return False

    def borrow(self, gpu: str) -> bool:
        """Ask for copies of the card's lease, for `hand_back`; return false if there are none."""
        return False

    def settled(self) -> None:
        """Learn that it is known whether the run has regained a lease that was given back."""


class CardLeases:
    """The leases this run holds or waits for. Never chooses which card to take."""

    def __init__(
        self,
        pool: CardPool,
        loop: Loop,
        post: Post,
        environ: Mapping[str, str],
        user: LeaseUser | None = None,
    ) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in pool.gpus}
        self._loop = loop
        self._post = post
        self._probe = pool.probe(loop)
        self._share_busy, self._free_below = pool.share_busy, pool.free_below
        self._user = user or LeaseUser()
        self._scope = scope_of(environ)
        # The leases that this run has. Their descriptors are closed while the server keeps them.
        self._leases: dict[str, Lease] = {}
        self._handed: dict[str, Lease] = {}
        self._before: dict[str, CardReading] = {}
        self._given_back: set[str] = set()
        self._returning: set[str] = set()
        self._away: dict[str, _Away] = {}
        self._asked: set[str] = set()
        self._draining: set[str] = set()
        self._wants = True
        names = {gpu.uuid: lease_name(gpu.key, self._scope) for gpu in pool.gpus}
        self._uuids = {name: uuid for uuid, name in names.items()}
        self._allowed = AllowedLeases(pool.allowance)
        self._spent = False  # this user's launchers held all that they may, as far as is known
        watch = AllowanceWatch(
            self._allowed,
            loop,
            self._in_need,
            self._heard_of_allowance,
            lambda: [lease.name for lease in self._leases.values()],
        )
        self._allowance_watch = watch
        self._holders = CardHolders(names, loop, post, self._in_need, self._heard, self._allowed)
        self._entrusted = EntrustedLeases(loop, self._user.entrusts)
        self._gang = GangRight(self._scope, loop, post, self._entrusted, self.say_want)

    def carry_out(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.Acquire(gpu):
                try:
                    self.acquire(gpu)
                except OSError as error:  # too few descriptors, an unfit lock: the core asks again
                    self._asked.discard(gpu)
                    self._post(events.Refused(gpu, _untakable(error)))
            case events.Release(gpu):
                if self.holds(gpu):  # else it was given back already, with its Refused(Sick)
                    self.release(gpu)
            case events.Drain(gpu):
                self.drain(gpu)
            case events.WantCards(on):
                self._wants = on
                self.say_want()
            case events.ReserveGang(on):
                if on:
                    self._gang.ask()
                else:
                    self._gang.end()
            case _:
                raise TypeError(f"cards cannot carry out {instruction!r}")

    def look(self, gpu: Gpu, then: LookCallback) -> None:
        """Look at a card, whoever has its lease; the answer comes through the callback."""
        self._probe.look(gpu, then)

    # ── Taking and giving back ──────────────────────────────────────────────────────────────────

    def acquire(self, uuid: str) -> None:
        self._returning.discard(uuid)
        self._asked.add(uuid)
        try:
            lease = self._handed.pop(uuid, None) or self._take_or_wait(uuid)
        except AllowanceSpentError as spent:
            self._asked.discard(uuid)
            self._post(events.Refused(uuid, self._refused_by(spent)))
            return
        if isinstance(lease, NameHeldError):
            if uuid in self._given_back and lease.holder.pid == os.getpid():
                # This run's own keepers, which were dismissed and will be gone in a moment.
                self._returning.add(uuid)
            else:
                self._asked.discard(uuid)
                self._post(events.Refused(uuid, self._holders.report(uuid, lease.holder)))
            return
        self._given_back.discard(uuid)
        self._have(uuid, lease)
        self.say_want()
        self._probe.look(self._gpus[uuid], lambda look: self._looked(uuid, lease, look))

    def _have(self, uuid: str, lease: Lease) -> None:
        """Record that this run has the lease, and give it to the lease server."""
        self._holders.stop(uuid)
        self._leases[uuid] = lease
        self._entrusted.give(
            lease,
            lambda wanted: self._post(events.Wanted(uuid, wanted)),
            lambda: self._let_go(uuid, lease),
        )

    def _take_or_wait(self, uuid: str) -> Lease | NameHeldError:
        """Return the card's lease; else who holds it, after connecting to hear when it is free.

        Raises AllowanceSpentError, OSError.
        """
        while True:
            try:
                return self._allowed.take(self._gpus[uuid].key, self._scope)
            except NameHeldError as held:
                if self._holders.wait_for(uuid):
                    return held
            except AllowanceSpentError:
                if not self._handed:
                    raise
                # A card that was handed to this run, and that the core does not ask for, counts.
                self._drop_handed(next(iter(self._handed)))

    def _looked(self, uuid: str, lease: Lease, look: CardReading) -> None:
        if self._leases.get(uuid) is not lease or self._away.get(uuid, "looking") != "looking":
            return
        if unfit := is_free(look, self._share_busy, self._free_below):
            self._refuse(uuid, unfit)
            return
        self._before[uuid] = look
        self._away.pop(uuid, None)
        if uuid in self._asked:
            self._asked.discard(uuid)
            self._watch(uuid, lease)
            self._post(events.Granted(uuid, memory_free(self._gpus[uuid], look)))
            if self._entrusted.is_wanted(lease):
                self._post(events.Wanted(uuid, True))
        else:
            self._watch(uuid, lease)
            self._is_back(uuid)

    def _watch(self, uuid: str, lease: Lease) -> None:
        """Watch for launchers that wait for the lease, where no server does that."""
        if lease not in self._entrusted and not lease.closed:
            self._loop.watch(lease.fileno(), lambda: self._visited(uuid, lease))

    def _refuse(self, uuid: str, why: events.Refusal) -> None:
        known = uuid in self._asked or uuid in self._draining
        self.release(uuid)
        self._post(events.Refused(uuid, why) if known else events.LeaseLost(uuid, why))
        self._user.settled()

    def release(self, uuid: str) -> None:
        """Give the lease back, to the launcher that waits for it where one does."""
        if self._away.pop(uuid, None):
            self._holders.stop(uuid)
        if lease := self._forget(uuid):
            self._entrusted.release(lease)
        if self._user.lingering:
            self._given_back.add(uuid)
        self.say_want()

    def _forget(self, uuid: str) -> Lease | None:
        """Have nothing to do with the card any more; return its lease, if it is to be given back.

        Keepers that hold the lease as well give it up first.
        """
        self._user.let_go(uuid)
        self._before.pop(uuid, None)
        self._loop.forget("drain:" + uuid)
        self._asked.discard(uuid)
        self._draining.discard(uuid)
        return self._leases.pop(uuid, None)

    def holds(self, uuid: str) -> bool:
        return uuid in self._leases or uuid in self._away

    def descriptors(self, uuids: Sequence[str]) -> list[int]:
        """Return the leases' descriptors, which keepers and jobs on these cards must hold open.

        Only for leases that this process keeps itself.
        """
        return [fd for uuid in uuids for fd in self._leases[uuid].filenos()]

    def lend(self, uuids: Sequence[str]) -> tuple[list[int], socket.socket | None]:
        """Return what keepers and jobs on these cards must hold open, wherever the leases are.

        These are descriptors, and a link for those that the server has (`EntrustedLeases.lend`).
        Raises LeaseAwayError, LeaseLostError, OSError.
        """
        if any(uuid in self._away for uuid in uuids):
            raise LeaseAwayError("its card is being asked for anew")
        if lost := [uuid for uuid in uuids if uuid not in self._leases]:
            index = self._gpus[lost[0]].index
            raise LeaseLostError(f"GPU {index} was given back while this launcher was stopped")
        there = [lease for uuid in uuids if (lease := self._leases[uuid]).closed]
        link = None
        if there:
            link = self._entrusted.lend(there)
            if link is None:
                return self.lend(uuids)
        ours = [uuid for uuid in uuids if not self._leases[uuid].closed]
        return self.descriptors(ours), link

    def _visited(self, uuid: str, lease: Lease) -> None:
        before = lease.wanted
        if lease.on_readable() != before:
            self._post(events.Wanted(uuid, lease.wanted))

    # ── Regaining ───────────────────────────────────────────────────────────────────────────────

    def _let_go(self, uuid: str, lease: Lease) -> None:
        """Regain a lease that the server has given back, unless this process has it still."""
        if not lease.closed:  # it never arrived at the server
            self._watch(uuid, lease)
            return
        self._loop.forget("drain:" + uuid)
        self._regain(uuid)

    def _regain(self, uuid: str) -> None:
        if self._user.borrow(uuid):
            self._away[uuid] = "borrowing"
            return
        self._away[uuid] = "waiting"
        try:
            lease = self._handed.pop(uuid, None) or self._take_or_wait(uuid)
        except OSError as error:
            self._lose(uuid, _untakable(error))
            return
        except AllowanceSpentError as spent:
            self._lose(uuid, self._refused_by(spent))
            return
        if isinstance(lease, Lease):
            self._regained(uuid, lease)
        elif lease.holder.pid != os.getpid():
            self._lose(uuid, self._holders.report(uuid, lease.holder))
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
        self._user.settled()

    def _lose(self, uuid: str, why: events.Refusal) -> None:
        """Post that a lease could not be regained. Freed follows once its holder gives it back."""
        known = uuid in self._asked or uuid in self._draining
        self._away.pop(uuid)
        self._forget(uuid)
        self.say_want()
        self._post(events.Refused(uuid, why) if known else events.LeaseLost(uuid, why))
        self._user.settled()

    # ── Waiting for other launchers ─────────────────────────────────────────────────────────────

    def _heard(self, uuid: str, news: News, before: Identity | None) -> None:
        try:
            self._take_up(uuid, news, before)
        except (OSError, AllowanceSpentError):
            # The core answers Freed with Acquire, which reports the error.
            self._post(events.Freed(uuid))

    def _take_up(self, uuid: str, news: News, before: Identity | None) -> None:
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
            self._holders.wait_for(uuid, by_clock=True)
        elif news == "perhaps":
            # Only the timer fired: a card that is held as before is not reported.
            taken = self._take_or_wait(uuid)
            if isinstance(taken, Lease):
                self._hand_in(uuid, taken)
            else:
                self._holders.see(uuid, taken.holder)
        elif self._holders.is_still_held(uuid, before):
            self._holders.look(uuid)
        else:
            self._freed(uuid, self._loop.now() + LEFT_FOR)

    def _freed(self, uuid: str, until: float) -> None:
        """Post that a card has come free, unless it is left to others until then."""
        if self._loop.now() < until and self._user.is_for_others(uuid):
            self._loop.call_after("left:" + uuid, LEFT_PAUSE, lambda: self._freed(uuid, until))
        else:
            self._post(events.Freed(uuid))

    def _hand_in(self, uuid: str, lease: Lease) -> None:
        self._handed[uuid] = lease
        self._allowance_freed()
        # The core takes it with Acquire while it handles Freed, or has no use for it.
        self._loop.call_after("handed:" + uuid, 0.0, lambda: self._drop_handed(uuid))
        self._post(events.Freed(uuid))

    def _drop_handed(self, uuid: str) -> None:
        if lease := self._handed.pop(uuid, None):
            lease.hand_over()
            self._allowance_freed()

    def _in_need(self, of: Identity | None) -> bool:
        """Return True if a holder is to give way: this run has no card, or a gang's idle ones.

        While this user's launchers hold all the cards that they may, another user's card is of no
        use.
        """
        in_need = not self._leases or (self._gang.held and not self._user.working())
        useless = self._spent and of is not None and of[1] != os.geteuid()
        return self._wants and in_need and not useless

    def _refused_by(self, error: AllowanceSpentError) -> events.AllowanceSpent:
        """Wait for the user's other launchers; return the refusal."""
        self._spent = True
        self._allowance_watch.watch()
        self.say_want()
        return events.AllowanceSpent(error.allowance.limit, error.allowance.source)

    def _heard_of_allowance(self, handed: Lease | None) -> None:
        """Have the core ask again; a lease that was handed over is for its card, or given back."""
        uuid = None if handed is None else self._uuids.get(handed.name)
        if handed is not None and uuid is not None and uuid not in self._leases:
            self._holders.stop(uuid)
            self._heard(uuid, handed, None)  # it may be what an Acquire, or a Drain, waits for
            return
        if handed is not None:
            handed.hand_over()
        self._allowance_freed()

    def _allowance_freed(self) -> None:
        """Post that one more card may perhaps be had, where there is an allowance."""
        if self._allowed.allowance is not None:
            self._spent = False
            self._post(events.AllowanceFreed())
            self.say_want()

    def say_want(self) -> None:
        """Tell the holders of awaited cards whether this run is in need; call this on a change."""
        self._holders.tell_need()
        self._allowance_watch.tell_need()

    # ── After an attempt ────────────────────────────────────────────────────────────────────────

    def memory_back(self, uuids: Sequence[str]) -> dict[str, int]:
        """Return the free bytes of those cards whose memory is known to be back.

        A pretend card's is, as none was used. Another card is looked at on Drain.
        """
        here = (self._gpus[uuid] for uuid in uuids if uuid in self._before)
        return {
            gpu.uuid: gpu.memory for gpu in here if gpu.simulated and gpu.uuid not in self._away
        }

    def drain(self, uuid: str) -> None:
        self._draining.add(uuid)
        if not self.holds(uuid):  # it was given back, and could not be regained until now
            self._regain(uuid)
        elif uuid not in self._away:
            self._look_again(uuid, self._leases[uuid], self._loop.now() + DRAIN_TIMEOUT)

    def _look_again(self, uuid: str, lease: Lease, until: float) -> None:
        self._probe.look(self._gpus[uuid], lambda look: self._is_drained(uuid, lease, look, until))

    def _is_drained(self, uuid: str, lease: Lease, look: CardReading, until: float) -> None:
        if self._leases.get(uuid) is not lease or uuid in self._away:
            return
        if look.sick:
            self._refuse(uuid, events.Sick(look.sick))
        elif drained(self._before[uuid], look, self._free_below):
            self._draining.discard(uuid)
            self._post(events.Drained(uuid, memory_free(self._gpus[uuid], look)))
        elif self._loop.now() >= until:
            self._refuse(uuid, not_drained(look, DRAIN_TIMEOUT))
        else:
            self._loop.call_after(
                "drain:" + uuid, DRAIN_PAUSE, lambda: self._look_again(uuid, lease, until)
            )

    def settle(self) -> None:
        """Close all but the leases that are held, as nothing more will be asked for."""
        self._gang.end()
        self._holders.close()
        self._allowance_watch.stop()
        for uuid in list(self._handed):
            self._drop_handed(uuid)
        self._probe.close()

    def close_in_child(self) -> None:
        """Close a forked child's copies of all descriptors, without giving any lease back."""
        for lease in (*self._leases.values(), *self._handed.values()):
            lease.close()
        self._holders.close_in_child()
        self._allowance_watch.close_in_child()
        self._gang.close_in_child()

    def close(self) -> None:
        self.settle()
        for uuid in {**self._leases, **self._away}:
            self.release(uuid)
        self._entrusted.close()


def _untakable(error: OSError) -> events.Occupied:
    return events.Occupied(f"its lease cannot be taken now: {error.strerror or error}")
