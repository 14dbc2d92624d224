"""Adds the facts that a damaged journal implies: facts that are missing, and must have been there.

A fact may presuppose a lost one: an attempt ends whose launch is missing. That launch is added, and
nothing that does not follow: an attempt whose end is nowhere recorded is `Lost`, and its job waits.

INVARIANT: a job that a fact calls settled, or whose attempt's success is on record, is settled.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Because
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Cancelled, End, Exited, Failure, Instant, Lost, Outcome
from gpulaunch.core.records import JobRecord


def settlement(job: JobRecord) -> f.JobSettled | None:
    """Return the missing fact that settles a job whose last attempt has ended; None for none.

    Its supervisor died between recording the two. One that succeeded or was cancelled is not run
    again.
    """
    match job.attempts[-1].state:
        case "succeeded":
            return f.JobSettled(job.name, "succeeded")
        case "cancelled":
            return f.JobSettled(job.name, "cancelled", Because("cancelled"))
    return None


MOST_ATTEMPTS_ADDED = 100_000
"""Missing attempts that are added at most; facts that imply more are left out."""


class Mender:
    """Applies facts to `ledger`, from the first gap in a journal on, and adds what is missing."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._added = 0

    def fit(self, fact: f.Fact, at: Instant, after_gap: bool = False) -> list[f.Fact]:
        """Apply this fact and the missing ones that it implies; return those that were applied.

        None where it cannot be applied. `after_gap`: facts before this one are missing.
        """
        fitting: list[f.Fact] = []
        if after_gap or isinstance(fact, f.RunOpened):
            fitting += self._apply(self._followed(_job_of(fact)), at)
        fitting += self._apply(self._implied(fact), at)
        return fitting + self._apply(iter([fact]), at)

    def end(self, at: Instant) -> list[f.Fact]:
        """Apply and return the facts that must have followed the last one."""
        return self._apply(self._followed(None), at)

    def _apply(self, facts: Iterator[f.Fact], at: Instant) -> list[f.Fact]:
        applied = []
        for fact in facts:
            try:
                self.ledger.apply(fact, at)
            except (KeyError, IndexError):
                continue  # it names a card or a worker that no recorded fact names
            applied.append(fact)
        return applied

    def _followed(self, but: str | None) -> Iterator[f.Fact]:
        """Facts for jobs whose attempt's end is on record, and whose own end or delay is not."""
        for job in list(self.ledger.jobs.values()):
            if job.name != but:
                yield from self._settled(job)

    def _settled(self, job: JobRecord) -> Iterator[f.Fact]:
        if job.state == "running" and not job.attempts[-1].is_open:
            because = Because("unrecorded")
            yield settlement(job) or f.JobDelayed(job.name, because, unrecorded=True)

    def _implied(self, fact: f.Fact) -> Iterator[f.Fact]:
        if self.ledger.closed is not None and isinstance(fact, _OF_ATTEMPTS):
            yield self._taken_up()
        match fact:
            case f.JobVanished(name) | f.JobSet(name):
                yield from self._known(name)
            case f.JobRequeued(name) | f.JobDelayed(name):
                yield from self._known(name)
                yield from self._ended(name)
            case f.JobSettled(name, state):
                yield from self._known(name)
                yield from self._ended(name, _OUTCOMES.get(state))
            case f.AttemptLaunched(attempt):
                yield from self._begun(AttemptId(attempt.job, attempt.number - 1))
                yield from self._ended(attempt.job)
            case f.AttemptQueued(attempt) | f.AttemptStarted(attempt):
                yield from self._begun(attempt)
            case f.ServiceReady(attempt) | f.AttemptEnded(attempt):
                yield from self._begun(attempt)
            case f.GpuReported(_, _, attempts):
                for attempt in attempts:
                    yield from self._begun(attempt)
            case f.RunClosed(state):
                yield from self._closed(state == "succeeded")

    def _taken_up(self) -> f.RunOpened:
        """Return the missing RunOpened of a supervisor that went on with a closed run."""
        opening = self.ledger.opening
        gpus = tuple(record.gpu for record in self.ledger.gpus.values())
        return replace(opening, epoch=opening.epoch + 1, gpus=gpus, limit=None)

    def _known(self, name: str) -> Iterator[f.Fact]:
        if name not in self.ledger.jobs:
            yield f.JobAdded(name, 0, 0, "")

    def _begun(self, attempt: AttemptId) -> Iterator[f.Fact]:
        """Yield the missing launches of a job's attempts up to this one, and the ends before it."""
        yield from self._known(attempt.job)
        job = self.ledger.jobs[attempt.job]
        missing = max(0, attempt.number - len(job.attempts))
        if self._added + missing > MOST_ATTEMPTS_ADDED:
            return
        self._added += missing
        for number in range(len(job.attempts) + 1, attempt.number + 1):
            yield from self._ended(attempt.job)
            yield f.AttemptLaunched(AttemptId(attempt.job, number), (), queued=self.ledger.queueing)

    def _ended(self, name: str, outcome: Outcome | None = None) -> Iterator[f.Fact]:
        """Yield the end of a job's open attempt. `outcome`: None where nothing tells it."""
        job = self.ledger.jobs[name]
        if not job.attempts or not job.attempts[-1].is_open:
            return
        last = job.attempts[-1].id
        if outcome is not None:
            yield f.AttemptEnded(last, End(outcome))
        else:
            end = End(Lost(Because("unrecorded")), Failure("lost"))
            yield f.AttemptEnded(last, end, unrecorded=True)

    def _closed(self, succeeded: bool) -> Iterator[f.Fact]:
        """Yield the missing ends of attempts: a closed run has none under way, but in a queue."""
        outcome = Exited(0) if succeeded else None
        for job in list(self.ledger.jobs.values()):
            if job.state == "running" and not job.goes_on:
                yield from self._ended(job.name, outcome)
                yield from self._settled(job)


_OUTCOMES: dict[str, Outcome] = {"succeeded": Exited(0), "cancelled": Cancelled()}
_OF_ATTEMPTS = (f.AttemptLaunched, f.AttemptQueued, f.AttemptStarted, f.AttemptEnded)


def _job_of(fact: f.Fact) -> str | None:
    """Return the job that the fact is about; None where it is about none."""
    match fact:
        case f.JobDelayed(name) | f.JobSettled(name) | f.JobRequeued(name):
            return name
        case f.AttemptLaunched(attempt) | f.AttemptEnded(attempt):
            return attempt.job
    return None
