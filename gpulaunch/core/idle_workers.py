"""Workers without an attempt: idle on their cards until one takes another attempt or is ended.

    Ended(kept) ─▶ idle ──a job of its key is ready──▶ Launch(worker=...)
                     └──none to come, or its cards are wanted──▶ EndWorker ─▶ WorkerEnded ─▶ drain

INVARIANT: once an event has been handled, a worker that is not being ended has jobs of its key to
come, nobody known wants its cards, and LINGER seconds are not over. A worker's memory is never
beside a job that is not its own. This module does not decide which job runs in which worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.card import Card
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import EndWorker, SetTimer, Timer
from gpulaunch.core.facts import WorkerGone, WorkerLeft
from gpulaunch.core.model import AttemptId, Demand

LINGER = 60.0
"""Seconds for which an idle worker may keep its cards for later jobs: loading again may cost more
than cards that are idle, but not for long."""


class IdleWorker(Struct, eq=False):
    """A worker without an attempt. `id` is the attempt that the worker was started with.

    `turns`: the attempts that it has run.
    `until`: the monotonic time at which it is ended at the latest. `lingers`: a timer for that is
    set. `ending`: EndWorker was emitted; `killed`: with KILL at once. `unending` as of an attempt.
    """

    id: AttemptId
    demand: Demand
    cards: tuple[Card, ...]
    until: float
    turns: int = 1
    lingers: bool = False
    ending: bool = False
    killed: bool = False
    unending: tuple[int, ...] | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(card.gpu.uuid for card in self.cards)

    def suits(self, demand: Demand) -> bool:
        """Tell whether an attempt of this demand may start in the worker at once."""
        if self.ending or not self.demand.same_seat(demand):
            return False
        return self.may_stay and not any(card.gpu.uuid in demand.avoid for card in self.cards)

    @property
    def may_stay(self) -> bool:
        """True while another attempt may start on all of the worker's cards."""
        return all(may_go_on(card) for card in self.cards)


class IdleWorkers:
    """All workers without an attempt. Cards carry them, as they carry attempts."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._by_id: dict[AttemptId, IdleWorker] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[IdleWorker]:
        return iter(list(self._by_id.values()))

    @property
    def memory(self) -> int:
        """Bytes of the host's memory that are reserved for these workers."""
        return sum(resident.demand.memory for resident in self._by_id.values())

    def stay(self, live: ActiveAttempt) -> None:
        """Add the worker of an attempt that has ended."""
        until = self._effects.now.mono + LINGER
        resident = IdleWorker(live.seat, live.demand, live.cards, until, live.turn)
        self._by_id[live.seat] = resident
        for card in live.cards:
            card.idle_workers[live.seat] = live.promised

    def get(self, worker: AttemptId) -> IdleWorker | None:
        return self._by_id.get(worker)

    def fit(self, demand: Demand) -> IdleWorker | None:
        """Return the idle worker for this demand whose card has the lowest index."""
        if not demand.worker or not self._by_id:
            return None
        found = [resident for resident in self._by_id.values() if resident.suits(demand)]
        return min(found, key=_place, default=None)

    def take(self, resident: IdleWorker) -> None:
        """Remove the worker, as an attempt starts in it, or nothing is left of it."""
        del self._by_id[resident.id]
        for card in resident.cards:
            del card.idle_workers[resident.id]

    def end(self, resident: IdleWorker, now: bool = False) -> None:
        if not resident.ending:
            self._effects.fact(WorkerLeft(resident.id, resident.gpus))
        if not resident.ending or (now and not resident.killed):
            resident.ending = True
            resident.killed = resident.killed or now
            self._effects.emit(EndWorker(resident.id, resident.killed))

    def end_idle(self, to_come: Callable[[Demand], bool]) -> bool:
        """End the workers that may not wait any longer; return whether there was one.

        `to_come`: whether a worker of that demand may wait for jobs that are not ready yet.
        """
        ended = False
        for resident in self:
            if resident.ending:
                continue
            early = self._effects.now.mono < resident.until
            if not (early and resident.may_stay and to_come(resident.demand)):
                self.end(resident)
                ended = True
            elif not resident.lingers:
                resident.lingers = True
                self._effects.emit(SetTimer(Timer("worker", str(resident.id)), resident.until))
        return ended

    def gone(self, worker: AttemptId) -> tuple[Card, ...]:
        """Remove a worker that is gone, and return its cards; none for an unknown worker."""
        resident = self._by_id.get(worker)
        if resident is None:
            return ()
        self.take(resident)
        if resident.ending:
            self._effects.fact(WorkerGone(resident.id, resident.gpus))
        return resident.cards


def may_go_on(card: Card) -> bool:
    """Tell whether another attempt may follow on the card once the one there has ended."""
    if not card.leased or card.drained or card.reserved or card.failing or card.wanted:
        return False
    return not card.reservations


def _place(resident: IdleWorker) -> tuple[tuple[int, ...], AttemptId]:
    return tuple(card.gpu.index for card in resident.cards), resident.id
