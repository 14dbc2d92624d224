"""How long each job is expected to take, from how long jobs took before.

    seconds by name ─▶ its own ─▶ else by its group (by cost, where all have one) ─▶ else by all

A guess for the order alone: priority and cost, which a person stated, come before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job


def expect(jobs: Sequence[Job], seconds: Mapping[str, float]) -> tuple[Job, ...]:
    """The jobs with what is expected of each, in seconds; as they are where nothing is known.

    `seconds`: how long jobs of these names took. A job that is new among others of its group (one
    entry of the job file) is taken for an ordinary one of them: their time per cost, times its own
    cost, else their median. One of a group of which nothing is known, for an ordinary one of all.
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


class _Guess:
    """What jobs of one group take that have not been run before."""

    def __init__(self, members: Sequence[tuple[Job, float]]) -> None:
        costed = all(job.cost > 0 for job, _ in members)
        cost = sum(job.cost for job, _ in members)
        self._rate = sum(took for _, took in members) / cost if costed else 0.0
        self._median = median(took for _, took in members)

    def of(self, job: Job) -> float:
        return job.cost * self._rate if job.cost > 0 and self._rate else self._median


def expect_again(jobs: Sequence[Job], ledger: Ledger) -> tuple[Job, ...]:
    """The same for a run that goes on: what it was recorded with stays, so that the order does.

    Jobs that are new in it are judged by what the others took, or were expected to.
    """
    recorded = {record.name: record.expected for record in ledger.jobs.values()}
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
