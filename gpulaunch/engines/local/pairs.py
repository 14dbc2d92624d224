"""Keeper pairs: forked for a set of leases, kept while idle, closed when the leases are given back.

Owns the spawner, the preload servers, and every pair's socket. Knows nothing of attempts.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from gpulaunch.engines.context import RunContext
from gpulaunch.engines.local.cards import CardLeases
from gpulaunch.engines.local.preloads import Preloads
from gpulaunch.errors import GpulaunchError
from gpulaunch.gpus.names import bind_name
from gpulaunch.process.client import Pair, Spawner, SpawnerGoneError
from gpulaunch.process.native import find_keepers
from gpulaunch.process.preloading import PreloadServer

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
