"""What people may have made of the job file meanwhile."""

from __future__ import annotations

import random

from msgspec.structs import replace

from gpulaunch.core.events import RetriedAnew
from gpulaunch.core.model import Job


def retried_anew(rng: random.Random, jobs: tuple[Job, ...]) -> RetriedAnew:
    """A retry after somebody edited the file: some jobs are defined otherwise, one may be gone."""
    chosen = rng.sample(jobs, rng.randint(0, len(jobs)))
    demand = replace(rng.choice(jobs).demand, worker="")
    defined = [
        replace(job, demand=demand, priority=rng.randint(0, 5), digest="v2") for job in chosen
    ]
    gone = {job.name for job in jobs if job not in chosen and rng.random() < 0.05}
    names = rng.choice([None, tuple(job.name for job in chosen)])
    return RetriedAnew(names, tuple(defined), tuple(sorted(gone)))
