"""Applies options to a plan that change how its jobs run, but neither file nor digests."""

from __future__ import annotations

from dataclasses import replace

from gpulaunch.jobfile.plan import Plan


def as_chosen(plan: Plan, explain: bool | None, preload: bool | None) -> Plan:
    """Return the plan with every job explained (`explain`), or started cold (`preload` False)."""
    if explain:
        plan = replace(plan, jobs=tuple(replace(job, explain=True) for job in plan.jobs))
    if preload is False:
        plan = replace(plan, jobs=tuple(replace(job, preload=()) for job in plan.jobs))
    return plan
