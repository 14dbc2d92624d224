"""Estimates how long a run still takes from how long its finished jobs took. Pure.

Per group of jobs (one entry of the job file): the mean time of those that succeeded, by cost where
all have one, in this run and in an earlier one of the same file; never from fewer than three. The
rest is assumed to run as many jobs at once as so far.

The range is right four times in five, if jobs to come are like those that finished: it follows from
how much those differed, and from how few they were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.core.records import JobRecord

MIN_JOBS_FINISHED = 3
KNOWN_SHARE = 0.75
"""The share of the jobs left that must be in groups with enough finished ones for an estimate."""


FOUR_OF_FIVE = 1.28
"""Standard deviations on either side that hold 80 % of a normal distribution."""


class Ahead(Struct, frozen=True):
    """Seconds still to go: the estimate, and its range from `low` to `high`."""

    seconds: float
    low: float
    high: float


class DurationGroup(Struct):
    """A group's finished jobs (their number, sums of seconds and costs, of squares and products)
    and those left (their number and the sum of their costs)."""

    done: int = 0
    seconds: float = 0.0
    done_cost: float = 0.0
    seconds_squared: float = 0.0
    cost_squared: float = 0.0
    seconds_by_cost: float = 0.0
    left: int = 0
    left_cost: float = 0.0
    costed: bool = True

    def count(self, seconds: float, cost: float) -> None:
        self.done += 1
        self.seconds += seconds
        self.done_cost += cost
        self.seconds_squared += seconds**2
        self.cost_squared += cost**2
        self.seconds_by_cost += seconds * cost
        self.costed = self.costed and cost > 0

    @property
    def variance(self) -> float:
        """The variance of a job's seconds about `mean`, from at least two finished jobs."""
        if self.costed and self.done_cost > 0:
            rate = self.seconds / self.done_cost
            rest = self.seconds_squared - 2 * rate * self.seconds_by_cost
            rest += rate**2 * self.cost_squared
        else:
            rest = self.seconds_squared - self.seconds**2 / self.done
        return max(0.0, rest / (self.done - 1))

    def mean(self, cost: float) -> float:
        """Return the expected seconds of a job of this group with that cost."""
        if self.costed and self.done_cost > 0:
            return self.seconds * cost / self.done_cost
        return self.seconds / self.done


class Estimate:
    """Follows a run's facts, in constant time each. Services do not count: they end when told.

    `earlier`: how long jobs of these names took in an earlier run of the same file, in seconds.
    """

    def __init__(self, earlier: Mapping[str, float] | None = None) -> None:
        self._of_another_run = earlier or {}
        self._begin(self._of_another_run)

    def _begin(self, earlier: Mapping[str, float]) -> None:
        self._earlier = dict(earlier)
        self._groups: dict[int, DurationGroup] = {}
        self._left: dict[str, tuple[int, float]] = {}
        self._running: dict[AttemptId, Instant] = {}
        self._queued: set[AttemptId] = set()
        self._dues: dict[str, float] = {}
        self._moments: Counter[float] = Counter()
        self._outside_hours = False
        self._busy = 0.0
        self._began: Instant | None = None

    @property
    def running(self) -> dict[AttemptId, Instant]:
        """Attempts under way and when they started, services included, oldest first."""
        return self._running

    @property
    def in_queue(self) -> int:
        """Attempts whose turn in an engine's queue has not come."""
        return len(self._queued)

    @property
    def moments(self) -> Mapping[float, int]:
        """How many jobs left do not start before each moment (seconds since 1970)."""
        return self._moments

    def seed(self, ledger: Ledger) -> None:
        """Start from a ledger's jobs and attempts; those that finished count as well."""
        for job in ledger.jobs.values():
            if job.state in ("waiting", "running") and not job.vanished:
                self._add(job)
            for attempt in job.attempts:
                if attempt.state == "succeeded" and not job.definition.service:
                    self._count(job, attempt.seconds)
            self._recall(job)
        self._outside_hours = "hours" in ledger.pauses
        attempts = ledger.open_attempts()
        self._queued = {attempt.id for attempt in attempts if attempt.in_queue and attempt.queued}
        self._running = {
            attempt.id: attempt.started or attempt.launched
            for attempt in attempts
            if not attempt.in_queue
        }
        self._began = min(self._running.values(), default=None)

    def see(self, fact: f.Fact, at: Instant, ledger: Ledger) -> None:
        match fact:
            case f.RunOpened(epoch=epoch):
                # Monotonic times of an earlier supervisor may be of an earlier boot: they compare
                # with none of this one. A resumed run has jobs of its own that finished.
                self._begin(self._of_another_run if epoch == 1 else {})
                self.seed(ledger)
            case f.JobAdded(name) | f.JobRequeued(name):
                job = ledger.jobs[name]
                self._recall(job)
                if job.state in ("waiting", "running") and not job.vanished:
                    self._add(job)
            case f.JobVanished(name) | f.JobSettled(name):
                self._drop(name)
            case f.AdmissionPaused(by="hours"):
                self._outside_hours = True
            case f.AdmissionContinued("hours"):
                self._outside_hours = False
            case f.AttemptLaunched(attempt, queued=True):
                self._queued.add(attempt)
            case f.AttemptLaunched(behind=AttemptId()):
                pass
            case f.AttemptLaunched(attempt) | f.AttemptStarted(attempt):
                self._queued.discard(attempt)
                self._began = self._began or at
                self._running[attempt] = at
            case f.AttemptEnded(attempt):
                self._end(attempt, at, ledger)

    def ahead(self, now: Instant) -> Ahead | None:
        """Return the estimate of the run's rest; None if too little is known.

        Outside the hours of a run it is unknown when it goes on.
        """
        if self._outside_hours:
            return None
        waiting = {number: (g.left, g.left_cost) for number, g in self._groups.items() if g.left}
        if not waiting or self._began is None:
            return None
        total = sum(left for left, _ in waiting.values())
        known = {n for n in waiting if self._groups[n].done >= MIN_JOBS_FINISHED}
        if sum(waiting[n][0] for n in known) < KNOWN_SHARE * total:
            return None
        work = sum(
            self._groups[n].mean(waiting[n][1] / waiting[n][0]) * waiting[n][0] for n in known
        )
        # Groups with too few finished jobs are assumed to be like the others.
        scale = total / sum(waiting[n][0] for n in known)
        elapsed, begun, longest = self._under_way(now)
        at_once = (self._busy + elapsed) / max(1e-9, now.mono - self._began.mono)
        longest = max([longest, *(due - now.utc for due in self._moments)])
        about = FOUR_OF_FIVE * math.sqrt(sum(self._doubt(n, waiting[n][0]) for n in known))
        guess, low, high = (
            max(longest, (sure * scale - begun) / max(1.0, at_once), 0.0)
            for sure in (work, work - about, work + about)
        )
        return Ahead(guess, low, high)

    def _doubt(self, group: int, left: int) -> float:
        """Return the variance of the time that the group's jobs left take, that of its mean too."""
        known = self._groups[group]
        return known.variance * left * (1 + left / known.done)

    def expected(self, name: str) -> float | None:
        """Return the seconds that this unfinished job takes by its group's mean, or None."""
        member = self._left.get(name)
        if member is None or self._groups[member[0]].done < MIN_JOBS_FINISHED:
            return None
        return self._groups[member[0]].mean(member[1])

    def _under_way(self, now: Instant) -> tuple[float, float, float]:
        """Return the running jobs' seconds so far, the expected ones of them, the longest rest."""
        elapsed = begun = longest = 0.0
        for attempt, since in self._running.items():
            if attempt.job not in self._left:
                continue
            passed = max(0.0, now.mono - since.mono)
            elapsed += passed
            expected = self.expected(attempt.job)
            if expected is not None:
                begun += min(passed, expected)
                longest = max(longest, expected - passed)
        return elapsed, begun, longest

    def _add(self, job: JobRecord) -> None:
        self._drop(job.name)
        if job.definition.service:
            return
        group = self._groups.setdefault(job.definition.group, DurationGroup())
        group.left += 1
        group.left_cost += job.definition.cost
        group.costed = group.costed and job.definition.cost > 0
        self._left[job.name] = (job.definition.group, job.definition.cost)
        if job.definition.due is not None:
            due = self._dues[job.name] = job.definition.due.utc
            self._moments[due] += 1

    def _drop(self, name: str) -> None:
        member = self._left.pop(name, None)
        if (due := self._dues.pop(name, None)) is not None:
            self._moments[due] -= 1
            if not self._moments[due]:
                del self._moments[due]
        if member is not None:
            self._groups[member[0]].left -= 1
            self._groups[member[0]].left_cost -= member[1]

    def _count(self, job: JobRecord, seconds: float) -> None:
        self._groups.setdefault(job.definition.group, DurationGroup()).count(
            seconds, job.definition.cost
        )

    def _recall(self, job: JobRecord) -> None:
        """Count an earlier run's time of this job as that of a finished job."""
        seconds = self._earlier.pop(job.name, None)
        if seconds is not None and not job.definition.service:
            self._count(job, seconds)

    def _end(self, attempt: AttemptId, at: Instant, ledger: Ledger) -> None:
        self._queued.discard(attempt)
        since = self._running.pop(attempt, None)
        job = ledger.jobs[attempt.job]
        if job.definition.service or since is None:
            return
        seconds = max(0.0, at.mono - since.mono)
        self._busy += seconds
        if ledger.attempt(attempt).state == "succeeded":
            self._count(job, seconds)
