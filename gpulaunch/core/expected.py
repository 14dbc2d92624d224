"""How long each job is expected to take, from how long jobs took before.

    seconds by name ─▶ its own ─▶ else by its group (by cost, where all have one) ─▶ else by all

The guess decides the order only between jobs whose stated priority and cost are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job


def expect(jobs: Sequence[Job], seconds: Mapping[str, float]) -> tuple[Job, ...]:
    """Return the jobs with `expected` set, in seconds; unchanged where nothing is known.

    `seconds`: how long jobs of these names took. A job without a time gets its group's (one entry
    of the job file): the group's time per cost times the job's cost, where all have a cost, else
    the group's median. Where nothing is known of the group, it gets the median of all jobs.
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
