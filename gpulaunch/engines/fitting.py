"""Whether jobs of a plan can run on these cards at all. Looks; starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpulaunch.core.model import Job
from gpulaunch.engines import strict
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import Mistake
from gpulaunch.jobfile import scheduler_support
from gpulaunch.jobfile.plan import Plan


def mistakes(plan: Plan, jobs: Sequence[Job], pool: CardPool) -> list[Mistake]:
    """Mistakes of the file, one each, for every job of `jobs` that can never run there."""
    if pool.engine == "slurm":
        return scheduler_support.unfit(plan, jobs, pool.limit)
    if found := replace(plan, jobs=tuple(jobs)).unplaceable(pool.gpus, pool.size):
        return found
    wanting = [job for job in jobs if job.isolation == "strict"]
    if wanting and (why := strict.refusal(pool.gpus)):
        return [plan.mistake(("jobs", wanting[0].group, "isolation"), why)]
    return []
