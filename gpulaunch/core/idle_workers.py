"""Workers that an attempt has left: idle on its cards, then taken or ended.

    Ended(kept) ─▶ idle ──a job of its key is ready──▶ Launch(worker=...)
                     └──none to come, or its cards are wanted──▶ EndWorker ─▶ WorkerEnded ─▶ drain

INVARIANT: once an event has been handled, an idle worker is one that jobs of its key are still to
come for, nobody known wants its cards, and LINGER seconds are not over. A worker's memory is never
beside a job that is not its own. It decides nothing of which job goes where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.cards import Card
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import EndWorker, SetTimer
from gpulaunch.core.facts import WorkerGone, WorkerLeft
from gpulaunch.core.model import AttemptId, Demand

TIMER = "worker/"
LINGER = 60.0
"""Seconds for which a worker may wait: loading again costs more than a card that others do not
have meanwhile, but not for long."""


@dataclass(slots=True, eq=False)
class IdleWorker:
    """`id` is the attempt that the worker was started with. `ending`: it was told to go.

    `until`: when it is to go at the latest, monotonic.
    """

    id: AttemptId
    demand: Demand
    cards: tuple[Card, ...]
    until: float
    lingers: bool = False
    ending: bool = False
    killed: bool = False

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(card.gpu.uuid for card in self.cards)

    def suits(self, demand: Demand) -> bool:
        """An attempt of this demand may start in it at once."""
        if self.ending or not self.demand.same_seat(demand):
            return False
        return self.may_stay and not any(card.gpu.uuid in demand.avoid for card in self.cards)

    @property
    def may_stay(self) -> bool:
        """Nothing speaks against another attempt in the seats that it has."""
        return all(_is_ready(card) for card in self.cards)


class IdleWorkers:
    """All workers without an attempt. Cards carry them, as they carry attempts."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._by_id: dict[AttemptId, IdleWorker] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[IdleWorker]:
        return iter(list(self._by_id.values()))

    def stay(self, live: ActiveAttempt) -> None:
        """The attempt has ended, its worker has not."""
        until = self._effects.now.mono + LINGER
        resident = IdleWorker(live.worker or live.id, live.demand, live.cards, until)
        self._by_id[resident.id] = resident
        for card in live.cards:
            card.idle_workers[resident.id] = live.demand

    def fit(self, demand: Demand) -> IdleWorker | None:
        """An idle one for this demand, on the card of the lowest index."""
        if not demand.worker or not self._by_id:
            return None
        found = [resident for resident in self._by_id.values() if resident.suits(demand)]
        return min(found, key=_place, default=None)

    def take(self, resident: IdleWorker) -> None:
        """An attempt starts in it."""
        self._forget(resident)

    def end(self, resident: IdleWorker, now: bool = False) -> None:
        if not resident.ending:
            self._effects.fact(WorkerLeft(resident.id, resident.gpus))
        if not resident.ending or (now and not resident.killed):
            resident.ending = True
            resident.killed = resident.killed or now
            self._effects.emit(EndWorker(resident.id, resident.killed))

    def end_idle(self, to_come: Callable[[Demand], bool]) -> bool:
        """End those that nobody has taken; True if there was one.

        `to_come`: whether a worker of that demand may wait for jobs that are not ready yet.
        """
        ended = False
        for resident in self:
            if resident.ending:
                continue
            early = self._effects.now.mono < resident.until
            if early and resident.may_stay and to_come(resident.demand):
                self._linger(resident)
            else:
                self.end(resident)
                ended = True
        return ended

    def _linger(self, resident: IdleWorker) -> None:
        if not resident.lingers:
            resident.lingers = True
            self._effects.emit(SetTimer(f"{TIMER}{resident.id}", resident.until))

    def gone(self, worker: AttemptId) -> tuple[Card, ...]:
        """Nothing is left of it; the cards that it was on. Unknown ones are ignored."""
        resident = self._by_id.get(worker)
        if resident is None:
            return ()
        self._forget(resident)
        if resident.ending:
            self._effects.fact(WorkerGone(resident.id, resident.gpus))
        return resident.cards

    def _forget(self, resident: IdleWorker) -> None:
        del self._by_id[resident.id]
        for card in resident.cards:
            del card.idle_workers[resident.id]


def _is_ready(card: Card) -> bool:
    if card.state != "leased" or card.drained or card.reserved or card.failing or card.requested:
        return False
    return not card.reservations


def _place(resident: IdleWorker) -> tuple[tuple[int, ...], AttemptId]:
    return tuple(card.gpu.index for card in resident.cards), resident.id
