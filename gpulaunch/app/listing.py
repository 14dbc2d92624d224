"""The list of a live run, and how it changes: by its job file, by additions, by settings.

    job file, read anew ──┐
    jobs that are added ──┼─▶ RunList: what is wrong with it ─▶ Relisted, for the core
    fields that are set ──┘

Decides nothing that the core decides, records nothing and answers nobody (`answering`).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.app.checks import misfits
from gpulaunch.app.contained import uncontainable
from gpulaunch.app.lookup import with_needs
from gpulaunch.app.rereading import RefusedError
from gpulaunch.core.events import Relisted
from gpulaunch.core.expected import expect_again
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.core.relisting import ListChange
from gpulaunch.core.run import Run
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import JobFileError, UsageError
from gpulaunch.jobfile import Plan, scheduler_support
from gpulaunch.jobfile.needs import find_cycles, spell_cycle
from gpulaunch.jobfile.plan import why_never
from gpulaunch.jobfile.settings import with_settings
from gpulaunch.journal.jobs import additions_in
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import listing

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
