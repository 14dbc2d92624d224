"""Cards on this machine: leases taken, waited for, handed over; cards probed before and after jobs.

    Unleased ──Acquire──▶ Probing ──Granted──▶ Usable ──Drain──▶ Emptying ──Drained──▶ Usable
     │  ▲                    │ Refused            │ Release          │ Refused, Release
     │  └────────────────────┴────────────────────┴──────────────────┘
     ├─ Acquire: another launcher has it ─▶ Unleased: Refused(Elsewhere), Freed once it lets go
     ├─ Acquire: our own keepers have it ─▶ Returning ── once they are gone ──▶ as by Acquire
     └─ another launcher hands it over ───▶ Offered: Freed ──Acquire──▶ Probing
                                               └─ nobody asks for it ─▶ Unleased

Where the user's launchers may together hold so many cards and no more (`gpus.lease`), a lease
that would be one too many is not taken: Refused(AllowanceSpent). AllowanceFreed is posted when
another one of this user is given back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from gpulaunch.base.loop import Loop
from gpulaunch.core import events
from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.lease_waiters import (
    AllowanceWatch,
    CardHolders,
    GangRight,
    Identity,
    News,
)
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.protocol import Post
from gpulaunch.gpus.lease import AllowanceSpentError, AllowedLeases, Lease, lease_name, scope_of
from gpulaunch.gpus.machine import (
    CardReading,
    LookCallback,
    drained,
    is_free,
    memory_free,
    not_drained,
)
from gpulaunch.gpus.socket_locks import NameHeldError

DRAIN_TIMEOUT = 30.0
"""Seconds for which a card's memory may take to come back before the card counts as sick."""
DRAIN_PAUSE = 0.2
"""Seconds between two looks at a card that drains."""
LEFT_FOR = 0.5
"""Seconds for which a card that has come free is left to who came earlier, at most."""
LEFT_PAUSE = 0.05
"""Seconds between two looks whether that one still waits."""


class LeaseUser:
    """Who works on the run's cards, and holds their leases beside it; here, nobody.

    `lingering`: keepers may hold a lease a moment longer than the run, which is not reported; else
    any holder is another launcher, even one in this process.
    """

    lingering = True

    def working(self) -> bool:
        """Return whether an attempt of this run is on a card."""
        return True

    def let_go(self, gpu: str) -> None:
        """Close the card's lease, which is about to be given back."""

    def is_for_others(self, gpu: str) -> bool:
        """Return whether somebody came earlier who waits for this card, which has come free."""
        return False


class Unleased(Struct, frozen=True):
    """The run does not have the card's lease. `given_back`: its keepers may, for a moment."""

    given_back: bool = False


class Returning(Struct, frozen=True):
    """The core asked for the card, whose lease the run's own keepers have until they are gone."""


class Offered(Struct, frozen=True):
    """Another launcher has handed the lease over, and the core has not asked for the card yet."""

    lease: Lease


class Probing(Struct, frozen=True):
    """The core asked for the card. The lease is taken, and a probe tells if the card is free."""

    lease: Lease


class Usable(Struct, frozen=True):
    """The card is the run's. `before`: what the probe saw before the first job."""

    lease: Lease
    before: CardReading


class Emptying(Struct, frozen=True):
    """The memory of the last job is on its way back. `until`: the latest time (monotonic)."""

    lease: Lease
    before: CardReading
    until: float


CardState: TypeAlias = Unleased | Returning | Offered | Probing | Usable | Emptying
_HELD = (Probing, Usable, Emptying)
TRANSITIONS: Mapping[type[CardState], tuple[type[CardState], ...]] = {
    Unleased: (Unleased, Returning, Offered, Probing),
    Returning: (Unleased, Offered),
    Offered: (Unleased, Probing),
    Probing: (Unleased, Usable),
    Usable: (Unleased, Emptying),
    Emptying: (Unleased, Usable),
}
"""The legal transitions of a card. Tests watch them."""


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
        self._states: dict[str, CardState] = dict.fromkeys(self._gpus, Unleased())
        self._wants = True
        names = {gpu.uuid: lease_name(gpu.key, self._scope) for gpu in pool.gpus}
        self._uuids = {name: uuid for uuid, name in names.items()}
        self._allowed = AllowedLeases(pool.allowance)
        self._spent = False  # this user's launchers held all that they may, as far as is known
        claim = self._allowed.claiming
        self._allowance_watch = AllowanceWatch(
            loop, self._in_need, self._heard_of_allowance, claim, self._held_names
        )
        self._holders = CardHolders(names, loop, post, self._in_need, self._heard, claim)
        self._gang = GangRight(self._scope, loop, post, self.say_want)

    def carry_out(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.Acquire(gpu):
                self.acquire(gpu)
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

    def become(self, uuid: str, state: CardState) -> None:
        """Change a card's state: the only door, which tests watch."""
        self._states[uuid] = state

    def acquire(self, uuid: str) -> None:
        """Take the lease and probe the card; post Refused if the lease cannot be had now."""
        state = self._states[uuid]
        try:
            taken = state.lease if isinstance(state, Offered) else self._take_or_wait(uuid)
        except AllowanceSpentError as spent:
            self._post(events.Refused(uuid, self._refused_by(spent)))
            return
        except OSError as error:  # too few descriptors, an unfit lock: the core asks again
            self._post(events.Refused(uuid, _untakable(error)))
            return
        if isinstance(taken, Lease):
            self._probe_first(uuid, Probing(taken))
        elif state == Unleased(given_back=True) and taken.holder.pid == os.getpid():
            # Our own keepers, which were dismissed and will be gone in a moment.
            self.become(uuid, Returning())
        else:
            self.become(uuid, Unleased())
            self._post(events.Refused(uuid, self._holders.report(uuid, taken.holder)))

    def _probe_first(self, uuid: str, probing: Probing) -> None:
        self._holders.stop(uuid)
        self.become(uuid, probing)
        self.say_want()
        self._probe.look(self._gpus[uuid], lambda seen: self._probed(uuid, probing, seen))

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
                offered = self._in(Offered)
                if not offered:
                    raise
                # A card that was handed to this run, and that the core does not ask for, counts.
                self._drop_offer(offered[0])

    def _probed(self, uuid: str, probing: Probing, seen: CardReading) -> None:
        if self._states[uuid] is not probing:
            return
        if unfit := is_free(seen, self._share_busy, self._free_below):
            self._refuse(uuid, unfit)
            return
        lease = probing.lease
        self.become(uuid, Usable(lease, seen))
        self._loop.watch(lease.fileno(), lambda: self._visited(uuid, lease))
        self._post(events.Granted(uuid, memory_free(self._gpus[uuid], seen)))

    def _refuse(self, uuid: str, why: events.Refusal) -> None:
        self.release(uuid)
        self._post(events.Refused(uuid, why))

    def release(self, uuid: str) -> None:
        """Give the lease back, to the launcher that waits for it where one does.

        Keepers that hold the lease as well give it up first.
        """
        lease = self._lease(uuid)
        self._user.let_go(uuid)
        self._loop.forget("drain:" + uuid)
        self.become(uuid, Unleased(given_back=self._user.lingering))
        if not lease.closed:
            self._loop.unwatch(lease.fileno())
            lease.hand_over()
        self.say_want()

    def _in(self, *kinds: type[CardState]) -> list[str]:
        """Return the cards that are in one of these states."""
        return [uuid for uuid, state in self._states.items() if isinstance(state, kinds)]

    def holds(self, uuid: str) -> bool:
        return isinstance(self._states[uuid], _HELD)

    def descriptors(self, uuids: Sequence[str]) -> list[int]:
        """Return the leases' descriptors, which keepers and jobs on these cards must hold open."""
        return [fd for uuid in uuids for fd in self._lease(uuid).filenos()]

    def _held_names(self) -> list[str]:
        return [self._lease(uuid).name for uuid in self._in(*_HELD)]

    def _lease(self, uuid: str) -> Lease:
        state = self._states[uuid]
        assert isinstance(state, _HELD)
        return state.lease

    def _visited(self, uuid: str, lease: Lease) -> None:
        before = lease.wanted
        if lease.on_readable() != before:
            self._post(events.Wanted(uuid, lease.wanted))

    # ── Waiting for other launchers ─────────────────────────────────────────────────────────────

    def _heard(self, uuid: str, news: News, before: Identity | None) -> None:
        try:
            self._take_up(uuid, news, before)
        except (OSError, AllowanceSpentError):
            # The core answers Freed with Acquire, which reports the error.
            self._post(events.Freed(uuid))

    def _take_up(self, uuid: str, news: News, before: Identity | None) -> None:
        if isinstance(self._states[uuid], Returning):
            came = Offered(news) if isinstance(news, Lease) else Unleased(given_back=True)
            self.become(uuid, came)
            self.acquire(uuid)
        elif isinstance(news, Lease):
            self._offer(uuid, news)
        elif news == "odd":
            self._holders.wait_for(uuid, by_clock=True)
        elif news == "perhaps":
            # Only the timer fired: a card that is held as before is not reported.
            taken = self._take_or_wait(uuid)
            if isinstance(taken, Lease):
                self._offer(uuid, taken)
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

    def _offer(self, uuid: str, lease: Lease) -> None:
        self.become(uuid, Offered(lease))
        self._allowance_freed()
        # The core takes it with Acquire while it handles Freed, or has no use for it.
        self._loop.call_after("offered:" + uuid, 0.0, lambda: self._drop_offer(uuid))
        self._post(events.Freed(uuid))

    def _drop_offer(self, uuid: str) -> None:
        state = self._states[uuid]
        if isinstance(state, Offered):
            self.become(uuid, Unleased())
            state.lease.hand_over()
            self._allowance_freed()

    def _in_need(self, of: Identity | None) -> bool:
        """Return True if a holder is to give way: this run has no card, or a gang's idle ones.

        While this user's launchers hold all the cards that they may, another user's card is of no
        use.
        """
        in_need = not self._in(*_HELD) or (self._gang.held and not self._user.working())
        useless = self._spent and of is not None and of[1] != os.geteuid()
        return self._wants and in_need and not useless

    def _refused_by(self, error: AllowanceSpentError) -> events.AllowanceSpent:
        """Wait for the user's other launchers; return the refusal."""
        self._spent = True
        self._allowance_watch.watch(error.allowance.limit)
        self.say_want()
        return events.AllowanceSpent(error.allowance.limit, error.allowance.source)

    def _heard_of_allowance(self, handed: Lease | None) -> None:
        """Have the core ask again; a lease that was handed over is for its card, or given back."""
        uuid = None if handed is None else self._uuids.get(handed.name)
        if handed is not None and uuid is not None and not self.holds(uuid):
            self._holders.stop(uuid)
            self._heard(uuid, handed, None)  # an Acquire may wait for it
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
        self._holders.waiters.tell_need()
        self._allowance_watch.waiters.tell_need()

    # ── After an attempt ────────────────────────────────────────────────────────────────────────

    def memory_back(self, uuids: Sequence[str]) -> dict[str, int]:
        """Return the free bytes of those cards whose memory is known to be back.

        A pretend card's is, as none was used. Another card is looked at on Drain.
        """
        return {uuid: gpu.memory for uuid in uuids if (gpu := self._gpus[uuid]).simulated}

    def drain(self, uuid: str) -> None:
        """Probe the card until the memory of its last job is back; post Drained, or Refused."""
        usable = self._states[uuid]
        assert isinstance(usable, Usable)
        emptying = Emptying(usable.lease, usable.before, self._loop.now() + DRAIN_TIMEOUT)
        self.become(uuid, emptying)
        self._probe_again(uuid, emptying)

    def _probe_again(self, uuid: str, emptying: Emptying) -> None:
        self._probe.look(self._gpus[uuid], lambda seen: self._drained(uuid, emptying, seen))

    def _drained(self, uuid: str, emptying: Emptying, seen: CardReading) -> None:
        if self._states[uuid] is not emptying:
            return
        if seen.sick:
            self._refuse(uuid, events.Sick(seen.sick))
        elif drained(emptying.before, seen, self._free_below):
            self.become(uuid, Usable(emptying.lease, emptying.before))
            self._post(events.Drained(uuid, memory_free(self._gpus[uuid], seen)))
        elif self._loop.now() >= emptying.until:
            self._refuse(uuid, not_drained(seen, DRAIN_TIMEOUT))
        else:
            self._loop.call_after(
                "drain:" + uuid, DRAIN_PAUSE, lambda: self._probe_again(uuid, emptying)
            )

    def settle(self) -> None:
        """Close all but the leases that are held, as nothing more will be asked for."""
        self._gang.end()
        self._holders.close()
        self._allowance_watch.stop()
        for uuid in self._in(Offered):
            self._drop_offer(uuid)
        self._probe.close()

    def close_in_child(self) -> None:
        """Close a forked child's copies of all descriptors, without giving any lease back."""
        for state in self._states.values():
            if isinstance(state, (Offered, *_HELD)):
                state.lease.close()
        self._holders.waiters.close_in_child()
        self._allowance_watch.waiters.close_in_child()
        self._gang.close_in_child()

    def close(self) -> None:
        self.settle()
        for uuid in self._in(*_HELD):
            self.release(uuid)


def _untakable(error: OSError) -> events.Occupied:
    return events.Occupied(f"its lease cannot be taken now: {error.strerror or error}")
