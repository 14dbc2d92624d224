"""What a resume or a retry runs again, from a run's ledger and its job file as it is now.

Also how long each job is expected to take, and how much memory, from what jobs took before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core import job_list
from gpulaunch.core.graph import reached
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import BAD_STATES, Job
from gpulaunch.core.state import State


class ChangedJobs(Struct, frozen=True):
    """Jobs that succeeded, and whose result is not what they would come to now: counts, for people.

    `redefined` have another definition by now, `inputs` another input file; `behind` need one of
    these, and are counted only where all of them run `again`. `after`: jobs that came after one of
    these, and stay as they are.
    """

    redefined: int = 0
    inputs: int = 0
    behind: int = 0
    again: bool = False
    after: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return self.redefined + self.inputs + self.behind

    def __str__(self) -> str:
        return ", ".join(
            f"{number:,} {what}"
            for number, what in (
                (self.redefined, "redefined"),
                (self.inputs, "with a changed input"),
                (self.behind, "that need those"),
            )
            if number
        )


class ResumePlan(Struct, frozen=True):
    """What a resumed run does with its jobs.

    `jobs` are to be submitted; `requeue` names settled ones of them that wait again, `left` those
    that are left as they are, and `over` those that have succeeded. The numbers are counts of jobs,
    for people; `in_flight` are in an engine's queue, or run from there. `unrecorded` have not
    succeeded and are no longer in the file, and the journal does not say so yet.
    """

    jobs: tuple[Job, ...]
    requeue: frozenset[str]
    left: frozenset[str]
    over: frozenset[str]
    to_rerun: int
    new: int
    changed: ChangedJobs
    vanished: int
    in_flight: int = 0
    unrecorded: int = 0

    @property
    def to_do(self) -> list[Job]:
        """The jobs that are neither done nor left, and every service: it may have to run again."""
        settled = self.left | self.over
        return [job for job in self.jobs if job.name not in settled or job.service is not None]

    @property
    def nothing(self) -> bool:
        return not (self.to_rerun or self.new or self.in_flight or self.unrecorded)

    def __str__(self) -> str:
        changed = self.changed
        why = f" (of these {changed})" if changed.again and changed.count else ""
        parts = [f"{len(self.over):,} done", f"{self.to_rerun:,} again{why}"]
        if self.in_flight:
            parts.insert(1, f"{self.in_flight:,} under way")
        if self.new:
            parts.append(f"{self.new:,} new")
        if changed.count and not changed.again:
            kinds = f" ({changed})" if changed.inputs else ""
            parts.append(f"{changed.count:,} done but changed{kinds}")
        if self.vanished:
            parts.append(f"{self.vanished:,} no longer in the file")
        if self.left:
            parts.append(f"{len(self.left):,} left as they are")
        return ", ".join(parts)


def resume(
    ledger: Ledger,
    jobs: Sequence[Job],
    among: Collection[str] | None = None,
    changed_too: bool = False,
    other_inputs: Collection[str] = (),
) -> ResumePlan:
    """Plan to run all jobs of `among` (None: of the file) that are new or have not succeeded.

    `changed_too`: also those that succeeded under another definition than they have now, or with
    another input (`other_inputs` names these), and all that need one of them.
    """
    stale, changed = _changed(ledger, jobs, among, changed_too, other_inputs)
    requeue, left, over, taken = set(), set(), set(), []
    again = new = going = 0
    for job in jobs:
        record = ledger.jobs.get(job.name)
        wanted = among is None or job.name in among
        if record is None and not wanted:
            continue
        taken.append(job)
        if record is None:
            new += 1
            continue
        if record.state == "succeeded" and job.name not in stale:
            over.add(job.name)
        elif not wanted:
            left.add(job.name)
        elif record.goes_on:
            going += 1
        else:
            again += 1
            if record.settled is not None:
                requeue.add(job.name)
    names = {job.name for job in jobs}
    lost = [record for record in ledger.jobs.values() if record.name not in names]
    unrecorded = sum(not record.vanished and record.state != "succeeded" for record in lost)
    return ResumePlan(
        tuple(taken),
        frozenset(requeue),
        frozenset(left),
        frozenset(over),
        again,
        new,
        changed,
        len(lost),
        going,
        unrecorded,
    )


def _changed(
    ledger: Ledger,
    jobs: Sequence[Job],
    among: Collection[str] | None,
    again: bool,
    other_inputs: Collection[str],
) -> tuple[frozenset[str], ChangedJobs]:
    """Return the jobs that succeeded and run again for a change, and how many changed how."""
    done = {record.name: record for record in ledger.jobs.values() if record.state == "succeeded"}
    redefined = {
        job.name
        for job in jobs
        if job.name in done and done[job.name].succeeded_as not in ("", job.digest)
    }
    inputs = (done.keys() & set(other_inputs)) - redefined
    if not again:
        return frozenset(), ChangedJobs(len(redefined), len(inputs))
    wanted = done.keys() if among is None else done.keys() & set(among)
    redefined, inputs = redefined & wanted, inputs & wanted
    dependants: dict[str, list[str]] = {}
    for job in jobs:
        for need in job.needs:
            dependants.setdefault(need, []).append(job.name)
    stale = reached(redefined | inputs, lambda name: dependants.get(name, ())).keys() & wanted
    behind = len(stale) - len(redefined) - len(inputs)
    kept = (job for job in jobs if job.name in wanted and job.name not in stale)
    after = tuple(job.name for job in kept if not stale.isdisjoint(job.after))
    return frozenset(stale), ChangedJobs(len(redefined), len(inputs), behind, True, after)


def starts(ledger: Ledger, chosen: ResumePlan) -> list[Job]:
    """Return the jobs that this plan would run, without those that would be skipped at once.

    Submits them to the core, which decides. Changes `ledger`, which is of no further use.
    """
    ledger.cut_off()
    state = State.new(ledger)
    job_list.submit(state, chosen.jobs, chosen.requeue, chosen.left)
    job_list.retire_unneeded(state)
    return [node.job for node in state.jobs if node.waits]


def retried(
    ledger: Ledger, jobs: Sequence[Job], names: Collection[str] | None = None
) -> frozenset[str]:
    """Return the names of the jobs that a retry runs again.

    These are the jobs that failed, or those of `names` that did not succeed with what keeps them
    from running; and what was skipped because of any of these.
    """
    states = {record.name: record.state for record in ledger.jobs.values()}
    if names is None:
        found = {name for name, state in states.items() if state == "failed"}
    else:
        found = {name for name in names if states.get(name, "succeeded") != "succeeded"}
    skipped = [job for job in jobs if states.get(job.name) == "skipped"]
    needs = {job.name: [n for n in job.needs if states.get(n) in BAD_STATES] for job in skipped}
    dependants: dict[str, list[str]] = {}
    for job in skipped:
        for need in job.needs:
            dependants.setdefault(need, []).append(job.name)
    below = reached(found, lambda name: needs.get(name, ()))
    return frozenset(reached(below, lambda name: dependants.get(name, ())))


# ── What a job is expected to take ────────────────────────────────────────────────────────────────


def expect(jobs: Sequence[Job], seconds: Mapping[str, float]) -> tuple[Job, ...]:
    """Return the jobs with `expected` set, in seconds; unchanged where nothing is known.

    `seconds`: how long jobs of these names took. A job without a time gets its group's (one entry
    of the job file): the group's time per cost times the job's cost, where all have a cost, else
    the group's median. Where nothing is known of the group, it gets the median of all jobs. The
    guess decides the order only between jobs whose stated priority and cost are equal.
    """
    known = [(job, seconds[job.name]) for job in jobs if seconds.get(job.name, 0.0) > 0.0]
    if not known:
        return tuple(jobs)
    groups: defaultdict[int, list[tuple[Job, float]]] = defaultdict(list)
    for job, took in known:
        groups[job.group].append((job, took))
    guesses = {group: _Guess(members) for group, members in groups.items()}
    any_other = median(took for _, took in known)

    def of(job: Job) -> float:
        if seconds.get(job.name, 0.0) > 0.0:
            return seconds[job.name]
        return guesses[job.group].of(job) if job.group in guesses else any_other

    return tuple(replace(job, expected=round(of(job), 3)) for job in jobs)


def expect_memory(jobs: Sequence[Job], peaks: Mapping[str, int]) -> tuple[Job, ...]:
    """Return the jobs with `learned` set where their memory is learned.

    `peaks`: bytes that jobs of these names took of a card at most. A kind takes what the largest of
    its jobs took.
    """
    most: dict[int, int] = {}
    for job in jobs:
        if job.demand.kind is not None:
            most[job.demand.kind] = max(most.get(job.demand.kind, 0), peaks.get(job.name, 0))
    if not any(most.values()):
        return tuple(jobs)
    return tuple(
        replace(job, learned=most[job.demand.kind]) if job.demand.kind is not None else job
        for job in jobs
    )


def median(values: Iterable[float]) -> float:
    """Return the middle one of the values, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2


class _Guess:
    """The expected time of a new job of one group, from those of the group with a known time."""

    def __init__(self, members: Sequence[tuple[Job, float]]) -> None:
        costed = all(job.cost > 0 for job, _ in members)
        cost = sum(job.cost for job, _ in members)
        self._rate = sum(took for _, took in members) / cost if costed else 0.0
        self._median = median(took for _, took in members)

    def of(self, job: Job) -> float:
        return job.cost * self._rate if job.cost > 0 and self._rate else self._median


def expect_again(jobs: Sequence[Job], ledger: Ledger) -> tuple[Job, ...]:
    """Return the jobs of a resumed run with `expected` and `learned` set.

    Recorded jobs keep the first, so that the order stays. New jobs are judged by what the others
    took, or were expected to take.
    """
    earlier = {record.name: record.definition.learned for record in ledger.jobs.values()}
    jobs = expect_memory(jobs, earlier)
    recorded = {record.name: record.definition.expected for record in ledger.jobs.values()}
    took = {
        record.name: attempt.seconds
        for record in ledger.jobs.values()
        for attempt in record.attempts
        if attempt.state == "succeeded"
    }
    guessed = expect(jobs, recorded | took)
    return tuple(
        replace(job, expected=recorded[job.name]) if job.name in recorded else job
        for job in guessed
    )
