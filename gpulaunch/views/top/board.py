"""Holds what there is to show of a run at one moment. Pure: facts in, lists of jobs out.

Follows the facts one by one, so that a run of 100,000 jobs costs no more per redraw than what
changed and what is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Failure, Instant, RunState
from gpulaunch.core.reasons import NothingStarts, RunOver, WaitReason
from gpulaunch.core.records import AttemptRecord, JobRecord
from gpulaunch.digest import words
from gpulaunch.digest.estimate import Estimate
from gpulaunch.digest.status import reason_of
from gpulaunch.text import clock
from gpulaunch.views.top.link import SampleStore, Why


class Board:
    """One run at one moment. `see` folds a fact; the other methods look.

    The caller moves `now` on; `reasons` are the live run's answers why jobs wait. `past`: the
    moment is not the present. `zone` is for times of day; None: the machine's.
    `earlier`: how long jobs took in an earlier run, in seconds by name.
    """

    def __init__(
        self, zone: tzinfo | None = None, earlier: Mapping[str, float] | None = None
    ) -> None:
        self.zone = zone
        self.earlier = dict(earlier or {})
        self.ledger = Ledger()
        self.state: RunState = "interrupted"
        self.reasons: Why = lambda _: None
        self.samples: SampleStore | None = None
        self.now = Instant(0.0, 0.0)
        self.past = False
        self.failed: dict[str, None] = {}
        """Jobs whose newest end was a failure, the oldest first."""
        self.ended: dict[str, None] = {}
        """Settled jobs, the oldest end first."""
        self.waiting: dict[str, None] = {}
        """In the order of the file."""
        self._estimate = Estimate(self.earlier)
        self._disordered = False

    def see(self, fact: f.Fact, at: Instant) -> None:
        """Fold a fact. Raises KeyError or IndexError if it fits nothing before it."""
        self.ledger.apply(fact, at)
        self._estimate.see(fact, at, self.ledger)
        match fact:
            case f.JobAdded(name) if self.ledger.jobs[name].state == "waiting":
                self.waiting.setdefault(name)
            case f.JobRequeued(name):
                self.ended.pop(name, None)
                self.failed.pop(name, None)
                self._wait(name)
            case f.JobDelayed(name):
                self._wait(name)
            case f.AttemptLaunched(attempt, queued=False, behind=None) | f.AttemptStarted(attempt):
                self.waiting.pop(attempt.job, None)
            case f.AttemptEnded(attempt, End(failure=Failure())):
                _renew(self.failed, attempt.job)
            case f.JobSettled(name, state):
                self.waiting.pop(name, None)
                _renew(self.ended, name)
                if state == "succeeded":
                    self.failed.pop(name, None)
                elif state == "failed":
                    self.failed.setdefault(name)
            case f.JobsArchived(names):
                for name in names:
                    self.ended.pop(name, None)
                    self.failed.pop(name, None)
            case f.JournalCompacted():
                self.failed, self.ended, self.waiting = {}, {}, {}
        self.now = at

    def at(self, now: Instant) -> None:
        """Set the clock, as the run's monotonic clock has it; never back behind the last fact."""
        if self.ledger.last is not None:
            self.now = Instant(max(now.mono, self.ledger.last.mono), now.utc)

    def seen(self, utc: float) -> None:
        """Set the clock to when the run was last seen alive, by the time of day."""
        self.at(self.ledger.here(Instant(0.0, utc), "not the run's"))

    # ── Looking ─────────────────────────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        return self.state == "running" and not self.past

    @property
    def began(self) -> Instant:
        """When the run was started or resumed last."""
        return self.ledger.taken or self.ledger.opened or self.now

    def queue(self) -> list[str]:
        """Return the waiting jobs, in the order of the file."""
        if self._disordered:
            self._disordered = False
            jobs = self.ledger.jobs
            self.waiting = dict.fromkeys(n for n in jobs if jobs[n].state == "waiting")
        return list(self.waiting)

    def reason(self, job: JobRecord) -> str:
        """Return why the job waits, is in doubt, failed or was skipped, in words."""
        live = None
        if job.state in ("waiting", "running"):
            live = self._live_reason(job) or self.ledger.why_queued(job)
        return reason_of(job, live)

    def _live_reason(self, job: JobRecord) -> WaitReason | None:
        if self.past:
            return None
        if self.state != "running" and not job.in_queue:
            return NothingStarts(self.ledger.reason or RunOver(self.state), again=job.began)
        return self.reasons(job.name)

    def elapsed(self, attempt: AttemptRecord) -> float:
        """Return the attempt's seconds until its end, its last sign of life, or now."""
        return self.ledger.so_far(attempt, self.now)

    def when(self, at: Instant) -> str:
        """Return a time in words: `3:20 ago` while the run lives, else the time of day."""
        if self.alive:
            return f"{clock(self.now.utc - at.utc)} ago"
        return words.local_time(at.utc, self.zone)

    def ahead(self, attempt: AttemptRecord) -> str:
        """Return how long a running job still takes, in words; empty if too little is known."""
        expected = self._estimate.expected(attempt.id.job)
        if expected is None or not (self.alive or self.past):
            return ""
        left = expected - self.elapsed(attempt)
        return f"{words.rough_range(left, left)} to go" if left > 0 else "longer than expected"

    def to_go(self) -> str:
        """Return how long the whole run still takes, in words; empty if too little is known."""
        if self.ledger.stopping is not None or self.ledger.closed or not (self.alive or self.past):
            return ""
        left = self._estimate.ahead(self.now)
        return "" if left is None else f"{words.rough_range(left.low, left.high)} to go"

    @property
    def without_cards(self) -> list[AttemptId]:
        """Attempts under way that take no card."""
        return [a for a in self._estimate.running if not self.ledger.attempt(a).gpus]

    @property
    def in_queue(self) -> int:
        """Attempts that an engine has in its queue."""
        return self._estimate.in_queue

    @property
    def not_due(self) -> str:
        """How many jobs left wait for their moment, and until when, in words; empty for none."""
        alive = self.alive or self.past
        return words.not_due(self._estimate.moments, self.now.utc, self.zone) if alive else ""

    def failure_of(self, job: JobRecord) -> AttemptRecord | None:
        """Return the newest attempt that failed; None if there is none."""
        return next((a for a in reversed(job.attempts) if a.failure is not None), None)

    def _wait(self, name: str) -> None:
        """Add a job that waits again; `queue` puts it into order when it is shown next."""
        if name not in self.waiting:
            self.waiting[name] = None
            self._disordered = True


def _renew(names: dict[str, None], name: str) -> None:
    names.pop(name, None)
    names[name] = None
