"""The list of a live run, how it is read again, and how it changes: by file, additions, settings.

    job file, read anew ──┐
    jobs that are added ──┼─▶ RunList: what is wrong with it ─▶ Relisted, for the core
    fields that are set ──┘                                  └▶ or RefusedError: nothing changes

A thread reads: a long list takes seconds, and a dead file server never answers. The loop waits for
neither. Decides nothing that the core decides, records nothing and answers nobody
(`control_handlers` does).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.base.errors import GpulaunchError, JobFileError, Mistake, UsageError
from gpulaunch.base.files import read_bytes
from gpulaunch.base.text import listing
from gpulaunch.core.events import Relisted
from gpulaunch.core.job_list import ListChange
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.core.resume import expect_again
from gpulaunch.core.run import Run
from gpulaunch.diagnose.lint.absent import looking
from gpulaunch.engines.pool import CardPool
from gpulaunch.jobfile import plan as scheduler_support
from gpulaunch.jobfile.file_keys import Beside, CardsOfRun, Surroundings
from gpulaunch.jobfile.load import load, load_text
from gpulaunch.jobfile.needs import find_cycles, spell_cycle
from gpulaunch.jobfile.plan import EMPTY, Plan, as_chosen, empty_plan, why_never
from gpulaunch.jobfile.settings import with_settings
from gpulaunch.jobfile.source import Following
from gpulaunch.journal.choices import NOTHING_CHOSEN, Choices
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.read import additions_in
from gpulaunch.journal.rundir import LIST, RunDir
from gpulaunch.run.control_protocol import Add
from gpulaunch.run.lookup import with_needs
from gpulaunch.run.options import RunOptions
from gpulaunch.run.preflight import cards_in, cards_of, misfits, surroundings_later, uncontainable
from gpulaunch.run.sources import first_plan


class Filed(Struct, frozen=True):
    """A run's job file, the options that were chosen over it, and the cards that it has.

    `cwd`: where the run was begun, and the commands of a list start.
    """

    file: Path
    choices: Choices
    cards: CardsOfRun
    cwd: Path

    def read(self, following: Following | None = None) -> Plan:
        """Return the plan of the file as it is now. Raises UsageError, JobFileError.

        `following`: what counts, where the file's inputs are followed.
        """
        if not self.file.exists():
            own = "--recorded goes on with the run's own copy of it"
            raise UsageError(f"{self.file} is gone; {own}")
        around = surroundings_later(self.choices, self.cards, self.cwd, following)
        plan = load(self.file, around)
        return as_chosen(plan, self.choices.explain, self.choices.preload)


def plan_again(
    run: RunDir, manifest: Manifest, options: RunOptions, recorded: bool, complete: bool = False
) -> Plan:
    """Return the plan of the job file as it is now, under the run's choices.

    Of the run's own copy, if that is asked for or there is no file. `complete`: where its inputs
    are followed, no more of them are to come.
    """
    choices, filed = options.choices, filed_of(manifest, options)
    if filed is not None and not recorded:
        if choices.follow:
            return first_plan(filed.read, choices.settle, not complete)
        return filed.read()
    plan = recorded_plan(run, manifest, cards_of(choices, options.engine), choices)
    return as_chosen(plan, choices.explain, choices.preload)


def filed_of(manifest: Manifest, options: RunOptions) -> Filed | None:
    """Return the file from which a run reads its jobs again; None if there is none."""
    if not manifest.job_file:
        return None
    cards = cards_of(options.choices, options.engine)
    return Filed(Path(manifest.job_file), options.choices, cards, Path(manifest.cwd))


def read_addition(
    asking: Add, text: str, beside: Beside, pool: CardPool, filed: Filed | None
) -> Plan:
    """Return the plan of jobs that are added to a run of these cards. Raises JobFileError."""
    look = looking(asking.environ, cluster=pool.queueing)
    around = Surroundings(asking.environ, cards=cards_in(pool), look=look, beside=beside)
    data, base = text.encode(errors="surrogateescape"), Path(asking.base)
    plan = load_text(data, around, name=asking.label, base=base)
    choices = filed.choices if filed else NOTHING_CHOSEN
    return as_chosen(plan, choices.explain, choices.preload)


def recorded_plan(
    run: RunDir, manifest: Manifest, cards: CardsOfRun, choices: Choices | None = None
) -> Plan:
    """Return the plan of the run's own copy of its job file. Raises UsageError, JobFileError.

    `cards`: those of the run. `choices`: its options, where they are others than those that it was
    begun with.
    """
    choices = manifest.choices if choices is None else choices
    copy = run.newest_jobs_file()
    try:
        text = read_bytes(copy)
    except OSError as error:
        raise UsageError(f"{copy}, the run's own copy, cannot be read: {error.strerror}") from None
    base = Path(manifest.job_file).parent if manifest.job_file else Path(manifest.cwd)
    if text == EMPTY:
        return empty_plan(manifest.name, base)
    around = surroundings_later(choices, cards, Path(manifest.cwd))
    return load_text(text, around, name=manifest.name, base=base, as_list=copy.suffix == LIST)


class RefusedError(GpulaunchError):
    """Nothing was changed; the text says why. `found`: the mistakes of a list, if it has any."""

    def __init__(self, text: str, found: Sequence[Mistake] = ()) -> None:
        super().__init__(text)
        self.found = tuple(found)


def refusing(read: Callable[[], Plan], what: str) -> Callable[[], Plan]:
    """Return `read`, which raises a RefusedError whatever error it meets. `what`: what it reads."""

    def read_on() -> Plan:
        try:
            return read()
        except GpulaunchError as error:
            raise RefusedError(str(error), getattr(error, "found", ())) from None
        except Exception as error:  # a bug there must not leave the client without an answer
            raise RefusedError(f"{what} could not be read: {error!r}") from None

    return read_on


GIVEN_GROUPS = 1 << 20
"""Groups of added jobs begin here: those of a job file count its entries."""


class ListedNames(Collection[str]):
    """The names of a live run's jobs, for another thread: looked up one by one, or all listed."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._run.lists(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.listed())

    def __len__(self) -> int:
        return len(self._run.ledger.jobs)


class RunList(Struct):
    """The list of a live run. `given`: the jobs that were added to it, by name.

    `numbers`: the last number of each stem in `name_for`.

    `limits` are the run's tokens; `only`: patterns of the names that it was begun with.

    `taken`: how often a plan of the job file was taken up. One that was being read meanwhile may be
    older, and is read anew in place of being taken.
    """

    run: Run
    pool: CardPool
    limits: Mapping[str, int]
    only: tuple[str, ...] = ()
    given: dict[str, Job] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    taken: int = 0

    def reloaded(self, plan: Plan) -> Relisted:
        """Return the change to the job file as it is now. Raises RefusedError."""
        jobs = self._chosen(plan)
        names = {job.name for job in plan.jobs} | self.given.keys()
        gone = tuple(name for name in self.run.listed() if name not in names)
        return self._checked(plan, jobs, gone)

    def retried(self, plan: Plan, names: tuple[str, ...] | None) -> Relisted:
        """Return the change that defines the jobs which a retry of `names` requeues anew.

        Raises RefusedError.
        """
        by_name = {job.name: job for job in plan.jobs}
        asked = [name for name in self.run.retried_by(names) if name not in self.given]
        jobs = [by_name[name] for name in asked if name in by_name]
        there = set(self.run.listed())
        if new := [job.name for job in jobs if not there.issuperset((*job.needs, *job.after))]:
            raise RefusedError(
                f"{listing(new)}: needs or after names a job that this run does not have yet:"
                " gpulaunch reload takes it up. Nothing was requeued"
            )
        gone = tuple(name for name in asked if name not in by_name)
        return self._checked(plan, jobs, gone)

    def added(self, plan: Plan, environ: Mapping[str, str]) -> Relisted:
        """Return the change that adds these jobs. Raises RefusedError, also for a known name.

        `environ` is theirs; a worker serves jobs of one environment alone.
        """
        if known := [job.name for job in plan.jobs if job.name in self.run.ledger.jobs]:
            are = "are jobs" if len(known) > 1 else "is a job"
            raise RefusedError(
                f"{listing(known)} {are} of this run already: a job is its name. Give another one"
                " with --name, or run a failed one again with gpulaunch retry"
            )
        kind = GIVEN_GROUPS + zlib.crc32(plan.name.encode()) % GIVEN_GROUPS
        self._refuse_misfits(plan, plan.jobs)
        seat = f"@{hash(frozenset(environ.items())):x}"
        return Relisted(tuple(_as_given(job, kind + job.group, seat) for job in plan.jobs))

    def set(self, names: Collection[str], fields: Mapping[str, str], plan: Plan | None) -> Relisted:
        """Return the change that sets these fields of jobs that wait. Raises RefusedError.

        `plan`: the job file, where a field is to be as it says again.
        """
        filed = {job.name: job for job in plan.jobs} if plan is not None else {}
        listed = self.run.listed()
        jobs = [self._with_fields(filed, name, fields, listed) for name in names]
        change = self.run.compare(jobs)
        if stay := (*change.running, *change.over):
            state = self.run.ledger.jobs[stay[0]].state
            raise RefusedError(f"{stay[0]} does not wait ({state}): nothing was set")
        self._refuse_cycles(jobs)
        for job in jobs:
            if never := self._never(job):
                raise RefusedError(f"{job.name}: {never}. Nothing was set")
        return Relisted(tuple(jobs))

    def name_for(self, stem: str) -> str:
        """Return a name that no job of the run has, for a command: `train-3`."""
        while True:
            self.numbers[stem] = number = self.numbers.get(stem, 0) + 1
            if (name := f"{stem}-{number}") not in self.run.ledger.jobs:
                return name

    def summary(self, change: Relisted) -> ListChange:
        """Return what the change does, by names."""
        return self.run.compare(change.jobs, change.gone)

    def _chosen(self, plan: Plan) -> Sequence[Job]:
        """Return the file's jobs that the run has, and new ones that its `--only` picks."""
        if not self.only:
            return plan.jobs
        try:
            picked = {job.name for job in with_needs(plan.jobs, self.only, self.run.ledger)}
        except UsageError as error:
            raise RefusedError(str(error)) from None
        known = self.run.ledger.jobs
        return [job for job in plan.jobs if job.name in picked or job.name in known]

    def _checked(self, plan: Plan, jobs: Sequence[Job], gone: tuple[str, ...]) -> Relisted:
        """Return the change to these definitions. Raises RefusedError where it cannot be made."""
        jobs = [as_set(job, self.run.ledger) for job in expect_again(jobs, self.run.ledger)]
        new = [job for job in jobs if self.run.as_listed(job.name) != job]
        self._refuse_misfits(plan, new)
        if turned := [job.name for job in new if self._turns(job)]:
            raise RefusedError(
                f"{listing(turned)}: whether it is a service cannot change while the run lives:"
                " let the run end, or stop it, and resume it then"
            )
        return Relisted(tuple(new), gone)

    def _turns(self, job: Job) -> bool:
        known = self.run.job(job.name)
        return known is not None and (known.service is None) != (job.service is None)

    def _with_fields(
        self,
        filed: Mapping[str, Job],
        name: str,
        fields: Mapping[str, str],
        listed: Collection[str],
    ) -> Job:
        plain = self.given.get(name) or filed.get(name) or self.run.as_listed(name)
        if plain is None:
            raise RefusedError(f"{name} is no longer in the list: nothing was set")
        expected = self.run.ledger.jobs[name].definition.expected
        together = {**self.run.ledger.settings.get(name, {}), **fields}
        try:
            job = with_settings(plain, together, listed)
        except UsageError as error:
            raise RefusedError(f"{error}\nnothing was set") from None
        return replace(job, expected=expected)

    def _refuse_cycles(self, jobs: Sequence[Job]) -> None:
        newest = {job.name: job for job in jobs}
        there = dict.fromkeys(self.run.listed())
        waits = {}
        for name in there:
            job = newest.get(name) or self.run.as_listed(name)
            assert job is not None
            links = (job.needs, job.after)
            waits[name] = [tuple(n for n in names if n in there) for names in links]
        for cycle in find_cycles(waits):
            raise RefusedError(f"needs: a cycle: {spell_cycle(cycle)}. Nothing was set")

    def _refuse_misfits(self, plan: Plan, jobs: Sequence[Job]) -> None:
        wrong = misfits(plan, jobs, self.pool) or uncontainable(plan, jobs, self.pool.queueing)
        if wrong:
            raise RefusedError(str(JobFileError(wrong)), wrong)

    def _never(self, job: Job) -> str:
        if self.pool.queueing:
            why = scheduler_support.why_not(job, self.pool.limit, self.limits)
            return "; ".join(f"{field}: {reason}" for field, reason in why)
        pool, limits = self.pool, self.limits
        return "; ".join(why_never(job, pool.gpus, pool.size, limits, pool.memory, pool.capped))


def _as_given(job: Job, group: int, seat: str) -> Job:
    demand = job.demand
    if demand.worker:
        demand = replace(demand, worker=demand.worker + seat)
    if demand.kind is not None:
        demand = replace(demand, kind=group)
    return replace(job, group=group, given=True, demand=demand)


def added_to(run: RunDir, plan: Plan, ledger: Ledger) -> list[Job]:
    """Return the jobs that were added to a run, without those that its job file has by now.

    Raises NotUnderstoodError where another version of gpulaunch recorded them.
    """
    filed = {job.name for job in plan.jobs}
    added = {job.name: job for addition in additions_in(run.events) for job in addition.jobs}
    known = {**dict.fromkeys(ledger.jobs), **added}
    return [added[name] for name in known if name in added and name not in filed]


def as_set(job: Job, ledger: Ledger) -> Job:
    """Return the job with what a person set, unless that has no meaning any more."""
    fields = ledger.settings.get(job.name)
    if not fields:
        return job
    try:
        return with_settings(job, fields, ledger.jobs.keys())
    except UsageError:
        return job


# ── Status ────────────────────────────────────────────────────────────────────────────────────────
