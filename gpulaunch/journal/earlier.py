"""How long jobs took in an earlier run of the same job file: a first guess for the next one.

Reads a run's journal, where that is small enough to be read before a run begins.
"""

from __future__ import annotations

from gpulaunch.errors import GpulaunchError
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RunDir, before

MOST = 8 << 20
"""Bytes of a journal: about a third of a second, and the events of some 20,000 jobs."""


def durations(run: RunDir | None) -> dict[str, float]:
    """Seconds of each job's last success, by name; nothing where there is no run to be read."""
    try:
        if run is None or run.events.stat().st_size > MOST:
            return {}
        ledger = replay(run.events)
    except (OSError, GpulaunchError):
        return {}
    return {
        job.name: attempt.seconds
        for job in ledger.jobs.values()
        for attempt in job.attempts
        if attempt.state == "succeeded"
    }


def durations_before(run: RunDir) -> dict[str, float]:
    """The same of the run of the same file before this one: what this one began with."""
    return durations(before(run))
