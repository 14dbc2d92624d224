"""Confirms a row of `squeue` by `scontrol` before an attempt is ended because of it.

    squeue: over, unknown, or requeued ─▶ doubted ─▶ scontrol show job ─▶ confirmed, or contradicted
                                                              └─ no answer ─▶ asked again later

Only for the few attempts that would be ended, or called lost, by that row. One call at a time.
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
"""Attempts to confirm after one look at the queue; the others follow after the next."""


class Doubts:
    """The attempts whose rows wait to be confirmed.

    `heard` takes an attempt, its row and the monotonic time at which `scontrol` was asked. Where
    `scontrol` does not know the job, the row is `squeue`'s.
    """

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
        """Confirm these attempts, each with `squeue`'s row, instead of those of an earlier look.

        Those whose last question is the longest ago come first.
        """
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
