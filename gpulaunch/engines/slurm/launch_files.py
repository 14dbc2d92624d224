"""What a run leaves its nodes: the shim, and a ticket for each attempt.

Job ─prepare─▶ Command, with marks for what only the node can tell ─▶ ticket ─▶ node.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.environment import AttemptPlace, MachineLimits
from gpulaunch.engines.prepare import NotPreparedError, OutputDirs, prepare, scope, wants_port
from gpulaunch.files import read_bytes
from gpulaunch.journal.rundir import RunDir
from gpulaunch.process.command import NodeSlots
from gpulaunch.process.nodeside import PROGRAMS, NodeStart, put, read_start, write_ticket


def lay_out(run: RunDir) -> None:
    """Directories, and the programs that run on a node. May be repeated. Raises OSError."""
    run.slurm.mkdir(mode=0o700, exist_ok=True)
    for folder in (run.batch_lists, run.tickets, run.starts, run.stops, run.said):
        folder.mkdir(mode=0o700, exist_ok=True)
    for program in PROGRAMS:
        data = program.read_bytes()
        place = run.slurm / program.name
        if not (place.exists() and read_bytes(place) == data):
            put(place, data)


def write(
    job: Job,
    attempt: AttemptId,
    base_environ: Mapping[str, str],
    run: RunDir,
    run_id: str,
    machine: MachineLimits,
    outs: OutputDirs,
    after: Sequence[AttemptId] = (),
) -> None:
    """Make what the attempt needs on disk, and its ticket. `base_environ` is what Slurm is told to
    hand on; its values are not in the ticket, but where the job's variables are made of them.
    `after`: attempts under way that have to succeed first.

    Raises OSError, and GpulaunchError where the attempt cannot be started as the job says.
    """
    start = read_start(run.start(attempt))
    if isinstance(start, NodeStart):
        # What a power cut took from the journal is known here: it keeps its log and its end.
        where = f"as Slurm job {start.job} on node {start.node}"
        raise NotPreparedError(f"{attempt} was started before, {where}, and that was forgotten")
    for left in (run.start(attempt), run.stop(attempt)):
        with suppress(FileNotFoundError):
            os.unlink(left)  # likewise: of one that was stopped before it began
    slots = NodeSlots.fresh(job.demand.gpus)
    command = prepare(
        job, attempt, _place(job, attempt, run, run_id, slots), machine, base_environ, run, outs
    )
    write_ticket(run.ticket(attempt), command, slots, list(map(str, after)))


def _place(
    job: Job, attempt: AttemptId, run: RunDir, run_id: str, slots: NodeSlots
) -> AttemptPlace:
    return AttemptPlace(
        gpus=(),
        style="index",
        scope=scope(run_id, attempt),
        master_port=slots.master_port,
        run=run_id,
        run_dir=str(run.path),
        attempt=attempt.number,
        out=str(run.out(attempt)),
        port=slots.port if wants_port(job) else None,
        slots=slots,
    )


def job_of(attempt: AttemptId, run: RunDir) -> Job:
    """What an earlier launcher's ticket tells of the job: limits, and what counts as success."""
    try:
        limits = json.loads(read_bytes(run.ticket(attempt)))["keeper"]
    except FileNotFoundError:  # it ended, and that was not written down any more
        return Job(attempt.job, ())
    return Job(
        attempt.job,
        (),
        timeout=limits["timeout"],
        grace=limits["grace"],
        success_codes=frozenset(limits["success_codes"]),
    )


def forget(attempt: AttemptId, run: RunDir) -> None:
    """It has ended: the ticket holds values of variables, which nobody needs any more."""
    with suppress(OSError):
        os.unlink(run.ticket(attempt))
