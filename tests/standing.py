"""A user's queue with made-up facts behind it, in a directory of the test's choice; its supervisor.

python -m tests.standing RUN_DIRECTORY [AT KEEP]     its supervisor; AT, KEEP: see ARCHIVE_AT
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptLaunched,
    AttemptStarted,
    Fact,
    GpuChanged,
    JobAdded,
    JobSettled,
    RunClosed,
    RunOpened,
)
from gpulaunch.core.model import AttemptId, End, Exited, Gpu, Instant, Job
from gpulaunch.jobfile.plan import EMPTY
from gpulaunch.journal import codec, manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.given import facts_of
from gpulaunch.journal.rundir import RunDir, new_run_id

CARD = Gpu("GPU-sim-0", 0, "sim/0", "pretend", 80 << 30, simulated=True)


def made(directory: Path) -> tuple[RunDir, Journal]:
    """The run, just begun, and its journal, which is open."""
    when = datetime.now().astimezone()
    run, id = RunDir.create(directory, "queue", when, directory / "run"), new_run_id(when)
    (run.path / "jobs.yaml").write_bytes(EMPTY)
    began = codec.iso(when.timestamp())
    line = ["gpulaunch", "queue"]
    told = manifest.collect(id, "queue", started=began, command=line, job_file=None, gpus=(CARD,))
    manifest.write(run.manifest, told)
    opened = RunOpened(
        id, "queue", 1, "0", manifest.hostname(), manifest.boot_id(), 1, (CARD,), True,
        standing="queue",
    )  # fmt: skip
    journal = Journal.create(run)
    assert journal.append([(opened, codec.now())])
    return run, journal


def over(name: str, at: float, state: str = "succeeded") -> Iterator[tuple[Fact, Instant]]:
    """The facts of a job that was added, ran for a second at that time, and is over."""
    attempt = AttemptId(name, 1)
    job = Job(name, ("true", "train.py", "--seed", name), cwd="/", given=True)
    end = End(Exited(0 if state == "succeeded" else 1))
    for step, fact in enumerate(
        [
            *facts_of(f"{hash(name):x}", [job]),
            JobAdded(name, 1 << 20, 1, job.digest, given=True),
            GpuChanged(CARD.uuid, "leased"),
            AttemptLaunched(attempt, (CARD.uuid,)),
            AttemptStarted(attempt, 4711),
            AttemptEnded(attempt, end, charged=True),
            JobSettled(name, state),  # type: ignore[arg-type]
            GpuChanged(CARD.uuid, "free"),
        ]
    ):
        yield fact, Instant(round(at + step / 10, 6), round(1.7e9 + at + step / 10, 6))


def closed(journal: Journal, at: float) -> None:
    assert journal.append([(RunClosed("stopped"), Instant(at, 1.7e9 + at))])
    journal.close()


def supervise(directory: Path, archive: Sequence[int]) -> int:
    """Go on with the run until it is told to finish; its exit status."""
    from gpulaunch.app import archiving, resuming, session
    from gpulaunch.app.options import RunOptions
    from gpulaunch.journal.choices import Choices

    if archive:
        real = archiving.Archiver
        session.Archiver = lambda *args: real(*args, *archive)  # type: ignore[misc, assignment]
    return resuming.resume(directory, RunOptions(choices=Choices(simulate=1), standing=True)).status


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]))
