"""Ending what Slurm has: out of its queue, or by the node's side with the job's own grace.

    ask ─▶ scancel of what waits ─▶ (it runs meanwhile) stops/JOB.N, TERM to the batch script alone
                                       └─ now: USR2, KILL at once     └─ long after its grace: scancel
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import commands
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.process.nodeside import write_stop

if TYPE_CHECKING:
    from gpulaunch.engines.slurm.engine import Held

HARD = 30.0
"""Seconds beyond a job's grace after which Slurm is to end it without further ado."""
TOGETHER = 0.02
AT_ONCE = 200
"""Numbers on one command line."""


class Ending:
    """What was asked, and how far each is. `signalled`: the strongest signal sent, and since when."""

    def __init__(self, slurm: commands.Slurm, run: RunDir, loop: Loop) -> None:
        self._slurm = slurm
        self._run = run
        self._loop = loop
        self._asked: dict[AttemptId, Held] = {}
        self._signalled: dict[AttemptId, tuple[str, float]] = {}

    def ask(self, held: Held) -> None:
        """Begin; or go on more strongly, where the wish is."""
        self._asked[held.attempt] = held
        self._loop.call_after("slurm:end", TOGETHER, self._begin)

    def insist(self, wished: Iterable[Held]) -> None:
        """After a look at the queue: what still waits, or has begun meanwhile, is told again."""
        wished = list(wished)
        if wished:
            self._tell(wished)

    def over(self, held: Held) -> None:
        self._asked.pop(held.attempt, None)
        self._signalled.pop(held.attempt, None)
        with suppress(OSError):
            os.unlink(self._run.stop(held.attempt))

    def _begin(self) -> None:
        asked, self._asked = self._asked, {}
        self._tell(list(asked.values()))

    def _tell(self, wished: Sequence[Held]) -> None:
        now = time.monotonic()
        self._cancel([held for held in wished if not held.runs], pending_only=True)
        running = [held for held in wished if held.runs]
        hard = [held for held in running if self._is_late(held, now)]
        soft = [held for held in running if held not in hard]
        self._signal([held for held in soft if held.wish and not held.wish.now], "TERM", now)
        self._signal([held for held in soft if held.wish and held.wish.now], "USR2", now)
        self._cancel(hard)

    def _is_late(self, held: Held, now: float) -> bool:
        word, since = self._signalled.get(held.attempt, ("", now))
        return bool(word) and now - since > HARD + (0.0 if word == "USR2" else held.job.grace)

    def _signal(self, wished: Sequence[Held], word: str, now: float) -> None:
        new = [held for held in wished if self._signalled.get(held.attempt, ("",))[0] != word]
        for held in new:
            self._signalled[held.attempt] = (word, now)
            self._write(held)
        self._in_parts(new, lambda ids: self._slurm.cancel(ids, _ignored, word, batch=True))

    def _cancel(self, wished: Sequence[Held], pending_only: bool = False) -> None:
        self._in_parts(
            wished, lambda ids: self._slurm.cancel(ids, _ignored, pending_only=pending_only)
        )

    def _in_parts(self, wished: Sequence[Held], tell: Callable[[list[str]], None]) -> None:
        for start in range(0, len(wished), AT_ONCE):
            tell([held.id for held in wished[start : start + AT_ONCE]])

    def _write(self, held: Held) -> None:
        """Why, for the node's side to record. Without it the end is one that Slurm asked for."""
        if held.wish is not None:
            reason = "cancelled" if held.wish.reason == "cancelled" else "interrupted"
            with suppress(OSError):
                write_stop(self._run.stop(held.attempt), reason, held.wish.by)


def _ignored(answer: commands.Answer) -> None:
    """The next look at the queue tells more than scancel does."""
