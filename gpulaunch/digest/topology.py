"""What is near what: cards, their CPUs, and the NVLinks between them; in words for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulaunch.core.model import Gpu
from gpulaunch.wording import ranges


def linked(gpu: Gpu, gpus: Sequence[Gpu]) -> list[int]:
    """Return the indices of those of the cards that NVLink joins this one with."""
    return [other.index for other in gpus if other.uuid in gpu.links]


def near(numa: int | None, cpus: str) -> str:
    """Return what is near a card: `CPUs 0-31,64-95, NUMA node 0`; empty where nothing is known."""
    node = "" if numa is None else f"NUMA node {numa}"
    return ", ".join(filter(None, (f"CPUs {cpus}" if cpus else "", node)))


def lines(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield the CPUs near the cards where these differ, and which cards NVLink joins."""
    places: dict[str, list[int]] = {}
    for gpu in gpus:
        places.setdefault(near(gpu.numa, gpu.cpus) or "CPUs that are not known", []).append(
            gpu.index
        )
    if len(places) > 1:
        yield "; ".join(f"{named(some)} near {place}" for place, some in places.items())
    sets: dict[tuple[int, ...], None] = {}
    for gpu in gpus:
        if joined := linked(gpu, gpus):
            sets[tuple(sorted({gpu.index, *joined}))] = None
    if sets:
        yield f"NVLink between {'; between '.join(map(named, sets))}"


def named(indices: Sequence[int]) -> str:
    """Return the cards in words: `GPU 0`, `GPUs 0-3`."""
    return f"GPU{'s' * (len(indices) > 1)} {ranges(indices)}"
