"""Workers that wait for their next attempt, and the order of what is posted of their attempts.

A worker keeps its keeper pair and its ports: its libraries may have opened them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from gpulaunch.core.events import Ended, EndWorker, WorkerEnded
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.local.pairs import PairKind, Pairs
from gpulaunch.engines.protocol import Post
from gpulaunch.farside.ports import PortLease
from gpulaunch.gpus.port import PortPool
from gpulaunch.process.client import Pair


class PostInOrder:
    """Posts what comes of an attempt after the end of the attempt before it in their worker.

        AttemptOver(a) ─▶ is_over(a) ─▶ its cards are looked at ─▶ Ended(a) ─▶ what was held

    An attempt is over some time before its end is posted: the driver is asked about its cards
    first. Meanwhile the core takes its worker for one that runs, and launches behind it.
    INVARIANT: whatever becomes of such a launch is posted after that end, so that the core knows
    whether there is a worker.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._held: dict[AttemptId, list[Ended | AttemptStarted | WorkerEnded]] = {}

    def is_over(self, attempt: AttemptId) -> None:
        """Hold what comes of attempts behind this one until its end, now to be told, is posted."""
        self._held[attempt] = []

    def post(
        self, event: Ended | AttemptStarted | WorkerEnded, behind: AttemptId | None = None
    ) -> None:
        """Post the event, and after an attempt's end what was held for it; or hold the event.

        `behind`: the attempt behind which the event's own was launched, or which the worker ran
        last.
        """
        if behind is not None and behind in self._held:
            self._held[behind].append(event)
            return
        self._post(event)
        if isinstance(event, Ended):
            for held in self._held.pop(event.attempt, ()):
                self.post(held)


class WaitingWorker(Struct, frozen=True):
    """A worker without an attempt. `slot`: its number among those that share its card.

    `last`: the attempt that it ran last, whose end may not be posted yet.
    """

    pair: Pair
    leases: tuple[str, ...]
    last: AttemptId
    ports: tuple[PortLease, ...]
    slot: int = 0


class WaitingWorkers:
    """By the attempt with which each worker was started.

    `over` is called with a worker that has ended, and the attempt that it ran last.
    """

    def __init__(
        self,
        pairs: Pairs,
        ports: PortPool,
        over: Callable[[AttemptId, AttemptId | None], None],
    ) -> None:
        self._pairs = pairs
        self._ports = ports
        self._over = over
        self._workers: dict[AttemptId, WaitingWorker] = {}

    def __contains__(self, worker: AttemptId | None) -> bool:
        return worker in self._workers

    def get(self, worker: AttemptId | None) -> WaitingWorker | None:
        return self._workers.get(worker) if worker else None

    def leases(self) -> Iterator[str]:
        """Yield the cards that workers wait on, by UUID."""
        for waiting in self._workers.values():
            yield from waiting.leases

    def put(self, worker: AttemptId, waiting: WaitingWorker) -> None:
        self._workers[worker] = waiting

    def remove(self, worker: AttemptId) -> None:
        """Remove a worker that has got its next attempt."""
        self._workers.pop(worker, None)

    def slots(self, cards: set[str]) -> set[int]:
        """Return the numbers of the workers that wait on any of these cards."""
        return {one.slot for one in self._workers.values() if cards & set(one.leases)}

    def end(self, instruction: EndWorker) -> None:
        """End a worker. One that is gone (killed from outside) has ended at once."""
        if waiting := self._workers.get(instruction.worker):
            waiting.pair.retire(instruction.now)
        else:
            self._over(instruction.worker, None)

    def reaped(self, pair: Pair) -> None:
        """Forget the worker that has ended on this pair, and keep the pair."""
        for worker, waiting in self._pop(pair):
            self._ports.give_back(waiting.ports)
            self._pairs.keep(pair, PairKind(waiting.leases))
            self._over(worker, waiting.last)

    def pair_gone(self, pair: Pair) -> list[tuple[AttemptId, AttemptId]]:
        """Remove the workers that waited on a pair whose keepers are gone.

        Return each with the attempt that it ran last.
        """
        gone = self._pop(pair)
        for _, waiting in gone:
            self._ports.give_back(waiting.ports)
        return [(worker, waiting.last) for worker, waiting in gone]

    def on(self, pair: Pair) -> list[AttemptId]:
        """Return the workers that wait on a pair."""
        return [worker for worker, waiting in self._workers.items() if waiting.pair is pair]

    def _pop(self, pair: Pair) -> list[tuple[AttemptId, WaitingWorker]]:
        found = [(w, waiting) for w, waiting in self._workers.items() if waiting.pair is pair]
        for worker, _ in found:
            del self._workers[worker]
        return found

    def close(self) -> None:
        """Close the workers' ports; the workers themselves end when their pairs are closed."""
        for waiting in self._workers.values():
            self._ports.give_back(waiting.ports)
        self._workers.clear()
