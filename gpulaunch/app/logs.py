"""Which logs of a run are meant: of which jobs, and of which attempt of each."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId
from gpulaunch.core.records import AttemptRecord, JobRecord
from gpulaunch.errors import UsageError
from gpulaunch.journal.rundir import RunDir


class LogSelection(Struct, frozen=True):
    """Which logs: of the jobs named (None: of all), and of which attempt (None: the newest)."""

    run: RunDir
    run_id: str
    names: Sequence[str] | None
    attempt: int | None
    raw: bool

    def includes(self, attempt: AttemptId) -> bool:
        named = self.names is None or attempt.job in self.names
        return named and self.attempt in (None, attempt.number)


def attempts_of(wanted: LogSelection, ledger: Ledger) -> list[AttemptRecord]:
    """Return the attempt of each job whose log is meant. Raises UsageError if none has a log."""
    jobs = ledger.jobs.values() if wanted.names is None else map(ledger.jobs.get, wanted.names)
    chosen = [_attempt(job, wanted.attempt) for job in jobs if job and job.attempts]
    have = [
        attempt
        for attempt in chosen
        if attempt and (wanted.run.log(attempt.id).exists() or is_silent(wanted, attempt))
    ]
    if not have:
        which = f"attempt {wanted.attempt} of " if wanted.attempt else ""
        jobs_ = "any job" if wanted.names is None else ", ".join(wanted.names)
        raise UsageError(f"there is no log of {which}{jobs_} in {wanted.run.path}")
    return have


def is_silent(wanted: LogSelection, attempt: AttemptRecord) -> bool:
    """Tell whether the attempt succeeded without a word: its cluster's node keeps no log then."""
    on_node = bool(attempt.node) and attempt.state == "succeeded"
    return on_node and not wanted.run.log(attempt.id).exists()


def _attempt(job: JobRecord, number: int | None) -> AttemptRecord | None:
    if number is None:
        begun = (attempt for attempt in reversed(job.attempts) if not attempt.unbegun)
        return next(begun, job.attempts[-1])
    return job.attempts[number - 1] if number <= len(job.attempts) else None
