"""What the metrics count of a run: the fold of its facts, from the first one on. Pure.

INVARIANT: `ends`, `failures` and `retries` never go down. A resumed run's journal has the facts of
its earlier supervisors too, so they count on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpulaunch.core import facts as f
from gpulaunch.core.classes import POLICIES
from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import AttemptId, AttemptState, Instant
from gpulaunch.digest.estimate import Ahead, Estimate

OTHER = "other"
"""Stands for every failure class that this version does not know: labels are a closed set."""


class Tally:
    """One run. `see` every fact of its journal, in order.

    `earlier`: how long jobs took in an earlier run of the same file, in seconds by name.
    """

    def __init__(self, earlier: Mapping[str, float] | None = None) -> None:
        self._earlier = dict(earlier or {})
        self.ledger = Ledger()
        self.ends: Counter[AttemptState] = Counter()
        self.failures: Counter[str] = Counter()
        self.retries = 0
        self._open: set[AttemptId] = set()
        self._estimate = Estimate()

    def see(self, fact: f.Fact, at: Instant) -> None:
        """Count a fact. Raises KeyError or IndexError where it fits nothing before it."""
        self.ledger.apply(fact, at)
        match fact:
            case f.RunOpened():
                # Times of an earlier boot compare with none of this one: begin anew from the state.
                self._estimate = Estimate(self._earlier if fact.epoch == 1 else None)
                self._estimate.seed(self.ledger)
                return
            case f.AttemptLaunched(attempt):
                self._open.add(attempt)
                self.retries += self._tries_again(attempt)
            case f.AttemptEnded(attempt, end):
                self._open.discard(attempt)
                self.ends[self.ledger.attempt(attempt).state] += 1
                if end.failure is not None:
                    kind = end.failure.kind
                    self.failures[kind if kind in POLICIES else OTHER] += 1
        self._estimate.see(fact, at, self.ledger)

    @property
    def running(self) -> list[AttemptRecord]:
        """Attempts whose end is not recorded, less those that wait in an engine's queue."""
        attempts = (self.ledger.attempt(attempt) for attempt in self._open)
        return [attempt for attempt in attempts if not attempt.in_queue]

    @property
    def queued(self) -> int:
        """Jobs that wait and will run: those that a resume no longer found in the file do not."""
        return self.ledger.counts["waiting"]

    def ahead(self, now: Instant) -> Ahead | None:
        """Return the seconds still to go; None if too little is known, or the run ends or has."""
        over = self.ledger.closed is not None or self.ledger.stopping is not None
        return None if over else self._estimate.ahead(now)

    def _tries_again(self, attempt: AttemptId) -> bool:
        """Tell whether an attempt follows one of its round that failed or was lost.

        One that was interrupted goes on: that is no new try.
        """
        job = self.ledger.jobs[attempt.job]
        if attempt.number <= job.budget_from:
            return False
        return job.attempts[attempt.number - 2].state in ("failed", "lost")
