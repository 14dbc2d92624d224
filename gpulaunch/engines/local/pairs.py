"""Keeper pairs: forked for a set of leases, kept while idle, closed when the leases are given back.

Owns the spawner, the preload servers, every pair's socket, and the workers that wait on a pair for
their next attempt. Starts no attempt.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec import Struct

from gpulaunch.agent.ports import PortLease
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.events import Ended, EndWorker, WorkerEnded
from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.client import Pair, Spawner, SpawnerGoneError
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.local.leases import CardLeases
from gpulaunch.engines.local.preload_client import PreloadServer
from gpulaunch.engines.local.preloads import Preloads
from gpulaunch.engines.programs import find_keepers
from gpulaunch.engines.protocol import Post
from gpulaunch.gpus.socket_locks import PortPool, bind_name

MAX_IDLE_WITHOUT_CARD = 4
"""Pairs without a lease that are kept idle at most, for each preload server or none."""


class PairKind(Struct, frozen=True):
    """What pairs have in common that can take each other's place.

    `server`: the preload server that forked them; None for the run's spawner.
    """

    leases: tuple[str, ...]
    server: PreloadServer | None = None


class Pairs:
    """The run's keeper pairs. `hear` is called when a pair has reports to read.

    `served` is called when a preload server begins to serve, or is gone.
    """

    def __init__(
        self,
        context: RunContext,
        cards: CardLeases,
        hear: Callable[[Pair], None],
        served: Callable[[], None],
    ) -> None:
        self._context = context
        self._cards = cards
        self._hear = hear
        self.preloads = Preloads(context, served, self._server_gone)
        self._spawner: Spawner | None = None
        self._forked = 0
        self._idle: defaultdict[PairKind, list[Pair]] = defaultdict(list)
        self._pairs: set[Pair] = set()

    # ── Use ─────────────────────────────────────────────────────────────────────────────────────

    def take(self, kind: PairKind) -> Pair:
        """Return an idle pair of this kind, or a new one. Raises OSError, GpulaunchError."""
        return self._idle[kind].pop(0) if self._idle[kind] else self._fork(kind)

    def idle(self, kind: PairKind) -> int:
        """Return how many pairs of this kind are idle."""
        return len(self._idle[kind])

    def keep(self, pair: Pair, kind: PairKind) -> None:
        """Keep a pair whose attempt is over for the next one of its kind, or close it.

        A card may have been given back meanwhile, of a pair whose worker ended before the attempt
        behind it began: with the pair's copy of the lease nobody could have it. A pair of a preload
        server has no child for another job.
        """
        enough = not kind.leases and len(self._idle[kind]) >= MAX_IDLE_WITHOUT_CARD
        given_back = not all(map(self._cards.holds, kind.leases))
        if enough or given_back or kind.server is not None:
            self.dismiss(pair)
        else:
            self._idle[kind].append(pair)

    def fork_ahead(self, kind: PairKind) -> None:
        """Fork an idle pair of this kind if there is none, so that it is ready for an attempt."""
        if self._still_forks(kind) and not self._idle[kind]:
            with suppress(OSError, GpulaunchError):
                self._idle[kind].append(self._fork(kind))

    def _still_forks(self, kind: PairKind) -> bool:
        """Return True while the spawner or preload server that forked such pairs forks new ones.

        No attempt asks for the pairs of a server that does not serve any more.
        """
        return kind.server is None or kind.server.state == "serves"

    def _fork(self, kind: PairKind) -> Pair:
        self._forked += 1
        # Part of the name is random: other users could take names that they can guess.
        number = f"{self._context.epoch}.{self._forked}.{os.urandom(4).hex()}"
        name = f"keeper/{self._context.run_id}/{number}"
        with bind_name(name) as alive:
            pair = self._fork_from(kind, alive.fileno())
        self._pairs.add(pair)
        self._context.loop.watch(pair.fileno(), lambda: self._hear(pair))
        return pair

    def _fork_from(self, kind: PairKind, alive: int) -> Pair:
        leases = self._cards.descriptors(kind.leases)
        for spawner in (kind.server, self._spawner):
            if spawner:
                with suppress(SpawnerGoneError):  # of a server that is gone: its jobs start cold
                    return spawner.pair(leases, alive)
        gone, self._spawner = self._spawner, None
        if gone:
            gone.close()
        self._spawner = Spawner(find_keepers(self._context.environments.programs))
        return self._spawner.pair(leases, alive)

    # ── Leases ──────────────────────────────────────────────────────────────────────────────────

    def give_back(self, gpu: str) -> None:
        """Close the idle pairs that hold this card's lease."""
        self._dismiss_idle(lambda kind: gpu in kind.leases)

    # ── Ends ────────────────────────────────────────────────────────────────────────────────────

    def _server_gone(self, server: PreloadServer) -> None:
        self._dismiss_idle(lambda kind: kind.server is server)

    def _dismiss_idle(self, which: Callable[[PairKind], bool]) -> None:
        for kind in [kind for kind in self._idle if which(kind)]:
            for pair in self._idle.pop(kind):
                self.dismiss(pair)

    def dismiss(self, pair: Pair) -> None:
        """Close a pair's socket. Its keepers exit on the end of file, and end what runs there."""
        self._pairs.discard(pair)
        self._context.loop.unwatch(pair.fileno())
        pair.close()

    def forget(self, pair: Pair) -> None:
        """Remove a pair that is gone, so that nothing is launched on it any more."""
        for pairs in self._idle.values():
            with suppress(ValueError):
                pairs.remove(pair)
        self._pairs.discard(pair)

    def close(self) -> None:
        """Close all pairs, those in use as well, then the preload servers and the spawner."""
        for pair in list(self._pairs):
            self.dismiss(pair)
        self._idle.clear()
        self.preloads.close()
        if self._spawner:
            self._spawner.close()


# ── Workers that wait ─────────────────────────────────────────────────────────────────────────────


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

    It keeps its keeper pair and its ports: its libraries may have opened them for good. `last`: the
    attempt that it ran last, whose end may not be posted yet.
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
