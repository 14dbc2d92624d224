"""Finds jobs that are archived: what a run's history has of them.

A job's exact name is found in a moment; a pattern, or all of them, takes reading every file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from gpulaunch.core.facts import JobsGiven
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.errors import UsageError
from gpulaunch.journal.given import additions_in, jobs_of
from gpulaunch.journal.history import facts_in, ledger_of, names_in, stem_of
from gpulaunch.journal.rundir import RunDir


def recall(run: RunDir, ledger: Ledger, patterns: Sequence[str]) -> list[str]:
    """Add the archived jobs of these names or patterns to the ledger, and return their names.

    For views alone: their states are counted already. A name that was used again means its newest
    job. Raises UsageError where the history cannot be read.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        stem = stem_of(run, ledger.history, pattern)
        stems = ledger.history if stem is None else (stem,)
        for each in stems:
            names = [pattern] if stem else names_in(run, each)
            fits = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
            if fits := [name for name in fits if name not in ledger.jobs]:
                _take(ledger, ledger_of(run, each, pattern if stem else None), fits)
                found.update(dict.fromkeys(fits))
    return list(found)


def _take(ledger: Ledger, older: Ledger, names: Sequence[str]) -> None:
    ledger.jobs.update({name: older.jobs[name] for name in names})
    ledger.gpus = {**older.gpus, **ledger.gpus}


def older_ledgers(run: RunDir, ledger: Ledger) -> Iterator[Ledger]:
    """Yield what each file of the history says of its jobs, the oldest first."""
    for stem in ledger.history:
        older = ledger_of(run, stem)
        for name in older.jobs.keys() & ledger.jobs.keys():
            del older.jobs[name]  # its name was given again
        yield older


def added_jobs(run: RunDir, ledger: Ledger, names: Sequence[str]) -> dict[str, Job]:
    """Return the definitions of these jobs that were added, archived ones too, as far as known."""
    found = {job.name: job for one in additions_in(run.events) for job in one.jobs}
    for name in names:
        stem = stem_of(run, ledger.history, name) if name not in found else None
        for fact, _ in facts_in(run, stem, name) if stem else ():
            if isinstance(fact, JobsGiven):
                found.update((job.name, job) for job in jobs_of(fact.jobs) if job.name == name)
    return found


def refuse_archived(run: RunDir, ledger: Ledger, names: Sequence[str]) -> None:
    """Raise UsageError where one of these is archived: it can be looked at, and nothing else."""
    for name in names:
        if name not in ledger.jobs and stem_of(run, ledger.history, name) is not None:
            raise UsageError(
                f"{name} is archived: it ended long ago, and can only be looked at (gpulaunch"
                f" status {name}, logs {name}); add it anew to run it again"
            )
