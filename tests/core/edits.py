"""What people may make of the list while the run lives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec.structs import replace

from gpulaunch.core.events import Relisted
from gpulaunch.core.model import Demand, Job
from tests.core.pulls import IMAGES
from tests.core.sharers import shared


class Edited:
    """A list of jobs that people change while it runs. `jobs`: as it is now.

    `containers`: what decides which of them get into containers, and out; None: none does.
    `sharers`: what decides which of them share cards from now on, and what part of them; likewise.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)
        self.containers: random.Random | None = None
        self.sharers: tuple[random.Random, float] | None = None
        self._gone: dict[str, Job] = {}
        self._changes = 0

    def change(self, rng: random.Random) -> Relisted:
        """Define some jobs otherwise, take some out, put new and old ones in; return that."""
        self._changes += 1
        demand = replace(rng.choice(self.jobs).demand, worker="")
        chosen = rng.sample(self.jobs, rng.randint(0, len(self.jobs)))
        often = rng.choice([0.0, 0.1, 0.5])
        gone = {job.name for job in self.jobs if job not in chosen and rng.random() < often}
        left = [job for job in self.jobs if job.name not in gone]
        defined = [_changed(rng, job, left, demand, gone) for job in chosen]
        names = [f"n{self._changes}-{number}" for number in range(rng.choice([0, 0, 1, 3]))]
        new = [_new(rng, name, left, demand) for name in names]
        back = [self._gone.pop(name) for name in list(self._gone) if rng.random() < 0.5]
        self._gone |= {job.name: job for job in self.jobs if job.name in gone}
        if _is_cyclic([*self.jobs, *self._gone.values(), *new, *back, *defined]):
            defined = [replace(job, needs=(), after=()) for job in defined]
        boxed = [self._boxed(job) for job in (*defined, *new, *back)]
        newest = {job.name: job for job in boxed}
        self.jobs = tuple(newest.get(job.name, job) for job in (*left, *new, *back))
        if not self.jobs:
            gone.discard("last")
            self.jobs = (Job("last", "true"),)
            newest["last"] = self.jobs[0]
        return Relisted(tuple(newest.values()), tuple(sorted(gone - newest.keys())))

    def _boxed(self, job: Job) -> Job:
        if self.sharers is not None and self.sharers[0].random() < 0.3:
            job = shared(job, *self.sharers)
        if self.containers is None or self.containers.random() < 0.6:
            return job
        return replace(job, container=self.containers.choice([None, *IMAGES]))


def _is_cyclic(jobs: Sequence[Job]) -> bool:
    """Whether some would wait for each other, which no list may have. The last of a name counts."""
    try:
        TopologicalSorter({job.name: (*job.needs, *job.after) for job in jobs}).prepare()
    except CycleError:
        return True
    return False


def _changed(
    rng: random.Random, job: Job, jobs: Sequence[Job], demand: Demand, gone: set[str]
) -> Job:
    """The same job with another priority, and perhaps another demand or other needs."""
    changed = replace(job, priority=rng.randint(0, 5), digest="v2")
    changed = replace(changed, needs=tuple(n for n in job.needs if n not in gone))
    if rng.random() < 0.5:
        changed = replace(changed, demand=demand)
    if rng.random() < 0.3:
        before = [other.name for other in jobs[: jobs.index(job)]]
        needs = rng.sample(before, min(len(before), rng.randint(0, 2)))
        rest = [name for name in before if name not in needs]
        after = rng.sample(rest, min(len(rest), rng.randint(0, 1)))
        changed = replace(changed, needs=tuple(needs), after=tuple(after))
    return changed


def _new(rng: random.Random, name: str, jobs: Sequence[Job], demand: Demand) -> Job:
    known = [job.name for job in jobs]
    needs = rng.sample(known, min(len(known), rng.choice([0, 0, 1, 2])))
    return Job(name, "true", demand=demand, needs=tuple(needs), priority=rng.randint(0, 5))
