"""The files that nodes read: the programs that run there, and a ticket for each attempt.

Job ─prepare─▶ Command, with slots for what only the node knows ─▶ ticket ─▶ node
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import AttemptPlace
from gpulaunch.engines.prepare import NotPreparedError, OutputDirs, prepare, scope, wants_port
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.farside.launch import Ticket
from gpulaunch.files import read_bytes
from gpulaunch.files import replace as replace_file
from gpulaunch.process.command import NodeSlots
from gpulaunch.process.native import find_keepers
from gpulaunch.process.nodeside import NodeStart, read_start, write_ticket
from gpulaunch.process.programs import archived


def lay_out(run: SlurmDir) -> None:
    """Make the directories and write the nodes' programs. May be repeated.

    Raises OSError, and KeepersError where there are none.
    """
    run.slurm.mkdir(mode=0o700, exist_ok=True)
    for folder in (run.batch_lists, run.tickets, run.starts, run.stops, run.said):
        folder.mkdir(mode=0o700, exist_ok=True)
    _lay_out_keepers(run)
    before = read_bytes(run.node_program) if run.node_program.exists() else b""
    if (program := archived(before)) != before:
        replace_file(run.node_program, program)


def _lay_out_keepers(run: SlurmDir) -> None:
    """Copy the keepers of each architecture, before the archive that nodes wait for."""
    for program in Path(find_keepers()).parent.glob("keeper-*"):
        place, data = run.keepers(program.name.partition("-")[2]), program.read_bytes()
        if not place.exists() or read_bytes(place) != data:
            replace_file(place, data, mode=0o700)


def write(launch: Launch, context: RunContext, outs: OutputDirs) -> None:
    """Write the attempt's ticket, and make the directories and files that it needs.

    Slurm itself passes the launcher's environment on: the ticket holds values of it only inside the
    job's own variables.

    Raises OSError, and GpulaunchError where the attempt cannot be started as the job says.
    """
    job, attempt, run = launch.job, launch.attempt, SlurmDir(context.run.path)
    start = read_start(run.start(attempt))
    if isinstance(start, NodeStart):
        # A power cut took the start from the journal; the attempt keeps its log and its end.
        where = f"as Slurm job {start.job} on node {start.node}"
        raise NotPreparedError(f"{attempt} was started before, {where}, and that was forgotten")
    for left in (run.start(attempt), run.stop(attempt)):
        with suppress(FileNotFoundError):
            os.unlink(left)  # left by an attempt that was stopped before it began, and forgotten
    slots = NodeSlots.fresh(job.demand.gpus)
    place = AttemptPlace(
        gpus=(),
        style="index",
        scope=scope(context.run_id, attempt),
        master_port=slots.master_port,
        run=context.run_id,
        run_dir=str(run.path),
        attempt=attempt.number,
        out=str(run.out(attempt)),
        keep=context.run.keep_dir(attempt.job),
        port=slots.port if wants_port(job) else None,
        step=launch.step.number if launch.step is not None else None,
        slots=slots,
    )
    command = prepare(launch, place, context, outs)
    write_ticket(run.ticket(attempt), command, slots, list(map(str, launch.after)))


def job_of(attempt: AttemptId, run: SlurmDir) -> Job | None:
    """Return the job as an earlier launcher's ticket has it: limits and codes of success alone.

    None: the ticket cannot be read, as one of another version of gpulaunch.
    """
    try:
        told = Ticket(read_bytes(run.ticket(attempt))).order
    except FileNotFoundError:  # the attempt ended, but its launcher died before it recorded that
        return Job(attempt.job, ())
    except ValueError:
        return None
    return Job(
        attempt.job,
        (),
        timeout=told.timeout,
        grace=told.grace,
        success_codes=frozenset(told.success_codes),
    )
