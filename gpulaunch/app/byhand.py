"""The command of a job, started by hand and outside its run: `gpulaunch exec --job`.

-r RUN ─▶ the run's job file again, under the run's choices ─┐
-r FILE of which there is no run ─▶ that file ───────────────┴─▶ JOB ─▶ ChosenJob
ChosenJob ─▶ cards ─▶ a directory of its own ─▶ argv, directory, environment

The run that the job is of is read and left as it is: no log, `out/` or `results/` of its own is
touched, and its processes are never taken for the run's.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from gpulaunch.app.checks import pool_for, refuse_uncontainable
from gpulaunch.app.damage import remembered
from gpulaunch.app.in_container import made_contained
from gpulaunch.app.listing import added_to, as_set
from gpulaunch.app.lookup import directory
from gpulaunch.app.observer import Observer
from gpulaunch.app.options import RunOptions, as_before
from gpulaunch.app.own_cards import cards_of
from gpulaunch.app.rereading import plan_again
from gpulaunch.app.single import hold_through_exec, own_scope, port_for_good
from gpulaunch.app.surroundings import surroundings_later
from gpulaunch.core.ladder import next_step
from gpulaunch.core.ledger import LOCAL, Ledger
from gpulaunch.core.model import AttemptId, Demand, Gpu, Job, address_variable
from gpulaunch.core.template import render
from gpulaunch.digest.words import visible
from gpulaunch.engines import strict
from gpulaunch.engines.affinity import NearCpus
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.environment import AttemptPlace, EnvironmentMaker, placeholders
from gpulaunch.engines.local.readiness import address_of
from gpulaunch.engines.pool import CardPool
from gpulaunch.engines.prepare import (
    NotPreparedError,
    argv_of,
    dressed,
    loaded,
    materialise,
    own_variables,
    require_surroundings,
    wants_port,
)
from gpulaunch.errors import UsageError
from gpulaunch.jobfile import Plan, load
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.finding import NoSuchRunError, typed, working_directory
from gpulaunch.journal.liveness import state_of
from gpulaunch.journal.ownership import require_own
from gpulaunch.journal.rundir import RunDir, home_of_runs
from gpulaunch.journal.users import use
from gpulaunch.text import clip, listing

MAX_JOBS_NAMED = 10
"""Jobs that an error names of those that a pattern fits."""
MAX_COMMAND_LENGTH = 300
"""Characters of a command that are shown."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a job is taken from: a plan, and what a run knows of its jobs, if there is one.

    `directory` is the run's, or, without a run, the one where runs are made; `run` the run's id,
    else empty; `alive`: its supervisor is. `held` keeps the run from being removed.
    """

    plan: Plan
    directory: RunDir
    options: RunOptions
    run: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    alive: bool = False
    held: int | None = None

    @property
    def file(self) -> str:
        return typed(self.plan.path) if self.plan.path else self.plan.name

    def __str__(self) -> str:
        return typed(self.directory.path) if self.run else f"{self.file}, without a run"


@dataclass(frozen=True, slots=True)
class ChosenJob:
    """A job to be run by hand, and the cards it may have. `notes`: what differs from a run.

    `attempt` is the number that the job's next attempt would have.
    """

    job: Job
    source: Source
    pool: CardPool
    attempt: int
    notes: tuple[str, ...] = ()

    @property
    def demand(self) -> Demand:
        """What a start by hand waits for: the job's cards, without its tokens.

        Tokens are counted within a run, and this start is in none.
        """
        asked = self.job.demand
        return Demand(
            gpus=asked.gpus, gpu_memory=asked.gpu_memory, card=asked.card, compute=asked.compute
        )

    @property
    def alone(self) -> Job:
        """The job as it has its cards when started by hand: nothing shares them."""
        return replace(self.job, demand=replace(self.job.demand, per_gpu=1))


@dataclass(frozen=True, slots=True)
class ByHand:
    """The program to execute. `out` is the command's `{{out}}`, `keep` the job's `{{keep}}`.

    `command`: what the job says, for people. `address` is a service's HOST:PORT.
    """

    argv: tuple[str, ...]
    command: str
    cwd: str
    environment: Mapping[str, str] = field(repr=False)
    out: str
    keep: str = ""
    address: str = ""


def chosen(
    name: str, run: str | None, options: RunOptions, recorded: bool, observer: Observer
) -> ChosenJob:
    """Return the job of that name with its pool. Raises UsageError if it cannot be run by hand."""
    source = _source(run, options, recorded, observer)
    job = _picked(name, source)
    if why := _why_not(job, source.plan, os.environ):
        raise UsageError(f"{job.name} {why}")
    if job.keep and (running := _running_attempt(job.name, source)):
        raise UsageError(
            f"{job.name} runs, as attempt {running}, and both would write into its keep directory:"
            f" wait for its end, or cancel it"
        )
    try:
        require_surroundings(job)
    except NotPreparedError as error:
        raise UsageError(f"{job.name}: {error}") from None
    record = source.ledger.jobs.get(job.name)
    attempt = len(record.attempts) + 1 if record else 1
    # A job on pretend cards must see the run's pretend leases, as it would see real ones.
    id = source.run or f"exec-{os.getpid()}"
    pool = pool_for(source.plan, [job], source.options, id, observer)
    refuse_uncontainable(source.plan, [job], source.options)
    return ChosenJob(job, source, pool, attempt, tuple(_notes(job, source)))


def understood(asked: ChosenJob, made: ByHand, gpus: Sequence[Gpu]) -> str:
    """Return the cards, directories and command in one line for people."""
    kind = "simulated GPU" if any(gpu.simulated for gpu in gpus) else "GPU"
    cards = f"{kind} {', '.join(str(gpu.index) for gpu in gpus)}" if gpus else "no card"
    serves = f", serving at {made.address}" if made.address else ""
    kept = f" and the job's own {typed(Path(made.keep))} as its keep" if made.keep else ""
    command = clip(visible(made.command), MAX_COMMAND_LENGTH)
    return (
        f"{asked.job.name} of {asked.source}, on {cards}{serves}, in {typed(Path(made.cwd))}, with"
        f" {typed(Path(made.out))} as its out{kept}: {command}"
    )


def prepared(
    asked: ChosenJob,
    gpus: Sequence[Gpu],
    environ: Mapping[str, str],
    here: ImageHere | None = None,
    near: NearCpus | None = None,
) -> ByHand:
    """Make what the command needs on disk, reserve its ports, and return what to execute.

    `here`: the image of the job's container, if it has one. `near`: the CPUs on which this process
    runs for it. Raises OSError, NotPreparedError, NotContainedError or UsageError where that cannot
    be.
    """
    job = asked.job
    if asked.source.held is not None:
        hold_through_exec([asked.source.held])
    home = _fresh(asked.source, job.name)
    place = _place(asked, home, gpus)
    log = home.log(AttemptId(job.name, asked.attempt))
    log.touch(0o600)
    step = next_step(asked.source.ledger, job)
    place = replace(place, step=step.number if step is not None else None, near=near)
    values = placeholders(place, str(log), materialise(job, home), step)
    if job.keep:
        os.makedirs(place.keep, 0o700, exist_ok=True)
    argv, machine = argv_of(job, values), asked.pool.machine
    command = shlex.join(argv) if isinstance(job.run, tuple) else argv[-1]
    if here is None:
        environment = dressed(job, place, EnvironmentMaker(machine, environ), values).over(environ)
        argv = loaded(job, argv, values, place.run_dir)
    else:
        own = own_variables(job, values)
        argv, environment = made_contained(job, here, place, machine, environ, argv, own)
    ready_at = render(job.service.ready, values) if job.service else ""
    return ByHand(
        argv=argv,
        command=command,
        cwd=job.cwd,
        environment=environment,
        out=place.out,
        keep=place.keep if job.keep else "",
        address=address_of(ready_at) if ready_at else "",
    )


def _fresh(source: Source, job: str) -> RunDir:
    """Return a directory that no other start by hand of the job uses, with an empty `{{out}}`.

    A directory in which an earlier start left nothing is used again.
    """
    for number in count(1):
        home = source.directory.by_hand(job, number)
        # A run that somebody has moved while a card was waited for is not made anew.
        home.path.parent.mkdir(mode=0o700, parents=not source.run, exist_ok=True)
        new = _made(home.path)
        if _kept(home, new):
            break
    home.outs.mkdir(mode=0o700, exist_ok=True)
    home.logs.mkdir(mode=0o700, exist_ok=True)
    return home


def _made(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _kept(home: RunDir, new: bool) -> bool:
    """Take the directory if no other process has it and it holds only empty logs; return whether.

    The executed command and all its children inherit the lock, as they inherit the cards' leases.
    """
    held = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = new or not _used(home)
    except BlockingIOError:
        mine = False
    except OSError:  # a file system without locks
        mine = new
    if mine:
        hold_through_exec([held])
    os.close(held)
    return mine


def _used(home: RunDir) -> bool:
    """Tell whether the directory holds anything but empty logs."""
    left = (each for each in home.path.rglob("*") if each not in (home.outs, home.logs))
    return any(each.parent != home.logs or each.stat().st_size > 0 for each in left)


def _place(asked: ChosenJob, home: RunDir, gpus: Sequence[Gpu]) -> AttemptPlace:
    source, job = asked.source, asked.job
    return AttemptPlace(
        gpus=tuple(gpus),
        style="uuid" if asked.pool.style == "uuid" else job.visible,
        scope=own_scope(),
        master_port=port_for_good(),
        # Not the run's own id: by that its processes are known, and ended.
        run=f"{source.run}-byhand",
        run_dir=str((source.directory if source.run else home).path),
        attempt=asked.attempt,
        out=str(home.outs),
        keep=(source.directory if source.run else home).keep_dir(job.name),
        port=port_for_good() if wants_port(job) else None,
    )


def _source(run: str | None, options: RunOptions, recorded: bool, observer: Observer) -> Source:
    try:
        found = directory(run, observer)
    except NoSuchRunError:
        if run is None or not os.path.isfile(run):
            raise
        plan = load(Path(run), surroundings_later(options.choices, cards_of(options.choices)))
        return Source(plan, RunDir(home_of_runs(working_directory())), options)
    require_own(found)
    held = use(found, observer.note)
    manifest = found.read_manifest()
    if manifest.engine != LOCAL:
        raise UsageError(
            f"{typed(found.path)} runs on {manifest.engine.capitalize()}, whose nodes this machine"
            " is none of: status JOB shows a job's command, to be given after -- where it can run"
        )
    state = state_of(found)
    ledger = remembered(found, state, observer)
    before = replace(manifest, choices=_of_one_job(manifest.choices))
    options = as_before(options, before, ledger, observer)
    plan = plan_again(found, manifest, options, recorded)
    jobs = (as_set(job, ledger) for job in (*plan.jobs, *added_to(found, plan, ledger)))
    plan = replace(plan, jobs=tuple(jobs))
    return Source(plan, found, options, manifest.run, ledger, state == "running", held)


def _of_one_job(choices: Choices) -> Choices:
    """Return those of a run's choices that apply to one of its jobs alone."""
    return Choices(
        gpus=choices.gpus,
        per_gpu=choices.per_gpu,
        simulate=choices.simulate,
        share_busy=choices.share_busy,
        free_below=choices.free_below,
        explain=choices.explain,
    )


def _picked(name: str, source: Source) -> Job:
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
            f"{name} is no longer in {source.file}; --recorded takes the run's own copy of it"
        )
    raise UsageError(f"no job of {source.file} is called {name}{_near(name, jobs)}")


def _near(name: str, jobs: Collection[str]) -> str:
    if near := difflib.get_close_matches(name, jobs, 3):
        return f"; did you mean {' or '.join(near)}?"
    return f"; it has {listing(jobs, MAX_JOBS_NAMED)}"


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


def _running_attempt(job: str, source: Source) -> int | None:
    """Return the number of the job's attempt that has not ended; None where there is none.

    What a supervisor that is gone has left, its keepers end.
    """
    record = source.ledger.jobs.get(job)
    last = record.attempts[-1] if record is not None and record.attempts else None
    return last.id.number if source.alive and last is not None and last.is_open else None


def _notes(job: Job, source: Source) -> Iterator[str]:
    """Yield what differs from a run of the job."""
    services = {each.name for each in source.plan.jobs if each.service is not None}
    states = {name: record.state for name, record in source.ledger.jobs.items()}
    lacking = [n for n in job.needs if n not in services and states.get(n) != "succeeded"]
    if lacking:
        have = "has" if len(lacking) == 1 else "have"
        yield f"{job.name} needs {listing(lacking)}, which {have} not succeeded, and is not run"
    if strict.hides(job):
        yield "isolation: strict does not hold by hand: the mask alone hides the other cards"
