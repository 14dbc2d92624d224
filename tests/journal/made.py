"""Runs as `run` leaves them, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from gpulaunch.core.causes import Quoted
from gpulaunch.core.facts import AttemptLaunched, Fact, RunClosed
from gpulaunch.core.model import AttemptId
from gpulaunch.journal import codec, manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.rundir import RunDir, new_run_id
from tests.journal.facts import added, opened

WHEN = datetime(2026, 11, 20, 7, 42, 15)
STARTED: tuple[Fact, ...] = (added("a"), AttemptLaunched(AttemptId("a", 1), ("GPU-0",)))
NOTHING_STARTED: tuple[Fact, ...] = (
    added("a"),
    RunClosed("stopped", Quoted("no card came free"), 3),
)


def made(
    cwd: Path,
    name: str = "fold",
    seconds: int = 0,
    job_file: str | Path = "jobs.yaml",
    facts: Sequence[Fact] = STARTED,
) -> RunDir:
    """A run begun so many seconds after the others: directory, manifest, journal with `facts`."""
    when = WHEN + timedelta(seconds=seconds)
    run, id = RunDir.create(cwd, name, when), new_run_id(when)
    with Journal.create(run) as journal:
        journal.append([(fact, codec.now()) for fact in (opened(run=id, name=name), *facts)])
    collected = manifest.collect(
        id,
        name,
        started=codec.iso(when.timestamp()),
        command=["gpulaunch", "run", str(job_file)],
        job_file=cwd / job_file,
    )
    manifest.write(run.manifest, collected)
    return run
