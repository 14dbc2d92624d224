"""Finds the job of `exec --job`: its run or job file, its cards, and why it cannot be run.

-r RUN ─▶ the run's job file again, under the run's choices ─┐
-r FILE of which there is no run ─▶ that file ───────────────┴─▶ JOB ─▶ ChosenJob
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpulaunch.cli.beforehand import pool_for
from gpulaunch.cli.damage import remembered
from gpulaunch.cli.kept import as_before
from gpulaunch.cli.lookup import directory
from gpulaunch.cli.options import RunOptions
from gpulaunch.cli.output import typed
from gpulaunch.cli.resuming import plan_again
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Gpu, Job, address_variable
from gpulaunch.engines.local.byhand import ByHand, SourceRun
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.prepare import NotPreparedError, require_surroundings
from gpulaunch.errors import UsageError
from gpulaunch.jobfile import Plan, load
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.finding import NoSuchRunError, working_directory
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.rundir import RUNS, RunDir
from gpulaunch.text import listing
from gpulaunch.views.words import clip, visible

MAX_JOBS_NAMED = 10
"""Jobs that an error names of those that a pattern fits."""
MAX_COMMAND_LENGTH = 300
"""Characters of a command that are shown."""


@dataclass(frozen=True, slots=True)
class ChosenJob:
    """A job to be run by hand, and the cards it may have.

    For people: `whose` it is, and `notes` on what differs from a run.
    """

    job: Job
    whose: str
    origin: SourceRun
    pool: CardPool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """Where jobs are taken from: a plan, and what a run knows of its jobs, if there is one."""

    plan: Plan
    directory: RunDir
    options: RunOptions
    run: str = ""
    ledger: Ledger = field(default_factory=Ledger)


def wanted(name: str, run: str | None, options: RunOptions) -> ChosenJob:
    """Return the job of that name with its pool. Raises UsageError if it cannot be run by hand."""
    source = _source(run, options)
    job = _picked(name, source)
    if why := _why_not(job, source.plan, os.environ):
        raise UsageError(f"{job.name} {why}")
    try:
        require_surroundings(job)
    except NotPreparedError as error:
        raise UsageError(f"{job.name}: {error}") from None
    record = source.ledger.jobs.get(job.name)
    attempt = len(record.attempts) + 1 if record else 1
    # A job on pretend cards must see the run's pretend leases, as it would see real ones.
    pool = pool_for(source.plan, [job], source.options, source.run or f"exec-{os.getpid()}")
    origin = SourceRun(source.directory, source.run, attempt)
    return ChosenJob(job, _whose(source), origin, pool, tuple(_notes(job, source)))


def understood(asked: ChosenJob, made: ByHand, gpus: Sequence[Gpu]) -> str:
    """Return the cards, directories and command in one line for people."""
    in_shell = not isinstance(asked.job.run, tuple)
    command = made.argv[-1] if in_shell else shlex.join(made.argv)
    kind = "simulated GPU" if any(gpu.simulated for gpu in gpus) else "GPU"
    cards = f"{kind} {', '.join(str(gpu.index) for gpu in gpus)}" if gpus else "no card"
    serves = f", serving at {made.address}" if made.address else ""
    return (
        f"{asked.job.name} of {asked.whose}, on {cards}{serves}, in {typed(Path(made.cwd))}, with"
        f" {typed(Path(made.out))} as its out: {clip(visible(command), MAX_COMMAND_LENGTH)}"
    )


def _whose(source: _Source) -> str:
    return typed(source.directory.path) if source.run else f"{_where(source)}, without a run"


def _source(run: str | None, options: RunOptions) -> _Source:
    try:
        found = directory(run, options)
    except NoSuchRunError:
        if run is None or not os.path.isfile(run):
            raise
        plan = load(Path(run), environ=os.environ)
        return _Source(plan, RunDir(working_directory() / RUNS), options)
    return _of_run(found, options)


def _of_run(run: RunDir, options: RunOptions) -> _Source:
    manifest = run.read_manifest()
    if manifest.engine != "local":
        raise UsageError(
            f"{typed(run.path)} runs on {manifest.engine.capitalize()}, whose nodes this machine is"
            " none of: status JOB shows a job's command, to be given after -- where it can run"
        )
    ledger = remembered(run, state_of(run))
    before = replace(manifest, choices=_of_one_job(manifest.choices))
    options = as_before(options, before, ledger)
    return _Source(plan_again(run, manifest, options), run, options, manifest.run, ledger)


def _of_one_job(choices: Choices) -> Choices:
    """Return those of a run's choices that apply to one of its jobs alone."""
    return Choices(
        gpus=choices.gpus,
        per_gpu=choices.per_gpu,
        simulate=choices.simulate,
        share_busy=choices.share_busy,
        explain=choices.explain,
    )


def _picked(name: str, source: _Source) -> Job:
    """Return the one job that a name or pattern means. Raises UsageError."""
    jobs = {job.name: job for job in source.plan.jobs}
    fits = [name] if name in jobs else [each for each in jobs if fnmatchcase(each, name)]
    if len(fits) == 1:
        return jobs[fits[0]]
    if fits:
        raise UsageError(
            f"{name} fits {len(fits):,} jobs, name one: {listing(fits, MAX_JOBS_NAMED)}"
        )
    if name in source.ledger.jobs:
        raise UsageError(
            f"{name} is no longer in {_where(source)}; --recorded takes the run's own copy of it"
        )
    raise UsageError(f"no job of {_where(source)} is called {name}{_near(name, jobs)}")


def _where(source: _Source) -> str:
    return typed(source.plan.path) if source.plan.path else source.plan.name


def _near(name: str, jobs: Collection[str]) -> str:
    near = difflib.get_close_matches(name, jobs, 3)
    return (
        f"; did you mean {' or '.join(near)}?"
        if near
        else f"; it has {listing(jobs, MAX_JOBS_NAMED)}"
    )


def _why_not(job: Job, plan: Plan, environ: Mapping[str, str]) -> str:
    """Return why the job's command cannot run by itself, to follow its name; else ""."""
    if job.worker is not None:
        return f"runs in a worker ({job.worker.title}), and has no command of its own"
    services = {each.name for each in plan.jobs if each.service is not None}
    for need in job.needs:
        if need in services and address_variable(need) not in environ:
            return (
                f"needs the service {need}, which is not started by hand with it: set"
                f" {address_variable(need)}=HOST:PORT to one that runs (gpulaunch exec --job {need}"
                " starts one)"
            )
    return ""


def _notes(job: Job, source: _Source) -> Iterator[str]:
    """Yield what differs from a run of the job."""
    services = {each.name for each in source.plan.jobs if each.service is not None}
    states = {name: record.state for name, record in source.ledger.jobs.items()}
    lacking = [n for n in job.needs if n not in services and states.get(n) != "succeeded"]
    if lacking:
        have = "has" if len(lacking) == 1 else "have"
        yield f"{job.name} needs {listing(lacking)}, which {have} not succeeded, and is not run"
    if job.isolation == "strict":
        yield "isolation: strict does not hold by hand: the mask alone hides the other cards"
