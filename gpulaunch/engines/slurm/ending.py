"""Ending what Slurm has: out of its queue, or by the node's side with the job's own grace.

ask ─▶ stops/JOB.N ─▶ it waits: scancel; had it begun by then, it ends as one that runs
                    └▶ it runs: USR1 to the batch script alone (now: USR2, which kills)
                                  └─ long after its grace: scancel
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.held import Held
from gpulaunch.engines.slurm.judge import REQUEUED
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.process.nodeside import write_stop

HARD = 30.0
"""Seconds beyond a job's grace after which Slurm is to end it without further ado."""
TOGETHER = 0.02
AT_ONCE = 200
"""Numbers on one command line."""


class Ending:
    """What was asked of whom, and which signal each was last sent, and when."""

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

    def recall(self, held: Sequence[Held]) -> None:
        """Take out of the queue what Slurm has put back there: it would not be begun again."""
        for each in held:
            if each.start is not None:
                self.leave_word(each)
        self._cancel(held)

    def leave_word(self, held: Held) -> None:
        """For a start that Slurm takes for ended, and that may live where nobody sees it: on a node
        that lost its controller. Should it look, it is to end."""
        with suppress(OSError):
            write_stop(self._run.stop(held.attempt), "interrupted", REQUEUED)

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
        for held in wished:
            if held.attempt not in self._signalled:
                self._write(held)  # first: what begins after it is not begun
        wished = [held for held in wished if held.reachable]
        running = [held for held in wished if held.runs]
        late = [held for held in running if self._is_late(held, now)]
        self._cancel([held for held in wished if not held.runs or held in late])
        for word in ("USR1", "USR2"):
            self._signal([held for held in running if held not in late], word, now)

    def _is_late(self, held: Held, now: float) -> bool:
        word, since = self._signalled.get(held.attempt, ("", now))
        return bool(word) and now - since > HARD + (0.0 if word == "USR2" else held.job.grace)

    def _signal(self, running: Sequence[Held], word: str, now: float) -> None:
        """Once each: a second one would mean at once."""
        new = [held for held in running if _word_for(held) == word and not self._has(held, word)]
        for held in new:
            self._signalled[held.attempt] = (word, now)
        for some in _parts(new):

            def answered(answer: commands.CancelAnswer, some: Sequence[Held] = some) -> None:
                if isinstance(answer, commands.Unreachable):
                    for held in some:
                        self._signalled.pop(held.attempt, None)

            self._slurm.signal([held.id for held in some], word, answered)

    def _has(self, held: Held, word: str) -> bool:
        return self._signalled.get(held.attempt, ("",))[0] == word

    def _cancel(self, wished: Sequence[Held]) -> None:
        for some in _parts(wished):
            self._slurm.cancel([held.id for held in some], _look_again)

    def _write(self, held: Held) -> None:
        """Why, for the node's side to record. Without it the end is one that Slurm asked for."""
        if held.wish is not None:
            reason: Literal["cancelled", "interrupted"]
            reason = "cancelled" if held.wish.reason == "cancelled" else "interrupted"
            with suppress(OSError):
                write_stop(self._run.stop(held.attempt), reason, held.wish.by)


def _word_for(held: Held) -> str:
    return "USR2" if held.wish is not None and held.wish.now else "USR1"


def _parts(wished: Sequence[Held]) -> list[Sequence[Held]]:
    return [wished[start : start + AT_ONCE] for start in range(0, len(wished), AT_ONCE)]


def _look_again(answer: commands.CancelAnswer) -> None:
    """The next look at the queue tells more than scancel does; what is not over is told again."""
