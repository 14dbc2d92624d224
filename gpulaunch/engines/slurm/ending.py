"""Ending attempts that Slurm has: withdrawn before they begin, or stopped by the node's side.

ask ─▶ claim ─▶ ours: no node starts it any more (withdrawals.py)
             └▶ a node's: it runs ─▶ stops/JOB.N, which the node reads by itself
                                  ─▶ USR1 to the batch script alone (now: USR2, which kills)
                                        └─ long after its grace: scancel

No stop waits for Slurm's controller.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from os import unlink
from typing import Protocol

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.attempt import SlurmAttempt, in_parts
from gpulaunch.engines.slurm.judge import REQUEUED
from gpulaunch.journal.rundir import RunDir
from gpulaunch.loop import Loop
from gpulaunch.process.checked import record_bytes, record_of
from gpulaunch.process.ends import text_of
from gpulaunch.process.nodeside import Reason, Withdrawn, withdraw, write_stop

HARD_END_DELAY = 30.0
"""Seconds beyond a job's grace after which it is cancelled through Slurm."""
GATHER_DELAY = 0.02
"""Seconds for which stops are gathered, so that one call carries many."""
WRITE_RETRY_DELAY = 5.0
"""Seconds after which a stop or a claim that could not be written is tried again."""


class Ender(Protocol):
    """The engine as `Ending` sees it: takes what became of each stop.

    `withdrawn`: no node starts these attempts any more. `begun`: a node has claimed this one.
    `asked`: all stops of a turn were sent. `away`: Slurm does not answer.
    """

    def withdrawn(self, some: Sequence[SlurmAttempt]) -> None: ...
    def begun(self, held: SlurmAttempt) -> None: ...
    def asked(self) -> None: ...
    def away(self, why: str) -> None: ...


class Ending:
    """The stops under way: the attempts asked to end, and the last signal to each and its time."""

    def __init__(self, slurm: commands.Slurm, run: RunDir, loop: Loop, to: Ender) -> None:
        self._slurm = slurm
        self._run = run
        self._loop = loop
        self._to = to
        self._asked: dict[AttemptId, SlurmAttempt] = {}
        self._written: dict[AttemptId, tuple[Withdrawn, bool]] = {}
        self._signalled: dict[AttemptId, tuple[str, float]] = {}

    def ask(self, held: SlurmAttempt) -> None:
        """Stop the attempt as its wish says: at first, or again with a stronger wish."""
        self._asked[held.attempt] = held
        self._loop.call_after("slurm:end", GATHER_DELAY, self._begin)

    def insist(self, wished: Iterable[SlurmAttempt]) -> None:
        """Repeat the stops after a look at the queue: attempts may wait still, or have begun."""
        self._tell(list(wished))

    def recall(self, held: Sequence[SlurmAttempt]) -> None:
        """Cancel jobs that Slurm put back into its queue: their second start would do nothing."""
        self._cancel(held)

    def leave_word(self, held: SlurmAttempt) -> None:
        """Write a stop file for a start that Slurm takes for ended but that may still live.

        A node that lost its controller may still run it; the node ends it once it reads the file.
        """
        with suppress(OSError):
            write_stop(self._run.stop(held.attempt), "interrupted", REQUEUED)

    def left_word(self, held: SlurmAttempt) -> bool:
        """True if an earlier launcher left such a stop file, and so caused what Slurm shows."""
        try:
            stop = record_of(record_bytes(self._run.stop(held.attempt)))
            return bool(stop["by"] == REQUEUED)
        except (OSError, ValueError, KeyError):
            return False

    def over(self, held: SlurmAttempt) -> None:
        for known in (self._asked, self._written, self._signalled):
            known.pop(held.attempt, None)
        with suppress(OSError):
            unlink(self._run.stop(held.attempt))

    def _begin(self) -> None:
        asked, self._asked = self._asked, {}
        self._tell(list(asked.values()))
        self._to.asked()

    def _tell(self, wished: Sequence[SlurmAttempt]) -> None:
        now = time.monotonic()
        wished = self._withdraw([held for held in wished if held.withdrawn is None])
        for held in wished:
            self._write(held)
        wished = [held for held in wished if held.id and held.reachable]
        running = [held for held in wished if held.runs]
        late = [held for held in running if self._is_late(held, now)]
        self._cancel([held for held in wished if not held.runs or held in late])
        for word in ("USR1", "USR2"):
            self._signal([held for held in running if held not in late], word, now)

    # ── On the shared disk ──────────────────────────────────────────────────────────────────────

    def _withdraw(self, wished: Sequence[SlurmAttempt]) -> list[SlurmAttempt]:
        """Claim the attempts that have not begun; return those that run or cannot be claimed."""
        waiting: dict[Withdrawn, list[SlurmAttempt]] = {}
        for held in wished:
            if not held.begun:
                waiting.setdefault(_why(held), []).append(held)
        for why, some in waiting.items():
            try:
                won = withdraw([self._run.start(held.attempt) for held in some], why.reason, why.by)
            except OSError:  # a full disk: Slurm is asked meanwhile
                self._later(some)
                continue
            ours = [held for held, mine in zip(some, won, strict=True) if mine]
            for held in ours:
                held.withdrawn = why
            for held in some:
                if held.withdrawn is None:
                    self._to.begun(held)
            if ours:
                self._to.withdrawn(ours)
        return [held for held in wished if held.withdrawn is None]

    def _write(self, held: SlurmAttempt) -> None:
        """Write the stop file that the node reads. Without it the end would look like Slurm's."""
        why, now = _why(held), held.wish is not None and held.wish.now
        if self._written.get(held.attempt) == (why, now):
            return
        try:
            write_stop(self._run.stop(held.attempt), why.reason, why.by, now)
        except OSError:
            self._later([held])
        else:
            self._written[held.attempt] = (why, now)

    def _later(self, some: Sequence[SlurmAttempt]) -> None:
        self._asked.update({held.attempt: held for held in some})
        self._loop.call_after("slurm:end", WRITE_RETRY_DELAY, self._begin)

    # ── Through Slurm ───────────────────────────────────────────────────────────────────────────

    def _is_late(self, held: SlurmAttempt, now: float) -> bool:
        word, since = self._signalled.get(held.attempt, ("", now))
        return bool(word) and now - since > HARD_END_DELAY + (
            0.0 if word == "USR2" else held.job.grace
        )

    def _signal(self, running: Sequence[SlurmAttempt], word: str, now: float) -> None:
        new = [held for held in running if _word_for(held) == word and not self._has(held, word)]
        for held in new:
            self._signalled[held.attempt] = (word, now)
        for some in in_parts(new):

            def answered(
                answer: commands.CancelAnswer, some: Sequence[SlurmAttempt] = some
            ) -> None:
                if isinstance(answer, commands.Unreachable):
                    for held in some:
                        self._signalled.pop(held.attempt, None)
                    self._to.away(answer.text)

            self._slurm.signal([held.id for held in some], word, answered)

    def _has(self, held: SlurmAttempt, word: str) -> bool:
        return self._signalled.get(held.attempt, ("",))[0] == word

    def _cancel(self, wished: Sequence[SlurmAttempt]) -> None:
        for some in in_parts(wished):
            self._slurm.cancel([held.id for held in some], self._heard)

    def _heard(self, answer: commands.CancelAnswer) -> None:
        """Report an outage; ignore any other answer of scancel.

        The next look at the queue shows which jobs are left, and those are cancelled again.
        """
        if isinstance(answer, commands.Unreachable):
            self._to.away(answer.text)


def _why(held: SlurmAttempt) -> Withdrawn:
    """Return why the attempt is to end, as the claim and stop files spell it."""
    wish = held.wish
    reason: Reason = "cancelled" if wish and wish.reason == "cancelled" else "interrupted"
    return Withdrawn(reason, text_of(wish.by) if wish else "")


def _word_for(held: SlurmAttempt) -> str:
    return "USR2" if held.wish is not None and held.wish.now else "USR1"
