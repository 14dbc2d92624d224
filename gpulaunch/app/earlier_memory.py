"""Compares the `memory:` of a list with what its jobs took in earlier runs, for `check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path

from msgspec import Struct

from gpulaunch.core.model import Job
from gpulaunch.journal.earlier import RUNS
from gpulaunch.journal.finding import runs_of, working_directory
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import size

LITTLE = 3
"""A job that took less than this part of its memory reserves too much of it ..."""
WORTH_SAYING = 1 << 30
"""... where others could have so many bytes more."""


class MemoryPeak(Struct, frozen=True):
    """The most resident memory that a job's attempts took in a run."""

    memory: int
    run: str


def notes(jobs: Sequence[Job], job_file: Path) -> Iterator[str]:
    """Yield a line for each entry whose `memory:` does not fit its jobs' peaks in earlier runs."""
    if any(job.demand.memory for job in jobs):
        yield from compared(jobs, peaks_in(islice(runs_of(job_file, working_directory()), RUNS)))


def peaks_in(runs: Iterable[RunDir]) -> dict[str, MemoryPeak]:
    """Return the highest peak of each job in these runs, by name."""
    from gpulaunch.metrics.read import open_metrics

    found: dict[str, MemoryPeak] = {}
    for run in runs:
        reader = open_metrics(run.metrics)
        if reader is None:
            continue
        with reader:
            for attempt, use in reader.uses().items():
                most, known = use.peak_resident or 0, found.get(attempt.job)
                if most and (known is None or most > known.memory):
                    found[attempt.job] = MemoryPeak(most, run.path.name)
    return found


def compared(jobs: Sequence[Job], peaks: Mapping[str, MemoryPeak]) -> Iterator[str]:
    """Yield a line for each entry that reserves too little for one of its jobs, or much too much.

    What several processes of a job share counts for each of them in a peak.
    """
    for _, entry in groupby(jobs, key=lambda job: job.group):
        known = [(job, peaks[job.name]) for job in entry if job.demand.memory and job.name in peaks]
        if not known:
            continue
        job, peak = max(known, key=lambda pair: pair[1].memory / pair[0].demand.memory)
        memory = job.demand.memory
        of_all = f", the most of {len(known)} such jobs" if len(known) > 1 else ""
        took = f"{size(peak.memory)} in {peak.run}{of_all}"
        if peak.memory > memory:
            yield f"memory: {job.name} reserves {size(memory)}, and took up to {took}"
        elif peak.memory * LITTLE < memory and memory - peak.memory > WORTH_SAYING:
            yield f"memory: {job.name} reserves {size(memory)}, and took no more than {took}"
