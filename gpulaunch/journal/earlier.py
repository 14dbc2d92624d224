"""How long jobs took in earlier runs of the same job file: a first guess for the next one.

Reads a run's journal, where that is small enough to be read before a run begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from gpulaunch.errors import GpulaunchError
from gpulaunch.journal.finding import before
from gpulaunch.journal.read import replay
from gpulaunch.journal.rundir import RunDir

MAX_JOURNAL_BYTES = 8 << 20
"""Bytes of a journal that is read: a third of a second, and the events of some 20,000 jobs."""


RUNS = 3
"""Earlier runs that are read at most: the newest may have been stopped before it had begun."""


def durations_of(runs: Iterable[RunDir], digests: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds of each job's last success in these runs, which come newest first.

    Reads as many of them as are small enough together. `digests` as for `durations`.
    """
    found: dict[str, float] = {}
    room = MAX_JOURNAL_BYTES
    for run in islice(runs, RUNS):
        found = durations(run, room, digests) | found
        room -= _size(run)
    return found


def durations(
    run: RunDir | None, most: int | None = None, digests: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Return the seconds of each job's last success, by name; none where no run can be read.

    `most`: bytes of its journal at most. `digests`: those of the jobs as they are now, by name;
    only successes under these definitions count.
    """
    try:
        if run is None or _size(run) > (MAX_JOURNAL_BYTES if most is None else most):
            return {}
        ledger = replay(run.events)
    except (OSError, GpulaunchError):
        return {}
    return {
        job.name: attempt.seconds
        for job in ledger.jobs.values()
        for attempt in job.attempts
        if attempt.state == "succeeded"
        and (digests is None or digests.get(job.name) == attempt.digest)
    }


def durations_before(run: RunDir, digests: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return the seconds of each job in the run of the same file before this one, by name.

    These were what this run's expectations began with.
    """
    earlier = before(run)
    if earlier is None or _size(run) > MAX_JOURNAL_BYTES:
        return {}
    return durations(earlier, digests=_digests(run) if digests is None else digests)


def _digests(run: RunDir) -> dict[str, str]:
    try:
        return {job.name: job.definition.digest for job in replay(run.events).jobs.values()}
    except (OSError, GpulaunchError):
        return {}


def _size(run: RunDir) -> int:
    try:
        return run.events.stat().st_size
    except OSError:
        return 0
