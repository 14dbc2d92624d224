"""Machines as they are built, and as nobody builds them: cards with NVLinks and NUMA nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gpulaunch.core.model import Gpu

Pairs = Iterable[tuple[int, int]]


def joined(gpus: Sequence[Gpu], pairs: Pairs, numa: Sequence[int | None] = ()) -> tuple[Gpu, ...]:
    """The same cards, NVLink between these pairs of their places, on these NUMA nodes in turn."""
    ends: dict[int, set[int]] = {n: set() for n in range(len(gpus))}
    for one, other in pairs:
        ends[one].add(other)
        ends[other].add(one)
    return tuple(
        replace(
            gpu,
            links=tuple(gpus[k].uuid for k in sorted(ends[n])),
            numa=numa[n] if n < len(numa) else None,
        )
        for n, gpu in enumerate(gpus)
    )


def islands(count: int, size: int) -> list[tuple[int, int]]:
    """The pairs of cards that stand beside each other in islands of this size."""
    return [(a, b) for a in range(count) for b in range(a) if a // size == b // size]


def cube_mesh() -> list[tuple[int, int]]:
    """The pairs of a DGX-1: two meshes of four, and a link from each card to one of the other."""
    return [*islands(8, 4), *((n, n + 4) for n in range(4))]


def some_machine(gpus: Sequence[Gpu], rng: random.Random) -> tuple[Gpu, ...]:
    """The same cards in a machine that the seed chooses."""
    count = len(gpus)
    share = rng.choice([0.0, 0.3, 0.7])
    drawn = [(a, b) for a in range(count) for b in range(a) if rng.random() < share]
    pairs = rng.choice([[], islands(count, 2), islands(count, 4), islands(count, count), drawn])
    nodes = rng.choice([[None] * count, [n * 2 // count for n in range(count)]])
    return joined(gpus, pairs, nodes)
