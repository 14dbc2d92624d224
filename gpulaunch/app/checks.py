"""Checks before anything starts: scripts that do not suit their cards, notifications, the cards.

Notes what it finds, or refuses; starts nothing and leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpulaunch.app.contained import uncontainable
from gpulaunch.app.observer import Observer
from gpulaunch.app.options import RunOptions
from gpulaunch.app.telling import mistake_in, targets_of
from gpulaunch.config.files import current
from gpulaunch.core.expected import expect, expect_memory
from gpulaunch.core.ledger import LOCAL
from gpulaunch.core.model import Job
from gpulaunch.engines import setup_of, strict
from gpulaunch.engines.pool import CardPool, SelectionError, require
from gpulaunch.errors import JobFileError, Mistake
from gpulaunch.jobfile import Look, Plan, scheduler_support
from gpulaunch.journal.earlier import RUNS, durations_of
from gpulaunch.journal.finding import runs_of, working_directory
from gpulaunch.notify.preflight import Looking

if TYPE_CHECKING:
    from gpulaunch.diagnose.lint import Finding

NEVER_WARNED = "the job has no timeout to be warned of: give it timeout:, or preemptible: true"
WARNINGS = 20
"""Warnings of scripts that `run` shows; `check` shows all."""


def foreseen(plan: Plan, job_file: Path | None) -> tuple[Plan, Mapping[str, float]]:
    """Return the plan with what its jobs took in earlier runs of the file, and seconds by name."""
    digests = {job.name: job.digest for job in plan.jobs}
    runs = list(islice(runs_of(job_file, working_directory()), RUNS)) if job_file else []
    earlier = durations_of(runs, digests)
    jobs = expect(plan.jobs, earlier)
    if any(job.demand.kind is not None for job in jobs):
        from gpulaunch.metrics.read import peaks_of

        peaks = peaks_of(run.metrics for run in runs)
        jobs = expect_memory(jobs, {name: peaks.get(name, 0) for name in earlier})
    return replace(plan, jobs=jobs), earlier


def warn_of(plan: Plan, observer: Observer, most: int = WARNINGS) -> list[Finding]:
    """Warn of what in jobs and their scripts does not suit their cards; return all findings."""
    from gpulaunch.diagnose.lint import report

    if observer.quiet:
        return []
    found = report(plan)
    _warn_of(found.findings, observer, most)
    if found.note:
        observer.note(found.note)
    return list(found.findings)


def warn_of_uuids(
    plan: Plan,
    pool: CardPool,
    known: Sequence[Finding],
    observer: Observer,
    most: int = WARNINGS,
) -> list[Finding]:
    """Warn of what does not read UUIDs, where the pool's masks name them; return all findings.

    `known`: findings that were warned of before the pool was known.
    """
    from gpulaunch.diagnose.lint import report

    if observer.quiet or not pool.named_by_uuid:
        return list(known)
    fresh = [
        finding
        for finding in report(plan, by_uuid=pool.named_by_uuid).findings
        if finding not in known
    ]
    _warn_of(fresh, observer, most)
    return [*known, *fresh]


def _warn_of(found: Sequence[Finding], observer: Observer, most: int) -> None:
    for finding in found[:most]:
        observer.warn(str(finding))
    if len(found) > most:
        more = len(found) - most
        observer.note(f"and {more:,} more warnings: gpulaunch check shows them all")


def looking_for(engine: str | None) -> Look:
    """Return the check that adds missing programs, scripts, functions to a file's mistakes."""
    from gpulaunch.diagnose.lint.absent import looking

    return looking(os.environ, cluster=engine not in (None, LOCAL))


def refuse_absent(plan: Plan, jobs: Sequence[Job], options: RunOptions) -> None:
    """Raise JobFileError if programs of these jobs of a resumed run are missing."""
    mistakes = plan.no_mistakes()
    first = [job for job in jobs if not (job.needs or job.after)]
    looking_for(options.engine)(mistakes, first)
    mistakes.raise_if_any()


def refuse_uncontainable(plan: Plan, jobs: Sequence[Job], options: RunOptions) -> None:
    """Raise JobFileError if a container of these jobs cannot be had here."""
    if wrong := uncontainable(plan, jobs, options.engine not in (None, LOCAL)):
        raise JobFileError(wrong)


def all_told(*steps: Callable[[], Any]) -> list[Any]:
    """Call each step and return the results. Raises JobFileError with the mistakes of all."""
    made: list[Any] = []
    wrong: list[Mistake] = []
    for step in steps:
        try:
            made.append(step())
        except JobFileError as error:
            wrong += error.found
    if wrong:
        raise JobFileError(wrong)
    return made


def looking_at(plan: Plan) -> Looking:
    """Start to check the plan's notifications; `warn_of_telling` takes the result."""
    return Looking(targets_of(plan), os.environ, plan.base, kept=bool(plan.notify))


def warn_of_telling(plan: Plan, looking: Looking, observer: Observer) -> None:
    """Warn of what would keep notifications from arriving. Raises JobFileError for wrong addresses.

    Shows no line of the file: an address may be on it.
    """
    concerns = [
        (one.wrong, mistake_in(plan, one.target, one.key, one.text)) for one in looking.concerns()
    ]
    if mistakes := [mistake for wrong, mistake in concerns if wrong]:
        raise JobFileError(mistakes)
    for _, concern in concerns:
        observer.warn(concern.text)


def pool_for(
    plan: Plan, jobs: Sequence[Job], options: RunOptions, run_id: str, observer: Observer
) -> CardPool:
    """Return the pool of cards. Raises an error if one of these jobs could not run on them."""
    pool = _asked_for(plan, options, run_id)
    if not (pool.queueing or pool.size):
        require(pool, max((job.demand.gpus for job in jobs), default=0))
    if mistakes := misfits(plan, jobs, pool):
        raise JobFileError(mistakes)
    for note in _notes(jobs, pool):
        observer.note(note)
    return pool


def misfits(plan: Plan, jobs: Sequence[Job], pool: CardPool) -> list[Mistake]:
    """Return a mistake of the file for each of `jobs` that can never run on the pool's cards."""
    if pool.queueing:
        return scheduler_support.unfit(plan, jobs, pool.limit)
    asked = replace(plan, jobs=tuple(jobs))
    if found := asked.unplaceable(pool.gpus, pool.size, pool.memory, pool.capped):
        return found
    if found := _unwarned(plan, jobs):
        return found
    wanting = [job for job in jobs if strict.hides(job)]
    if wanting and (why := strict.refusal(pool.gpus)):
        return [plan.mistake(("jobs", wanting[0].group, "isolation"), why)]
    return _without_mps(plan, jobs, pool)


def _without_mps(plan: Plan, jobs: Sequence[Job], pool: CardPool) -> list[Mistake]:
    """Return a mistake if jobs cannot share the pool's cards through MPS."""
    wanting = [job for job in jobs if job.demand.mps]
    if not wanting or pool.simulated:
        return []
    from gpulaunch.engines.local.mps import system as mps

    why = mps.why_not(pool.gpus, os.environ)
    return [plan.mistake(("jobs", wanting[0].group, "mps"), why)] if why else []


def _unwarned(plan: Plan, jobs: Sequence[Job]) -> list[Mistake]:
    """Return a mistake for each warning that nothing here ever gives."""
    mute = (job for job in jobs if job.warn and job.timeout is None and not job.demand.preemptible)
    return plan.mistakes(
        (("jobs", job.group, "warn"), f"{NEVER_WARNED} (job {job.name})") for job in mute
    )


def _notes(jobs: Sequence[Job], pool: CardPool) -> Iterator[str]:
    """Yield what a person should know of these jobs on these cards."""
    yield from short_ladders(jobs)
    if pool.queueing:
        yield from scheduler_support.notes(jobs)
        config = current()
        source = config.sources.get("slurm.extra", "")
        if line := scheduler_support.outranked(jobs, config.slurm, source):
            yield line
        return
    yield from pool.notes if pool.gpus else ()
    if pool.simulated and any(job.demand.mps for job in jobs):
        yield "mps: does nothing on simulated cards, which nothing computes on"
    if os.geteuid() == 0 and any(map(strict.hides, jobs)):
        yield strict.AS_ROOT


def short_ladders(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield a line for each entry whose retries do not lead to the last step of its ladder."""
    told: set[int] = set()
    for job in jobs:
        ladder, times = job.ladder, job.retry.times
        if ladder is not None and times < len(ladder.steps) - 1 and job.group not in told:
            told.add(job.group)
            yield (
                f"{job.name}: its ladder has {len(ladder.steps)} steps, and with retries: {times}"
                f" no job comes further than step {times + 1} by itself"
            )


def _asked_for(plan: Plan, options: RunOptions, run_id: str) -> CardPool:
    """Return the cards that `--gpus` or the file asks for."""
    choices = options.choices
    if choices.free_below is None and options.engine in (None, LOCAL):
        choices = replace(choices, free_below=plan.free_below)
    asked = choices.gpus if choices.gpus is not None else plan.selection
    try:
        return setup_of(options.engine or LOCAL).open_pool(asked, choices, os.environ, run_id)
    except SelectionError as error:
        if choices.gpus is not None:
            raise
        raise JobFileError([plan.mistake(("gpus",), error.text)]) from None
