"""While Slurm's controller does not answer: what people are told, and when a run gives up.

Stops do not wait for the controller: attempts that have not begun are withdrawn, and those that run
are stopped through the run directory. A run that is to end at once leaves behind only attempts of
which no node reports an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.attempt import SlurmAttempt

LEAVING = 30.0
"""Seconds without an answer from Slurm after which a run that is to end at once gives up."""
SILENT = "Slurm's controller does not answer"


class Outage:
    """Whether Slurm's controller answers: `why` it does not, empty while it does.

    `warn` takes a line for people.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        self._said: set[tuple[AttemptId, bool]] = set()
        self._heard_at = time.monotonic()
        self.why = ""

    def noticed(self, why: str, stopping: Collection[SlurmAttempt], removed_by: str) -> None:
        first, self.why = not self.why, f"{SILENT}: {why}"
        if not self.say(stopping, removed_by) and first:
            self._warn(f"{SILENT}, what runs goes on: {why}")

    def over(self, asked_at: float) -> None:
        """Note an answer to a question asked at that monotonic time; say so after an outage."""
        self._heard_at = asked_at
        if self.why:
            self._warn("Slurm's controller answers again")
        self.why = ""
        self._said.clear()

    def say(self, stopping: Collection[SlurmAttempt], removed_by: str) -> bool:
        """Warn how these attempts end without Slurm; return True if anything was said.

        Once for each attempt, and once more when it is to end at once. `removed_by`: the commands
        that remove the withdrawn jobs from Slurm's queue.
        """
        new = [held for held in stopping if _wish(held) not in self._said]
        self._said.update(map(_wish, new))
        waited = sum(held.withdrawn is not None for held in new)
        told = []
        if waited:
            by = f" ({removed_by} takes them out of its queue)" if removed_by else ""
            told.append(f"{_attempts(waited)} withdrawn: what it still starts ends at once{by}")
        if ran := len(new) - waited:
            told.append(f"{_attempts(ran)} told through the run directory, within a minute")
            if any(held.wish is not None and held.wish.now for held in new):
                told.append(f"what has not ended in {LEAVING:g} s is left in its hands")
        if told:
            self._warn(f"{SILENT}: {'; '.join(told)}")
        return bool(told)

    def gives_up(self, held: Collection[SlurmAttempt], killed_at: float) -> str:
        """Return why to give up on these attempts now; empty to go on waiting.

        `killed_at`: the monotonic time of the demand that they end at once.
        """
        if not (self.why and held and all(each.wish and each.wish.now for each in held)):
            return ""
        if time.monotonic() - max(self._heard_at, killed_at) < LEAVING:
            return ""
        them = "it" if len(held) == 1 else "them"
        return f"{_attempts(len(held))} still in Slurm's hands: gpulaunch resume looks after {them}"


def _wish(held: SlurmAttempt) -> tuple[AttemptId, bool]:
    return held.attempt, held.wish is not None and held.wish.now


def _attempts(count: int) -> str:
    return "1 attempt is" if count == 1 else f"{count:,} attempts are"
