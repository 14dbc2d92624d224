"""Whom a run tells: as its job file says, or else as the configuration does."""

from __future__ import annotations

from gpulaunch.config.files import current
from gpulaunch.errors import Mistake
from gpulaunch.jobfile import Plan
from gpulaunch.jobfile.mistakes import spell
from gpulaunch.jobfile.notify_spec import Target


def targets_of(plan: Plan) -> tuple[Target, ...]:
    """Return whom the run is to tell."""
    return plan.notify or current().notify


def mistake_in(plan: Plan, target: Target, key: str, text: str) -> Mistake:
    """Return a mistake about a target at its place, in the job file or in the configuration.

    Shows no line: an address may be on it.
    """
    if plan.notify:
        return plan.mistake((*target.path, key), text)
    source, field = current().sources["notify"], spell((*target.path, key))
    file, _, line = source.rpartition(":")
    return Mistake(f"{source}: {field}: {text}", text, file, int(line), None, field)
