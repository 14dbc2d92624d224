"""Jobs to terminals, decided beforehand: rounds one after the other, lanes side by side.

A round begins when the one before has ended: what its jobs wait for is over. Within a round the
longest job goes first, each to the lane that has least to do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpulaunch.core.model import Job
from gpulaunch.export.look import levels_of


@dataclass(frozen=True, slots=True)
class TerminalLane:
    """A terminal in one round. `number` counts from 1; jobs that take cards have all of these."""

    number: int
    cards: tuple[int, ...]
    jobs: tuple[Job, ...]


def rounds(
    jobs: tuple[Job, ...], gpus: int, limits: Mapping[str, int]
) -> Iterator[list[TerminalLane]]:
    """The lanes that have anything to do, round by round."""
    levels = levels_of(jobs)
    ready: defaultdict[tuple[int, int], list[Job]] = defaultdict(list)
    for job in jobs:
        ready[levels[job.name], -max(1, job.demand.gpus)].append(job)
    weights = _weights(jobs)
    for (_, width), found in sorted(ready.items(), key=lambda item: item[0]):
        yield _split(found, -width, gpus // -width, limits, weights)


def _weights(jobs: Sequence[Job]) -> dict[str, float]:
    """Expected seconds where they are known of all, else the costs, else all the same."""
    if all(job.expected > 0 for job in jobs):
        return {job.name: job.expected for job in jobs}
    if all(job.cost > 0 for job in jobs):
        return {job.name: job.cost for job in jobs}
    return {job.name: 1.0 for job in jobs}


def _split(
    jobs: list[Job], width: int, count: int, limits: Mapping[str, int], weights: dict[str, float]
) -> list[TerminalLane]:
    lanes: list[list[Job]] = [[] for _ in range(count)]
    loads = [0.0] * count
    most = _lanes_for_tokens(jobs, limits)
    for job in sorted(jobs, key=lambda job: (-job.priority, -weights[job.name])):
        open_to = min([count, *(most[token] for token in job.demand.uses)])
        least = min(range(open_to), key=loads.__getitem__)
        lanes[least].append(job)
        loads[least] += weights[job.name]
    return [
        TerminalLane(number + 1, tuple(range(number * width, (number + 1) * width)), tuple(lane))
        for number, lane in enumerate(lanes)
        if lane
    ]


def _lanes_for_tokens(jobs: Sequence[Job], limits: Mapping[str, int]) -> dict[str, int]:
    """On how many lanes each token's users may be, so that there are always enough of it."""
    most: dict[str, int] = {}
    for job in jobs:
        for token, count in Counter(job.demand.uses).items():
            most[token] = min(most.get(token, limits[token]), max(1, limits[token] // count))
    return most
