"""What became of an attempt that Slurm was given. Pure: sights in, verdicts out.

In this order: the record that its keeper wrote, once nothing of it was left; Slurm's word while it
waits or runs; Slurm's word of how it ended; else it is lost. A code of 0 alone is no success: a
node that failed leaves one too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Failure,
    Interrupted,
    Lost,
    NotStarted,
    Outcome,
    Signaled,
    TimedOut,
    status_of,
)
from gpulaunch.engines.slurm.reading import Row
from gpulaunch.failure.classes import advice_for
from gpulaunch.process.ends import End
from gpulaunch.process.node import SLURM_ENDED_IT
from gpulaunch.process.nodeside import Start

PATIENCE = 60.0
"""Seconds for which a record that should be there is waited for: NFS shows it late."""
LOST, UNFIT = 70, 78
"""What the node's side exits with: nobody saw how it ended; it could not be started."""
TOO_SHORT = "Write timeout:, which becomes --time; without it the partition's own limit holds."
_MEMORY = re.compile(r"exceeded (job|step)? ?memory limit|oom_kill event|oom-kill", re.I)
"""What `slurmstepd` says where it kills, or sees killed, for want of memory (its source)."""
_KILLED = (Signaled(9), Exited(137))


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of an attempt now. `row`: Slurm's, None where it knows nothing of the job.

    `over` is for how many seconds it has been over, or unknown to Slurm; `ended` for how many the
    record of its end has been there. `timeout` is the job's.
    `said`: what Slurm or the node's side said of it outside of its log. `wished`: we asked for its
    end. `success`: exit codes that are one.
    """

    row: Row | None
    start: Start | None = None
    end: End | None = None
    over: float = 0.0
    ended: float = 0.0
    timeout: float | None = None
    said: str = ""
    wished: bool = False
    success: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Waits:
    """It is in Slurm's queue; `why` in Slurm's word."""

    why: str


@dataclass(frozen=True, slots=True)
class Runs:
    """It was given its cards."""


@dataclass(frozen=True, slots=True)
class Unsure:
    """It is over, and what would tell how is awaited."""


@dataclass(frozen=True, slots=True)
class Over:
    """It ended so; `failure` is what Slurm recognised of it."""

    outcome: Outcome
    failure: Failure | None = None


Verdict: TypeAlias = Waits | Runs | Unsure | Over


def judge(sight: Sight, patience: float = PATIENCE) -> Verdict:
    """`patience`: seconds for which a record that is not to be seen may still come."""
    row = sight.row
    if sight.end is not None:
        return _recorded(sight.end.outcome, sight, patience)
    if row is not None and row.phase == "queued":
        return Waits(row.reason)
    if row is not None and row.phase == "running":
        return Runs()
    if row is not None and sight.start is None:
        if not row.node:
            return _never_began(row)
        if sight.wished:  # it was ended on its way; nothing of it begins any more
            return Over(Cancelled())
    if sight.over < patience:
        return Unsure()
    return _unrecorded(sight)


def _recorded(outcome: Outcome, sight: Sight, patience: float) -> Verdict:
    """Slurm ends all processes of a job at once, so that its end may look like one of its own."""
    row, status = sight.row, status_of(outcome)
    if not isinstance(outcome, Exited | Signaled | Interrupted) or sight.wished:
        return Over(outcome)
    if isinstance(outcome, Exited) and outcome.code in sight.success:
        return Over(outcome)
    if row is not None and row.phase != "over" and sight.ended < patience:
        return Unsure()  # Slurm is about to say whether it was its doing
    match "" if row is None else row.kind:
        case "cancelled":
            return Over(Cancelled(status))
        case "preempted":
            return Over(Interrupted("preempted by Slurm", status))
        case "node_fail" | "boot_fail" if row is not None:
            return Over(Lost(f"its node failed ({row.node})"))
        case "timeout" | "deadline":
            return _out_of_time(status, sight)
        case "failed" if outcome == Interrupted(SLURM_ENDED_IT, status):
            # It heeded the warning that its time is nearly up (`--signal` in sbatch.1).
            return _out_of_time(status, sight, said="Slurm told it to end, as before a time limit")
    return Over(outcome, _out_of_memory(sight) if outcome in _KILLED else None)


def _never_began(row: Row) -> Verdict:
    if row.kind == "dependency":
        return Over(Interrupted("what it needs did not succeed"))
    if row.kind == "cancelled":
        return Over(Cancelled())
    return Over(NotStarted(f"Slurm: {row.state}"))


def _unrecorded(sight: Sight) -> Over:
    """It left no record of its end: Slurm's word counts, where it has one."""
    row, where = sight.row, ""
    if row is None and sight.start is None and sight.wished:
        return Over(Cancelled())
    if row is None:
        return Over(Lost("Slurm knows it no longer, and it left no record of its end"))
    if node := row.node or (sight.start.node if sight.start else ""):
        where = f" ({node})"
    match row.kind:
        case "cancelled":
            return Over(Cancelled())
        case "preempted":
            return Over(Interrupted(f"preempted by Slurm{where}"))
        case "dependency":
            return Over(Interrupted("what it needs did not succeed"))
        case "timeout" | "deadline" if sight.timeout is not None:
            return Over(TimedOut("timeout", sight.timeout))
        case "node_fail" | "boot_fail":
            return Over(Lost(f"its node failed{where}"))
    if sight.start is None:
        said = f": {sight.said}" if sight.said else ""
        return Over(NotStarted(f"Slurm: {row.state}{where}{said}"))
    if memory := _out_of_memory(sight):
        return Over(Signaled(9), memory)
    status = row.status
    if row.kind in ("timeout", "deadline"):
        return _out_of_time(status, sight, f"Slurm's time limit{where}")
    if status == Exited(UNFIT):
        return Over(NotStarted(f"{sight.said or row.state}{where}"))
    if status in (None, Exited(0), Exited(LOST)):
        return Over(Lost(f"Slurm says {row.state}, and it left no record of its end{where}"))
    return Over(status)


def _out_of_time(
    status: Exited | Signaled | None, sight: Sight, said: str = "Slurm's time limit"
) -> Over:
    """At a limit that is not the job's own. A failure: it would end there again, for ever."""
    if status is None or (isinstance(status, Exited) and status.code in sight.success):
        status = Signaled(15)
    return Over(status, Failure("timeout", said, TOO_SHORT))


def _out_of_memory(sight: Sight) -> Failure | None:
    """Where Slurm, or the kernel for it, killed a job for the memory that it had."""
    said = _MEMORY.search(sight.said)
    if said is None and (sight.row is None or sight.row.kind != "out_of_memory"):
        return None
    words = f"Slurm: {said[0] if said else 'OUT_OF_MEMORY'}"
    return Failure("host_oom", words, advice_for("host_oom"))
