"""A run as it stands, what was measured of it, and its jobs' definitions: what `status` shows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.model import Job
from gpulaunch.journal.codec import now
from gpulaunch.journal.find import (
    durations_before,
)
from gpulaunch.journal.joblog import command_line, what_runs
from gpulaunch.journal.manifest import boot_id
from gpulaunch.journal.read import additions_in
from gpulaunch.observe.metrics.read import measured
from gpulaunch.observe.present.status import Standing
from gpulaunch.run.lookup import FoundRun
from gpulaunch.run.typed_paths import TypedPaths


def standing_of(one: FoundRun, names: Sequence[str] = (), base: str | None = None) -> Standing:
    """Return what `status` shows: the run as it stands, what was measured, its jobs' definitions.

    Its paths are as typed from `base` (`/`: absolute). `names` are the jobs that are asked for,
    whose definitions are read.
    """
    digests = {job.name: job.definition.digest for job in one.ledger.jobs.values()}
    earlier = partial(durations_before, one.run, digests)
    used, why, at = measured(one.run.metrics), one.reasons(), now()
    paths, at = TypedPaths(one.run, base), one.ledger.here(at, boot_id())
    asked = _definitions(one, names) if names else {}
    return Standing(
        one.ledger, paths, one.state, why, at, used, earlier, one.here, asked, one.suspended
    )


def _definitions(one: FoundRun, names: Sequence[str]) -> dict[str, Job]:
    """Return these jobs by name, from the run's copy of its file; none if that is lost.

    Those of jobs that were added are in the journal. Fields that a person set are as they were set,
    and memory that was learned from earlier runs is known.
    """
    from gpulaunch.run.job_list import as_set, recorded_plan

    found: dict[str, Job] = {}
    with suppress(OSError, GpulaunchError):
        gpus = [record.gpu for record in one.ledger.gpus.values()]
        plan = recorded_plan(one.run, one.run.read_manifest(), lambda _: gpus)
        found = {job.name: job for job in plan.jobs}
    with suppress(GpulaunchError):
        if any(one.ledger.jobs[name].definition.given for name in names):
            found |= {job.name: job for one in additions_in(one.run.events) for job in one.jobs}
    jobs = one.ledger.jobs
    return {
        name: replace(as_set(found[name], one.ledger), learned=jobs[name].definition.learned)
        for name in names
        if name in found
    }


def command_in(run: Standing, name: str) -> str:
    """Return a job's command, and the image that it runs in; empty if it is not known any more."""
    job = run.definitions.get(name)
    if job is None:
        return ""
    command = command_line(what_runs(job))
    return command if job.container is None else f"{command} (in {job.container.image})"
