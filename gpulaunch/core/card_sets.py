"""Which set of cards a wide job takes. Pure.

The first of these that tells two sets apart decides: the fewest pairs without NVLink between them,
the fewest NUMA nodes, the cards that stand first in the order given.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core.model import Gpu

Worth = tuple[int, int]
"""Pairs of cards without NVLink, and NUMA nodes: the less, the better."""


def worth(gpus: Sequence[Gpu]) -> Worth:
    """Return how far apart these cards are."""
    apart = sum(b.uuid not in a.links for n, a in enumerate(gpus) for b in gpus[:n])
    return apart, len({gpu.numa for gpu in gpus})


def nearest(gpus: Sequence[Gpu], count: int) -> list[int]:
    """Return the places, in `gpus`, of the best set of `count` of them, in their order.

    It is the best of all sets. Cards between which nothing but the order decides stand for each
    other, which leaves few sets to look at on machines as they are built.
    """
    everything = list(range(len(gpus)))
    if count >= len(gpus) or count < 2 or _all_alike(gpus):
        return everything[:count]
    return _SetSearch(gpus, count).best


def _all_alike(gpus: Sequence[Gpu]) -> bool:
    numa = gpus[0].numa
    return all(not gpu.links and gpu.numa == numa for gpu in gpus)


class _SetSearch:
    """Looks at sets in the order of the cards' places, so that the first of equal ones is kept.

    A card is passed over together with all later ones that are like it. A part of a set that is
    no better than the best whole one is left: what is added makes neither number smaller.
    """

    def __init__(self, gpus: Sequence[Gpu], count: int) -> None:
        self.count = count
        self.links = [
            {k for k, other in enumerate(gpus) if other.uuid in gpu.links} for gpu in gpus
        ]
        self.nodes = [gpu.numa for gpu in gpus]
        self.like = [self._first_like(n) for n in range(len(gpus))]
        self.best: list[int] = []
        self._worth: Worth = (count * count, len(gpus) + 1)
        self._look([], 0, frozenset(), 0)

    def _first_like(self, n: int) -> int:
        """Return the first card that has the same node, and the same links to all the others."""
        for k in range(n):
            same = self.links[k] - {n} == self.links[n] - {k}
            if same and self.nodes[k] == self.nodes[n]:
                return k
        return n

    def _look(self, chosen: list[int], apart: int, passed: frozenset[int], start: int) -> None:
        if (apart, len({self.nodes[n] for n in chosen})) >= self._worth:
            return
        if len(chosen) == self.count:
            self.best = chosen
            self._worth = apart, len({self.nodes[n] for n in chosen})
            return
        for n in range(start, len(self.links) - (self.count - len(chosen)) + 1):
            if self.like[n] in passed:
                continue
            more = sum(k not in self.links[n] for k in chosen)
            self._look([*chosen, n], apart + more, passed, n + 1)
            passed |= {self.like[n]}
