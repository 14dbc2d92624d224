"""Carries out `retry`: finds the run and the jobs, and asks a live run or starts it again."""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch import errors
from gpulaunch.cli import resuming
from gpulaunch.cli.beforehand import pool_for
from gpulaunch.cli.kept import as_before, say_not_taken
from gpulaunch.cli.lookup import directory, jobs_of, runs_here
from gpulaunch.cli.options import RunOptions
from gpulaunch.cli.output import echo_plan, say, typed
from gpulaunch.cli.serving import say_unserved
from gpulaunch.control import call
from gpulaunch.core import resume_plan
from gpulaunch.core.events import Retry
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.core.resume_plan import ResumePlan
from gpulaunch.errors import UsageError
from gpulaunch.journal.finding import find, working_directory
from gpulaunch.journal.liveness import refuse_elsewhere, state_of
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import listing, several

READING = 600.0
"""Seconds for a live run to read its job file again: 100,000 jobs take ten."""


def told_apart(
    run: str | None, words: Sequence[str], options: RunOptions
) -> tuple[RunDir, Sequence[str]]:
    """Return the run and the patterns of jobs of `-r RUN JOB ...`, `RUN JOB ...` or `JOB ...`.

    Raises UsageError if the first word names both a run and a job, or neither.
    """
    if run is not None or not words:
        return directory(run, options), words
    named, here = _called(words[0]), _here()
    is_job = here is not None and _names_jobs(here, words[0])
    if named is not None and not is_job:
        return named, words[1:]
    if named is None and (here is None or is_job):
        return directory(None, options), words  # without a run here, an error names those elsewhere
    assert here is not None  # the cases without a run here have returned
    if named is None:
        raise UsageError(
            f"{words[0]} is not a run, nor a job of {typed(here.path)}: gpulaunch status --all"
            " lists the jobs"
        )
    raise UsageError(
        f"{words[0]} is a run and a job of {typed(here.path)}: say which with -r {words[0]}, or"
        f" -r {typed(here.path)} {words[0]}"
    )


def retry(run: RunDir, patterns: Sequence[str], options: RunOptions) -> int:
    """Run again what failed, or these jobs, in the live run or by starting it again."""
    refuse_elsewhere(run)
    names = tuple(jobs_of(replay(run.events), patterns)) if patterns else None
    if state_of(run) == "running":
        return _retry_alive(run, names, options)

    def failed(ledger: Ledger, jobs: Sequence[Job], options: RunOptions) -> ResumePlan:
        _say_untouched(ledger, names, resume_plan.retried(ledger, jobs, names), options)
        return resume_plan.retry(ledger, jobs, names)

    return resuming.go_on(run, options, failed)


def _retry_alive(run: RunDir, names: tuple[str, ...] | None, options: RunOptions) -> int:
    if options.dry_run:
        return _dry(run, names, options)
    say_unserved(options)
    say_not_taken(options)
    told = call(run.read_manifest().run, Retry(names, not options.recorded), READING)
    requeued, where = set(told["requeued"]), f"{typed(run.path)}, which is running"
    say(f"requeued {several(len(requeued), 'job')} in {where}", options)
    if changed := told["changed"]:
        say(f"changed in the job file, run as they are now: {listing(changed, 5)}", options)
    if gone := told["gone"]:
        say(f"no longer in the job file, and not run: {listing(gone, 5)}", options)
    _say_untouched(replay(run.events), names, requeued.union(gone), options)
    return errors.OK


def _dry(run: RunDir, names: tuple[str, ...] | None, options: RunOptions) -> int:
    """Print what a retry would put back into the live run, by the job file as it is now."""
    ledger, manifest = replay(run.events), run.read_manifest()
    options = as_before(options, manifest, ledger)
    plan = resuming.plan_again(run, manifest, options)
    asked = resume_plan.retried(ledger, plan.jobs, names)
    jobs = [job for job in plan.jobs if job.name in asked]
    echo_plan(plan, jobs, pool_for(plan, jobs, options, manifest.run), options.as_json)
    return errors.OK


def _say_untouched(
    ledger: Ledger,
    names: tuple[str, ...] | None,
    taken: frozenset[str] | set[str],
    options: RunOptions,
) -> None:
    """Say of jobs that were named and are not retried why that is."""
    for name in names or ():
        if name not in taken:
            say(f"{name} is not retried: it has not failed ({ledger.jobs[name].state})", options)


def _called(run: str) -> RunDir | None:
    """Return the run here that a word may mean, or None; only -r reaches one elsewhere."""
    try:
        return find(run, working_directory())
    except UsageError:
        return None


def _here() -> RunDir | None:
    try:
        return runs_here().runs[0]
    except UsageError:
        return None


def _names_jobs(run: RunDir, pattern: str) -> bool:
    try:
        return bool(jobs_of(replay(run.events), [pattern]))
    except UsageError:
        return False
