"""Which bars stand in which lane, and in which row of it, so that none hides another. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import Gpu
from gpulaunch.report.fold import Period, begin, finish

CLOSE = 0.01
"""Seconds by which neighbours may overlap without a row of their own: clocks of two processes."""


@dataclass(frozen=True, slots=True)
class Lane:
    """`uuid` is None for jobs without cards. `bars` are numbers of attempts, each with its row."""

    uuid: str | None
    bars: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def height(self) -> int:
        """In rows."""
        return max(self.rows, default=0) + 1


def lanes(attempts: Sequence[AttemptRecord], cards: Mapping[str, Gpu], when: Period) -> list[Lane]:
    """One for each card; an attempt with several has a bar on each. `attempts`: by beginning."""
    members: dict[str | None, list[int]] = defaultdict(list)
    for number, attempt in enumerate(attempts):
        if attempt.queued and attempt.started is None:
            continue  # it never left the queue
        for uuid in attempt.gpus or (None,):
            members[uuid].append(number)
    order = [*cards, *([None] if None in members else [])]
    return [
        Lane(uuid, tuple(members[uuid]), _rows([attempts[n] for n in members[uuid]], when))
        for uuid in order
    ]


def _rows(attempts: Sequence[AttemptRecord], when: Period) -> tuple[int, ...]:
    """The lowest row that is free, for each."""
    rows: list[int] = []
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    for attempt in attempts:
        while taken and taken[0][0] <= begin(attempt) + CLOSE:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (finish(attempt, when), row))
        rows.append(row)
    return tuple(rows)
