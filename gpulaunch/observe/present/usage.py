"""What a run used of its cards and of the machine, and how long it still takes. Pure.

From attempts' intervals, and as measured. What was not measured is left out of the words, instead
of a zero.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gpulaunch.base.text import clock, energy, listing, several, shell_word, size
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.observe.metrics.model import AttemptUse, Measured
from gpulaunch.observe.present import words


class CardUse(Struct, frozen=True):
    """A card's use: `seconds` with an attempt on it, and their share of the run (0 to 1)."""

    uuid: str
    seconds: float
    share: float


def card_uses(ledger: Ledger, since: Instant, until: Instant) -> tuple[CardUse, ...]:
    """Return the use of each card, in the run's order. Jobs that share a card count once."""
    spans = _spans(ledger, ledger.clock(since), ledger.clock(until))
    length = until.mono - since.mono
    uses = []
    for uuid in ledger.gpus:
        seconds = covered(spans.get(uuid, ()))
        uses.append(CardUse(uuid, seconds, min(1.0, seconds / length) if length > 0 else 0.0))
    return tuple(uses)


def card_seconds(ledger: Ledger, until: Instant) -> float:
    """Return the used seconds of all cards, also of those that a later start does not have."""
    return sum(covered(spans) for spans in _spans(ledger, 0.0, ledger.clock(until)).values())


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _spans(ledger: Ledger, since: float, until: float) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for job in ledger.jobs.values():
        for attempt in job.attempts:
            start = until if attempt.unbegun else max(since, attempt.begins - _ahead_of(attempt))
            end = until if attempt.ends is None else min(until, attempt.ends)
            if end > start:
                for uuid in attempt.gpus:
                    spans[uuid].append((start, end))
    return spans


def _ahead_of(attempt: AttemptRecord) -> float:
    """Return the seconds that it had its cards before it started."""
    if attempt.ahead or attempt.started is None:
        return 0.0
    return max(0.0, attempt.started.mono - attempt.launched.mono)


LEAST_TOLD = 5.0
"""Seconds in which the driver must have named processes before a job was never on its card."""
LEAST_SHARE = 0.75
"""The share of an attempt's time that these seconds must be, at least."""


def touched(attempt: AttemptId, measured: Measured) -> bool | None:
    """Return whether a process of the attempt was ever seen on its cards; None: it is not known.

    False only where a driver that names processes was asked nearly all the time: it has named some
    of this run, or the cards did nothing.
    """
    use = measured.uses.get(attempt)
    if use is None or not use.gpu_seconds:
        return None
    if use.peak_gpu_memory:
        return True
    if attempt in measured.pins:  # a process was seen, somewhere
        return True if measured.pins[attempt][0] == "verified" else None
    if use.peak_gpu_memory is None or use.told < max(LEAST_TOLD, LEAST_SHARE * use.seconds):
        return None
    return False if use.peak_gpu_utilization == 0 or measured.names_processes else None


def untouched(ledger: Ledger, measured: Measured) -> list[str]:
    """Return the jobs that succeeded though their last attempt was never seen on its card."""
    return [
        job.name
        for job in ledger.jobs.values()
        if job.state == "succeeded"
        and job.attempts
        and touched(job.attempts[-1].id, measured) is False
    ]


def never_touched(names: Sequence[str]) -> str:
    """Return a line on such jobs: `2 jobs succeeded and were never seen on their card: a, b`."""
    who, was = several(len(names), "job"), "was" if len(names) == 1 else "were"
    shown = listing(map(words.visible, names))
    return f"{who} succeeded and {was} never seen on a card ({shown}): did they run on the CPU?"


def left_behind(ledger: Ledger) -> list[str]:
    """Return the jobs that succeeded though processes of their last attempt had to be killed."""
    return [
        job.name
        for job in ledger.jobs.values()
        if job.state == "succeeded" and job.attempts and job.attempts[-1].left
    ]


def processes_left(names: Sequence[str]) -> str:
    """Return a line on such jobs: `1 job succeeded and left processes behind ... (a): ...`."""
    who, shown = several(len(names), "job"), listing(map(words.visible, names))
    return (
        f"{who} succeeded and left processes behind, which gpulaunch killed ({shown}):"
        " did work go on in the background?"
    )


def doubtful(ledger: Ledger) -> dict[str, str]:
    """Return the notes on jobs that succeeded, by name: `exited 0, though its log says: ...`."""
    jobs = ledger.jobs
    return {
        name: text
        for name, text in ledger.noted.items()
        if name in jobs and jobs[name].state == "succeeded"
    }


def noted(notes: Mapping[str, str]) -> str:
    """Return a line on such jobs: `2 jobs succeeded, with a note (a: exited 0, ...; b)`."""
    who, (first, *rest) = several(len(notes), "job"), notes
    others = f"; also {listing(map(words.visible, rest))}" if rest else ""
    return f"{who} succeeded, with a note: {words.visible(f'{first} {notes[first]}')}{others}"


def outdated(ledger: Ledger) -> list[str]:
    """Return the jobs that succeeded, and of which the job file says something else by now."""
    return [job.name for job in ledger.jobs.values() if job.changed and not job.vanished]


def stands_for_other(names: Sequence[str], directory: str = "") -> str:
    """Return a line on such jobs: `1 job succeeded under another definition ... (a): ...`."""
    who, them = several(len(names), "job"), "it" if len(names) == 1 else "them"
    shown = listing(map(words.visible, names))
    where = f" {words.visible(shell_word(directory))}" if directory else ""
    return (
        f"{who} succeeded under another definition than the job file has now ({shown}):"
        f" gpulaunch resume --changed{where} runs {them} again"
    )


def energy_of(attempts: Iterable[AttemptRecord], measured: Measured) -> float | None:
    """Return the joules of these attempts, as far as they were measured; None: none was."""
    uses = (measured.uses.get(attempt.id) for attempt in attempts)
    known = [use.energy for use in uses if use is not None and use.energy is not None]
    return sum(known) if known else None


def use_of_one(use: AttemptUse | None) -> str:
    """`GPU memory at most 71.2 GiB, 63 % utilised, 12.1 GiB resident, 0:31 of CPU time, 94 Wh`."""
    if use is None:
        return ""
    parts = []
    # The attempt ended before the sampler saw it on its card: the card's figures are not its own.
    missed = use.peak_gpu_memory == 0
    if use.peak_gpu_memory:
        parts.append(f"GPU memory at most {size(use.peak_gpu_memory)}")
    elif use.peak_card_memory is not None and not missed:
        parts.append(f"memory of its cards, whoever's, at most {size(use.peak_card_memory)}")
    if use.mean_gpu_utilization is not None and not missed:
        parts.append(f"{use.mean_gpu_utilization:.0f} % utilised")
    if use.peak_resident is not None:
        parts.append(f"{size(use.peak_resident)} resident")
    if use.cpu_seconds is not None:
        parts.append(f"{clock(use.cpu_seconds)} of CPU time")
    if use.energy is not None:
        parts.append(energy(use.energy))
    return ", ".join(parts)


def use_of_all(measured: Measured) -> str:
    """Return the whole run's use: peaks with their jobs, and means over the cards' leased time.

    Peaks are of one attempt: the sum of attempts that ran at once is not known.
    """
    uses = list(measured.uses.values())
    parts = []
    memory = max((u for u in uses if u.peak_gpu_memory), key=_gpu_memory, default=None)
    if memory is not None:
        most = f"{size(_gpu_memory(memory))} ({words.visible(memory.attempt.job)})"
        parts.append(f"a job's GPU memory at most {most}")
    busy = [
        (u.mean_gpu_utilization, u.gpu_seconds)
        for u in uses
        if u.mean_gpu_utilization is not None and u.gpu_seconds
    ]
    if busy:
        share = sum(mean * seconds for mean, seconds in busy) / sum(s for _, s in busy)
        parts.append(f"the jobs' cards {share:.0f} % utilised")
    resident = max((u for u in uses if u.peak_resident), key=_resident, default=None)
    if resident is not None:
        most = f"{size(_resident(resident))} ({words.visible(resident.attempt.job)})"
        parts.append(f"resident memory at most {most}")
    cpu = [u.cpu_seconds for u in uses if u.cpu_seconds is not None]
    if cpu:
        parts.append(f"{clock(sum(cpu))} of CPU time")
    if measured.energy is not None:
        parts.append(energy(measured.energy))
    return ", ".join(parts)


def _gpu_memory(use: AttemptUse) -> int:
    return use.peak_gpu_memory or 0


def _resident(use: AttemptUse) -> int:
    return use.peak_resident or 0


# ── The time to go ────────────────────────────────────────────────────────────────────────────────

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
    """How long a run still takes, from how long its finished jobs took.

    Per group of jobs (one entry of the job file): the mean time of those that succeeded, by cost
    where all have one, in this run and in an earlier one of the same file; never from fewer than
    three. The rest is assumed to run as many jobs at once as so far. The range is right four times
    in five, if jobs to come are like those that finished: it follows from how much those differed,
    and from how few they were.

    Follows a run's facts, in constant time each. Services do not count: they end when told.
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
