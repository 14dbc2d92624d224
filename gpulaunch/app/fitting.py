"""Finds the jobs of a plan that can never run on these cards. Starts nothing."""

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
    """Return a mistake of the file for each of `jobs` that can never run on the pool's cards."""
    if pool.queueing:
        return scheduler_support.unfit(plan, jobs, pool.limit)
    if found := replace(plan, jobs=tuple(jobs)).unplaceable(pool.gpus, pool.size):
        return found
    wanting = [job for job in jobs if job.isolation == "strict"]
    if wanting and (why := strict.refusal(pool.gpus)):
        return [plan.mistake(("jobs", wanting[0].group, "isolation"), why)]
    return []
