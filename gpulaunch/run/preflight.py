"""Checks before anything starts: scripts and their cards, containers, notifications, the cards.

Notes what it finds, or refuses. It also makes what surrounds a run's job file when the file is read
(`Surroundings`), of the run's options and this process. Starts nothing and leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpulaunch.base.errors import JobFileError, Mistake, NoCardsError
from gpulaunch.containers.engines import CARRIED, NO_PROGRAM, InstalledEngines, NoEngineError
from gpulaunch.core.ledger import LOCAL
from gpulaunch.core.model import ContainerEngine, Gpu, ImageSource, Job, Selection
from gpulaunch.core.resume import expect, expect_memory
from gpulaunch.engines import isolation, setup_of
from gpulaunch.engines.pool import CardPool, SelectionError, require
from gpulaunch.engines.programs import program_inside
from gpulaunch.jobfile import plan as scheduler_support
from gpulaunch.jobfile.config import current
from gpulaunch.jobfile.containers import why_not
from gpulaunch.jobfile.file_keys import CardsOfRun, Look, Surroundings
from gpulaunch.jobfile.mistakes import spell
from gpulaunch.jobfile.notify_spec import Target
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import Following
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.journal.choices import Choices
from gpulaunch.journal.find import MAX_EARLIER_RUNS, durations_of, runs_of, working_directory
from gpulaunch.observe.notify.preflight import Looking
from gpulaunch.run.options import Observer, RunOptions

if TYPE_CHECKING:
    from gpulaunch.diagnose.lint import Finding


# ── Containers ────────────────────────────────────────────────────────────────────────────────────


def uncontainable(plan: Plan, jobs: Sequence[Job], cluster: bool) -> list[Mistake]:
    """Return a mistake for each container that cannot be had here, and what its engine cannot do.

    `cluster`: the jobs run on a cluster's nodes.
    """
    return plan.mistakes(_wrong(jobs, cluster))


def _wrong(jobs: Sequence[Job], cluster: bool) -> Iterator[tuple[Steps, str]]:
    engines = _Engines(cluster)
    for job in jobs:
        if job.container is None:
            continue
        engine = engines.of(job.container.source)
        if isinstance(engine, NoEngineError):
            yield ("jobs", job.group, "container"), str(engine)
            continue
        if engine in CARRIED and engines.no_program:
            yield ("jobs", job.group, "container"), f"{engine}: {NO_PROGRAM}"
        for field, why in why_not(job, engine):
            yield ("jobs", job.group, field), why


def chosen_engines(jobs: Sequence[Job], cluster: bool) -> Iterator[str]:
    """Yield a line for each image: which engine runs it, or why none does."""
    engines = _Engines(cluster)
    for source in dict.fromkeys(job.container.source for job in jobs if job.container):
        engine = engines.of(source)
        if isinstance(engine, NoEngineError):
            yield f"container {source.image}: {engine}"
        else:
            where = "on the nodes" if cluster else engines.installed.path(engine)
            yield f"container {source.image}: {engine} runs it ({where})"


class _Engines:
    """The engine of each image, or why there is none; each is looked up once."""

    def __init__(self, cluster: bool) -> None:
        self.installed = InstalledEngines(os.environ)
        self._cluster = cluster
        self._found: dict[ImageSource, ContainerEngine | NoEngineError] = {}
        self._no_program: bool | None = None

    def of(self, source: ImageSource) -> ContainerEngine | NoEngineError:
        if source not in self._found:
            try:
                self._found[source] = self.installed.engine_for(source, self._cluster)
            except NoEngineError as error:
                self._found[source] = error
        return self._found[source]

    @property
    def no_program(self) -> bool:
        """Whether what gpulaunch starts in a container is missing."""
        if self._no_program is None:
            self._no_program = program_inside() is None
        return self._no_program


# ── Notifications ─────────────────────────────────────────────────────────────────────────────────


def targets_of(plan: Plan) -> tuple[Target, ...]:
    """Return whom the run is to tell: as its job file says, or else as the configuration does."""
    return plan.notify or current().notify


def mistake_in(plan: Plan, target: Target, key: str, text: str) -> Mistake:
    """Return a mistake about a target at its place, in the job file or in the configuration.

    Shows no line: an address may be on it.
    """
    if plan.notify:
        return plan.mistake((*target.path, key), text)
    source, field = current().sources["notify"], spell((*target.path, key))
    file, _, line = source.rpartition(":")
    return Mistake(f"{source}: {field}: {text}", text, file, int(line), None, field)


# ── Cards for `foreach: cards` ────────────────────────────────────────────────────────────────────


def cards_of(choices: Choices, engine: str | None = None) -> CardsOfRun:
    """Return what tells which cards a run of these choices has, by a look at the machine.

    It looks when it is first asked. What it returns raises UsageError where `--gpus` is wrong.
    """

    @cache
    def look(selected: Selection) -> Sequence[Gpu]:
        if engine not in (None, LOCAL):
            raise LookupError(_CLUSTERS)
        asked = selected if choices.gpus is None else choices.gpus
        try:
            pool = setup_of(LOCAL).open_pool(asked, choices, os.environ, "")
        except SelectionError as error:
            if choices.gpus is not None:
                raise
            raise LookupError(error.text) from None
        if not pool.gpus:
            require(pool, 1)
        return _known(pool)

    return look


def cards_if_any(choices: Choices, engine: str | None = None) -> CardsOfRun:
    """Return what tells the same, and tells none where this machine has none.

    For a list that is only looked at, and may run elsewhere.
    """
    known = cards_of(choices, engine)

    def look(selected: Selection) -> Sequence[Gpu]:
        try:
            return known(selected)
        except (LookupError, NoCardsError):
            if choices.gpus is None and _none_here(choices, engine):
                return ()
            raise

    return look


def _none_here(choices: Choices, engine: str | None) -> bool:
    if engine not in (None, LOCAL):
        return False
    return not setup_of(LOCAL).open_pool(None, choices, os.environ, "").here


def cards_in(pool: CardPool) -> CardsOfRun:
    """Return what tells which cards the run of this pool has."""
    return lambda _: _known(pool)


def _known(pool: CardPool) -> Sequence[Gpu]:
    """Return the pool's cards. Raises LookupError for none, and where they are not certain."""
    if pool.queueing:
        raise LookupError(_CLUSTERS)
    if not pool.gpus:
        raise LookupError("the run has no card")
    if pool.limit is not None and pool.limit < len(pool.gpus):
        raise LookupError(
            f"the run takes any {pool.limit} of {len(pool.gpus)} cards, and only once it has them"
            " it is known which: name them (gpus: [0, 2], --gpus 0,2), or take all"
        )
    return pool.gpus


_CLUSTERS = (
    "a cluster chooses the cards, so that none is known before: say how many jobs there are to be,"
    " like foreach: {values: [0, 1, 2, 3]}"
)


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────

NEVER_WARNED = "the job has no timeout to be warned of: give it timeout:, or preemptible: true"
WARNINGS = 20
"""Warnings of scripts that `run` shows; `check` shows all."""


def foreseen(plan: Plan, job_file: Path | None) -> tuple[Plan, Mapping[str, float]]:
    """Return the plan with what its jobs took in earlier runs of the file, and seconds by name."""
    digests = {job.name: job.digest for job in plan.jobs}
    runs = (
        list(islice(runs_of(job_file, working_directory()), MAX_EARLIER_RUNS)) if job_file else []
    )
    earlier = durations_of(runs, digests)
    jobs = expect(plan.jobs, earlier)
    if any(job.demand.kind is not None for job in jobs):
        from gpulaunch.observe.metrics.read import peaks_of

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
    wanting = [job for job in jobs if isolation.hides(job)]
    if wanting and (why := isolation.refusal(pool.gpus)):
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
    if os.geteuid() == 0 and any(map(isolation.hides, jobs)):
        yield isolation.AS_ROOT


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


# ── Surroundings of the job file ──────────────────────────────────────────────────────────────────


def surroundings_at_start(options: RunOptions, cwd: Path | None = None) -> Surroundings:
    """Return what surrounds the file of a run that starts, where missing programs are mistakes.

    `cwd`: where the commands of a list start, the working directory where it is None.
    """
    return Surroundings(
        os.environ,
        per_gpu=options.choices.per_gpu,
        defaults=options.choices.default,
        cards=cards_of(options.choices, options.engine),
        cwd=cwd,
        look=looking_for(options.engine),
    )


def surroundings_later(
    choices: Choices, cards: CardsOfRun, cwd: Path | None = None, following: Following | None = None
) -> Surroundings:
    """Return what surrounds the file of a run that has begun, in the directory `cwd`.

    `following`: what counts, where the file's inputs are followed.
    """
    return Surroundings(
        os.environ,
        per_gpu=choices.per_gpu,
        defaults=choices.default,
        cards=cards,
        cwd=cwd,
        following=following,
    )
