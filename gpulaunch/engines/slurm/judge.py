"""What became of an attempt that Slurm was given. Pure: sights in, verdicts out.

In this order: the record that its keeper wrote, once nothing of it was left; Slurm's word while it
waits or runs; Slurm's word of how it ended; else it is lost. A code of 0 alone is no success: a
node that failed leaves one too.

Slurm may begin a job anew, under its old number: after preemption, a node's failure, `scontrol
requeue`, or when a controller that was killed comes back with what it last wrote, and knows of no
start. An attempt is not begun twice (its claim sees to that), so what Slurm says then is about
nothing of ours: whatever the first start left behind counts, and it was interrupted where Slurm
ended it. Three things tell of it: the job waits although the attempt was claimed; it was requeued
since the claim (`restarts`); it exited with 75.

What cannot be told from Slurm's text: who cancelled what never began. `scancel` and Slurm itself
(22.05 cancels a whole array where one task's launch is refused as already killed) leave the same
row, without a name; it is taken for a person's. Neither can a node's failure be told from a
requeue that left no trace: it is taken for the former, which is bounded.
"""

from __future__ import annotations

import errno
import os
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
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.failure.classes import advice_for
from gpulaunch.process.ends import End
from gpulaunch.process.node import SLURM_ENDED_IT
from gpulaunch.process.nodeside import NodeStart

NFS_VISIBILITY_TIMEOUT = 60.0
"""Seconds for which a record that should be there is waited for: NFS shows it late."""
LOST, NO_ROOM, STARTED_BEFORE, UNFIT = 70, 73, 75, 78
"""What the node's side exits with: nobody saw how it ended; the run's disk was full before it
began; another start counts; it could not be started."""
REQUEUED = "requeued by Slurm"
FORGOTTEN = "Slurm forgot it before it began"
MORE_MEMORY = "Slurm gives what --mem asks for: engine: {slurm: {extra: [--mem=64G]}}."
TOO_SHORT = "Write timeout:, which becomes --time; without it the partition's own limit holds."
_MEMORY = re.compile(r"exceeded (job|step)? ?memory limit|oom_kill event|oom-kill", re.I)
"""What `slurmstepd` says where it kills, or sees killed, for want of memory (its source)."""
_KILLED = (Signaled(9), Exited(137))
_ENDED = re.compile(r"CANCELLED AT \S+(?: DUE TO (PREEMPTION))?")
"""What `slurmstepd` says before it ends a job for its controller (its source). Of a node whose
controller has forgotten the job it is killed without a word."""
_STUCK = re.compile(r"launch.fail|retrieval.failed|special.exit", re.I)
"""Reasons for which Slurm holds a job that it could not begin: it never would by itself."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of an attempt now. `row`: Slurm's, None where it knows nothing of the job.

    `over` is for how many seconds it has been over, or unknown to Slurm; `ended` for how many the
    record of its end has been there. `timeout` is the job's.
    `said`: what Slurm or the node's side said of it outside of its log. `wished`: we asked for its
    end. `recalled`: why we took it out of Slurm's queue, where nobody wished for its end.
    `asked`: Slurm was asked for it. `preempted`: Slurm said once that it makes room. `success`:
    exit codes that are one.
    """

    row: QueueRow | None
    start: NodeStart | None = None
    end: End | None = None
    over: float = 0.0
    ended: float = 0.0
    timeout: float | None = None
    said: str = ""
    wished: bool = False
    recalled: str = ""
    asked: bool = True
    preempted: bool = False
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


def judge(sight: Observation, patience: float = NFS_VISIBILITY_TIMEOUT) -> Verdict:
    """`patience`: seconds for which a record that is not to be seen may still come."""
    row = sight.row
    if sight.end is not None:
        return _recorded(sight.end, sight, patience)
    if row is not None and row.phase == "queued" and not (sight.recalled and sight.start):
        return Waits(row.reason)
    if row is not None and row.phase == "running":
        return Runs()
    if row is not None and sight.start is None:
        if not row.node:
            return _never_began(row, "" if sight.wished else sight.recalled)
        if sight.wished:  # it was ended on its way; nothing of it begins any more
            return Over(Cancelled())
        if row.status == Exited(NO_ROOM):
            return _no_room(row)
    if sight.over < patience:
        return Unsure()
    return _unrecorded(sight)


def _recorded(end: End, sight: Observation, patience: float) -> Verdict:
    """Slurm ends all processes of a job at once, so that its end may look like one of its own."""
    row, outcome, status = sight.row, end.outcome, status_of(end.outcome)
    if isinstance(outcome, NotStarted) and end.no_space and not sight.wished:
        return Over(Interrupted(outcome.error))
    if not isinstance(outcome, Exited | Signaled | Interrupted) or sight.wished:
        return Over(outcome)
    if isinstance(outcome, Exited) and outcome.code in sight.success:
        return Over(outcome)
    if _began_anew(sight):
        return _before_that(outcome, sight)
    if sight.ended < patience and (row.phase != "over" if row else not sight.asked):
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
        case "failed" if sight.preempted:  # it heeded a warning of that (preempt_send_user_signal)
            return Over(Interrupted("preempted by Slurm", status))
        case "failed" if outcome == Interrupted(SLURM_ENDED_IT, status):
            # It heeded the warning that its time is nearly up (`--signal` in sbatch.1).
            return _out_of_time(status, sight, said="Slurm told it to end, as before a time limit")
    short = outcome in _KILLED or (row is not None and row.kind == "out_of_memory")
    return Over(outcome, _out_of_memory(sight) if short else None)


def hidden_kill(sight: Observation) -> str:
    """What Slurm, or the kernel's count, says of memory, of an attempt whose own status does not
    show it; else empty."""
    memory = _out_of_memory(sight)
    return "" if memory is None else memory.evidence


def _began_anew(sight: Observation) -> bool:
    """Slurm's row is not, or soon not any more, about the start that was claimed."""
    row, start = sight.row, sight.start
    if sight.recalled:
        return True
    if row is None or start is None:
        return False
    if row.restarts > start.restart:
        return True
    its_own = sight.end is not None and status_of(sight.end.outcome) == row.status
    return found_its_claim(row) and not its_own


def found_its_claim(row: QueueRow) -> bool:
    """A second start of the job exited, as the attempt had been begun before."""
    return (row.kind, row.status) == ("failed", Exited(STARTED_BEFORE))


def _before_that(outcome: Exited | Signaled | Interrupted, sight: Observation) -> Over:
    """How a start ended of which there is a record, before Slurm began anew.

    A failure of its own is one: sites may have jobs requeued that exit with some status.
    """
    status, memory = status_of(outcome), _out_of_memory(sight)
    word = _ENDED.search(sight.said)
    aborted = outcome in _KILLED and not _requeued(sight) and memory is None
    if isinstance(outcome, Interrupted) or aborted or (word and memory is None):
        return Over(Interrupted(_why_anew(sight), status))
    return Over(outcome, memory if outcome in _KILLED else None)


def _requeued(sight: Observation) -> bool:
    """Slurm knows that it began before; else it has forgotten that."""
    return bool(sight.row and sight.start and sight.row.restarts > sight.start.restart)


def _why_anew(sight: Observation) -> str:
    word = _ENDED.search(sight.said)
    return "preempted by Slurm" if sight.preempted or (word and word[1]) else REQUEUED


def is_full_there(row: QueueRow | None) -> bool:
    """Whether the node's side could not write what it had to."""
    return row is not None and (row.phase, row.status) == ("over", Exited(NO_ROOM))


def to_recall(row: QueueRow, start: NodeStart | None) -> str:
    """Why what waits in Slurm's queue is to be taken out of it; empty where it is to stay.

    `row` is of a moment when `start` was known. A person's hold of what never began stays.
    """
    if start is not None:
        return REQUEUED if row.waits else ""
    stuck = row.waits and _STUCK.search(f"{row.state} {row.reason}")
    return f"Slurm could not begin it, and holds it: {row.reason or row.state}" if stuck else ""


def _never_began(row: QueueRow, recalled: str) -> Verdict:
    if recalled:
        return Over(Lost(recalled))
    if row.kind == "dependency":
        return Over(Interrupted("what it needs did not succeed"))
    if row.kind == "cancelled":
        return Over(Cancelled())
    return Over(NotStarted(f"Slurm: {row.state}"))


def _unrecorded(sight: Observation) -> Over:
    """It left no record of its end: Slurm's word counts, where it has one."""
    row, where = sight.row, ""
    if row is None and sight.start is None:
        return Over(Cancelled() if sight.wished else Interrupted(FORGOTTEN))
    if sight.start is not None and _began_anew(sight):
        return _gone_before_that(sight, sight.start)
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
    if status == Exited(NO_ROOM):
        return _no_room(row)
    if status == Exited(UNFIT):
        return Over(NotStarted(f"{sight.said or row.state}{where}"))
    if status in (None, Exited(0), Exited(LOST)):
        return Over(Lost(f"Slurm says {row.state}, and it left no record of its end{where}"))
    return Over(status)


def _no_room(row: QueueRow) -> Over:
    """No failure of the job's: it goes again once there is room, which the launcher sees to."""
    why = os.strerror(errno.ENOSPC)
    return Over(Interrupted(f"the run directory's disk is full: {why} ({row.node})"))


def _gone_before_that(sight: Observation, start: NodeStart) -> Over:
    """A start that left no record, before Slurm began anew. Where it was requeued without a word
    its node has failed, as a rule; a job of which that is the doing is not begun for ever."""
    why = f"{_why_anew(sight)} ({start.node})"
    if _requeued(sight) and not _ENDED.search(sight.said):
        return Over(Lost(f"{why}, as when a node fails, and it left no record of its end"))
    return Over(Interrupted(why))


def _out_of_time(
    status: Exited | Signaled | None, sight: Observation, said: str = "Slurm's time limit"
) -> Over:
    """At a limit that is not the job's own. A failure: it would end there again, for ever."""
    failure = Failure("timeout", said, TOO_SHORT)
    if status is None or (isinstance(status, Exited) and status.code in sight.success):
        return Over(TimedOut("timeout", 0.0, status), failure)
    return Over(status, failure)


def _out_of_memory(sight: Observation) -> Failure | None:
    """Where Slurm, or the kernel for it, killed a job for the memory that it had."""
    counted = sight.end.oom_kills if sight.end else 0
    if said := _MEMORY.search(sight.said):
        words = f"Slurm: {said[0]}"
    elif sight.row is not None and sight.row.kind == "out_of_memory":
        words = "Slurm: OUT_OF_MEMORY"
    elif counted:
        words = f"the kernel's count in its cgroup: oom_kill {counted}"
    else:
        return None
    return Failure("host_oom", words, f"{advice_for('host_oom')} {MORE_MEMORY}")
