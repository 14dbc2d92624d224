"""A second witness: `scontrol` is asked of an attempt before anything is made of `squeue`'s word.

    squeue: it is over, unknown, or back ─▶ doubted ─▶ scontrol show job ─▶ confirmed, or as it was
                                                                └─ no answer ─▶ as it was

For those few alone that would be ended, or called lost, by that word. One call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.attempt import QueueSnapshot, SlurmAttempt
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.loop import Loop

CALL_INTERVAL = 0.1
"""Seconds between two calls: each costs the cluster's controller some work."""
MAX_ASKED_PER_LOOK = 50
"""Attempts that are asked of after one look at the queue; the others after the next."""


class Doubts:
    """`heard` takes an attempt, what both witnesses come to, and when the second was asked. One
    that knows nothing of it says no more than the first."""

    def __init__(
        self,
        slurm: commands.Slurm,
        loop: Loop,
        heard: Callable[[SlurmAttempt, QueueRow | None, float], None],
    ) -> None:
        self._slurm = slurm
        self._loop = loop
        self._heard = heard
        self._waiting: list[tuple[SlurmAttempt, QueueRow | None]] = []
        self._asked: dict[str, float] = {}
        self._busy = False

    def ask(self, doubted: Sequence[tuple[SlurmAttempt, QueueRow | None]]) -> None:
        """Of these, with what `squeue` said, and of none of an earlier look any more; first of who
        has waited longest."""
        self._asked = {held.id: self._asked.get(held.id, 0.0) for held, _ in doubted}
        longest = sorted(doubted, key=lambda each: self._asked[each[0].id])
        self._waiting = longest[:MAX_ASKED_PER_LOOK]
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        (held, said), self._busy = self._waiting.pop(0), True
        asked_at = self._asked[held.id] = time.monotonic()

        def answered(answer: commands.ShowAnswer) -> None:
            self._busy = False
            if not isinstance(answer, commands.Unreachable):
                rows = answer.rows if isinstance(answer, commands.QueueListing) else ()
                row = QueueSnapshot(rows).row_of(held) or said
                self._heard(held, row, asked_at)
            self._loop.call_after("slurm:doubts", CALL_INTERVAL, self._next)

        self._slurm.show(held.id, answered)
