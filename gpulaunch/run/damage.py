"""Reads a run's history from its journal, and warns once of what is missing there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from gpulaunch import __version__
from gpulaunch.core.facts import AttemptLaunched, Fact, JobAdded
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, RunState
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.journal.ends import Ends, attempts_in
from gpulaunch.journal.find import typed
from gpulaunch.journal.read import Damage, DamagedJournalError, Fault, Foreign, replay
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.read import is_damaged
from gpulaunch.run.options import Observer

MAX_ATTEMPT_NUMBER = 100_000
"""The highest number of an attempt that the name of a file can tell of."""
MAX_FAULTS_TOLD = 3
"""Faults of one journal that are shown one by one."""


def remembered(run: RunDir, state: RunState, observer: Observer) -> Ledger:
    """Return the run's history, for showing it. Raises as `journal.read.replay` does."""
    faults: list[Fault] = []
    ledger = replay(run.events, faults)
    tell(run, faults, state, observer)
    tell_of_metrics(run, state, observer)
    return ledger


class Remembered(Struct, frozen=True):
    """A run's history, for resuming it.

    `found`: facts about attempts of which only files are left. They are applied to `ledger`, and
    are to be recorded. `endless`: jobs whose end, maybe a success, may be among the lost lines.
    """

    ledger: Ledger
    found: Sequence[Fact] = ()
    endless: frozenset[str] = frozenset()


def remembered_to_go_on(run: RunDir, observer: Observer) -> Remembered:
    """Return the run's history, for resuming it.

    Raises DamagedJournalError where another version of gpulaunch wrote what this one cannot know.
    """
    faults: list[Fault] = []
    ledger = replay(run.events, faults)
    for fault in faults:
        if isinstance(fault, Foreign):
            raise DamagedJournalError(f"{_where(run)}: {_sentence(fault)}")
    tell(run, faults, ledger.state, observer)
    if not any(fault.lost for fault in faults) or ledger.last is None:
        return Remembered(ledger)
    found = list(_attempts_found(run, ledger, ledger.last))
    return Remembered(ledger, found, frozenset(_endless(run, ledger)))


def tell_of_metrics(run: RunDir, state: RunState, observer: Observer) -> None:
    """Warn where the samples of cards and jobs cannot be read: all else is shown without them.

    Those of a live run may be in the making.
    """
    if state != "running" and is_damaged(run.metrics):
        what = "cannot be read: what cards and jobs used is not shown"
        observer.note(f"{typed(run.metrics)} {what}", urgent=True)


def tell(run: RunDir, faults: Sequence[Fault], state: RunState, observer: Observer) -> None:
    """Warn of what the history lacks, except a live run's last line, which may be half written."""
    told = [fault for fault in faults if not (_torn(fault) and state == "running")]
    lines = [f"{_where(run)}: {_sentence(fault)}" for fault in told[:MAX_FAULTS_TOLD]]
    if len(told) > MAX_FAULTS_TOLD:
        lines.append(f"{_where(run)}: and {len(told) - MAX_FAULTS_TOLD:,} more such places")
    if any(not _torn(fault) for fault in told):
        lines.append(
            "all else is shown as it was recorded; resume runs again what has no recorded end"
        )
    for line in lines:
        observer.note(line, urgent=True)


def _torn(fault: Fault) -> bool:
    return isinstance(fault, Damage) and fault.torn


def _where(run: RunDir) -> str:
    return typed(run.events)


def _sentence(fault: Fault) -> str:
    if isinstance(fault, Foreign):
        return (
            f"line {fault.line:,} was written by gpulaunch {fault.version} and holds {fault.what},"
            f" which this gpulaunch {__version__} does not know, and leaves out: use that version,"
            " or a newer one"
        )
    if not fault.lost:
        return f"{fault.why} (byte {fault.byte:,}): it is passed over"
    what = f"line {fault.first:,}"
    if fault.last > fault.first:
        what = f"lines {fault.first:,} to {fault.last:,}"
    return f"{what} (byte {fault.byte:,}) cannot be read: {fault.why}"


# ── Attempts that are known only by their files, or not at all ──────────────────────────────────


def _attempts_found(run: RunDir, ledger: Ledger, at: Instant) -> Iterator[Fact]:
    """Apply and yield the launch of each attempt that left a log, or a keeper's record, alone.

    Such an attempt is then treated as any without an end: it is ended if it still lives, and its
    number, and so its log, is not given out again.
    """
    for attempt in sorted(_attempts(run)):
        facts: list[Fact] = []
        job = ledger.jobs.get(attempt.job)
        if job is None:
            facts.append(JobAdded(attempt.job, 0, 0, ""))
        elif job.state == "succeeded":
            continue
        numbers = range(len(job.attempts) + 1 if job else 1, attempt.number + 1)
        queued = ledger.queueing
        facts += (AttemptLaunched(AttemptId(attempt.job, n), (), queued=queued) for n in numbers)
        for fact in facts:
            ledger.apply(fact, at)
            yield fact


def _endless(run: RunDir, ledger: Ledger) -> Iterator[str]:
    ends = Ends(run.ends)
    for job in ledger.jobs.values():
        if job.attempts and job.state in ("waiting", "running") and not job.goes_on:
            last = job.attempts[-1]
            if last.is_open and ends.of(str(last.id)) is None:
                yield job.name


def _attempts(run: RunDir) -> Iterator[AttemptId]:
    named = attempts_in(run.ends)
    for directory, suffix in ((run.logs, ".log"), (SlurmDir(run.path).tickets, ".json")):
        with suppress(OSError):
            names = os.listdir(directory)
            named += [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    for name in named:
        job, _, number = name.rpartition(".")
        if job and number.isdecimal() and 0 < int(number) <= MAX_ATTEMPT_NUMBER:
            yield AttemptId(job, int(number))
