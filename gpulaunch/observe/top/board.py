"""Holds what there is to show of a run at one moment. Pure: facts in, lists of jobs out.

Follows the facts one by one, so that a run of 100,000 jobs costs no more per redraw than what
changed and what is seen.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import Protocol, TypeAlias

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.text import clock
from gpulaunch.core import facts as f
from gpulaunch.core.events import Request
from gpulaunch.core.facts import Fact, JobAdded
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, End, Failure, Instant, RunState
from gpulaunch.core.reasons import NothingStarts, RunOver, WaitReason
from gpulaunch.observe.metrics.model import AttemptUse, CardSample
from gpulaunch.observe.present import words
from gpulaunch.observe.present.status import reason_of
from gpulaunch.observe.present.usage import Estimate

# ── The outside ───────────────────────────────────────────────────────────────────────────────────

Dated: TypeAlias = tuple[Fact, Instant]
Why: TypeAlias = Callable[[str], WaitReason | None]
"""Why the job of that name waits; None where the run did not say."""


class SampleStore(Protocol):
    """What cards and attempts used, where it is measured; times in seconds since 1970 (UTC)."""

    def cards(self, uuid: str, since: float = 0.0, most: int = 240) -> list[CardSample]:
        """Return the card's samples in time order."""

    def use(self, attempt: AttemptId) -> AttemptUse | None: ...

    def last_seen(self) -> float | None:
        """Return when the run was last seen alive; None if never."""

    def close(self) -> None: ...


class RunLink(Protocol):
    """One run; the command line implements it, tests do so in memory.

    All but `ask`, `add` and `reasons` answer at once; those may take seconds.
    """

    @property
    def root(self) -> str:
        """The run's directory, as people are to type it."""

    def read(self) -> list[Dated]:
        """Return the next facts, a bounded piece; empty at the end so far.

        Raises GpulaunchError where the journal is damaged.
        """

    def share(self) -> float:
        """Return how much of the journal was read: 0 to 1."""

    def past(self) -> Iterator[Dated]:
        """Yield every fact from the first on, read again. Raises as `read` does."""

    def state(self, ledger: Ledger) -> RunState:
        """Return the run's state now; the journal does not tell if its supervisor lives."""

    def gone(self) -> bool:
        """Tell whether the run's directory no longer exists."""

    def now(self, ledger: Ledger) -> Instant:
        """Return the time, as the run's own clocks have it."""

    def samples(self) -> SampleStore | None:
        """Return the samples; None if nothing is measured, as on pretend cards."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def earlier(self) -> Mapping[str, float]:
        """Return how long jobs took in an earlier run of the file, in seconds by name."""

    def reasons(self) -> Why:
        """Ask the live run why jobs wait. Raises GpulaunchError if it does not answer."""

    def ask(self, request: Request) -> None:
        """Send a request to the live run. Raises GpulaunchError if the run refuses it."""

    def add(self, command: str) -> str:
        """Add a shell command to the list; return its job's name. Raises as `ask` does."""


# ── The board ─────────────────────────────────────────────────────────────────────────────────────


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


# ── The run's facts, as they come and played back ─────────────────────────────────────────────────

LONG_JOURNAL = 1000
"""Facts in one piece that show that a long journal is being read."""


class Intake:
    """Reads facts into a board, up to the first damage.

    `trouble`: why it stopped, in words; `complete`: it has read all facts so far.
    """

    def __init__(self, link: RunLink, board: Board) -> None:
        self._link = link
        self._board = board
        self.trouble = ""
        self.complete = False

    @property
    def refused(self) -> str:
        """Why nothing can be shown at all; else empty."""
        return self.trouble if self._board.ledger.last is None else ""

    def take(self) -> bool:
        """Read a piece; return True if anything came, and there may be more at once."""
        if self.trouble and self.complete:
            return False
        try:
            facts = self._link.read()
            if len(facts) >= LONG_JOURNAL:  # while a long journal is read, fewer redraws
                facts += self._link.read()
            for fact, at in facts:
                self._board.see(fact, at)
        except (GpulaunchError, OSError, KeyError, IndexError) as error:
            # Facts before the damage are shown; those after it are not reliable.
            self.trouble, facts = words_of(error), []
        self.complete = len(facts) < LONG_JOURNAL
        return bool(facts)


def words_of(error: Exception) -> str:
    """Return an error in words; a KeyError or IndexError is of a fact that fits nothing before."""
    if isinstance(error, GpulaunchError | OSError):
        return str(error)
    return f"the journal is damaged: it speaks of {error}, which nothing before it knows"


PART = 20
"""A leap goes over 1/PART of the run's time."""


class Playback:
    """A run's past at moment `step` of `steps` (from 1), at first the last one."""

    def __init__(
        self,
        facts: Iterable[Dated],
        samples: SampleStore | None = None,
        zone: tzinfo | None = None,
        earlier: Mapping[str, float] | None = None,
    ) -> None:
        self._facts = list(facts)
        self._samples, self._zone, self._earlier = samples, zone, earlier
        self._ends = _moments(self._facts)
        self._times = [self._facts[end - 1][1].utc for end in self._ends]
        self._seen = 0
        self.step = len(self._ends)
        self.board = self._fresh()
        self._fold()

    @property
    def steps(self) -> int:
        return len(self._ends)

    def go(self, by: int) -> Board:
        """Step so many moments on, or back (negative), to either end at most; return the board."""
        return self._to(self.step + by)

    def leap(self, parts: int) -> Board:
        """Step so many twentieths of the run's time, at least one moment; return the board."""
        if not self._times:
            return self.board
        length = (self._times[-1] - self._times[0]) / PART
        wanted = bisect_right(self._times, self._times[self.step - 1] + parts * length)
        far = max(wanted, self.step + 1) if parts > 0 else min(wanted, self.step - 1)
        return self._to(far)

    def _to(self, step: int) -> Board:
        self.step = min(max(step, min(1, self.steps)), self.steps)
        if self._ends and self._ends[self.step - 1] < self._seen:
            self.board, self._seen = self._fresh(), 0
        self._fold()
        return self.board

    def _fold(self) -> None:
        end = self._ends[self.step - 1] if self._ends else 0
        for fact, at in self._facts[self._seen : end]:
            self.board.see(fact, at)
        self._seen = end
        ledger = self.board.ledger
        self.board.state = ledger.state if ledger.closed else "running"

    def _fresh(self) -> Board:
        board = Board(self._zone, self._earlier)
        board.past, board.samples = True, self._samples
        return board


def _moments(facts: list[Dated]) -> list[int]:
    """Return where each moment ends. Reading the job file is one moment, however long."""
    ends: list[int] = []
    before: Instant | None = None
    planning = False
    for number, (fact, at) in enumerate(facts):
        adding = isinstance(fact, JobAdded)
        if before is not None and at != before and not (adding and planning):
            ends.append(number)
        before, planning = at, adding
    return [*ends, len(facts)] if facts else []
