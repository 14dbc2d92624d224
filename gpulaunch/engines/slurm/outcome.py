"""Decides what became of an attempt that Slurm has. Pure: evidence in, verdicts out.

The first of these counts: the record that the attempt's keeper wrote once its processes were gone;
Slurm's state while the job waits or runs; Slurm's final state. Without any of them the attempt is
lost. An exit code of 0 in Slurm's row alone is no success: a node that failed leaves one too.

Slurm may start a job again, under its old number: after preemption, a node's failure, `scontrol
requeue`, or when a controller that was killed comes back with its last saved state, which lacks the
start. The claim keeps an attempt from starting twice, so that Slurm's row is then about a start
that does nothing: the records of the first start count, and the attempt was interrupted if Slurm
ended that one. Three signs tell of a second start: the job waits although the attempt was claimed;
Slurm restarted it since the claim (`restarts`); it exited with 75.

Slurm's text does not tell who cancelled a job that never began. `scancel` and Slurm itself (22.05
cancels a whole array where one task's launch is refused as already killed) leave the same row,
without a name: it counts as a person's. Nor does it tell a node's failure from a requeue that left
no trace: it counts as the failure, because retries of those are bounded.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Literal

from msgspec import Struct

from gpulaunch.agent.node.status import LOST, NO_ROOM, SLURM_ENDED_IT, STARTED_BEFORE, UNFIT
from gpulaunch.core.causes import ByCluster, Hint, Quoted
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Failure,
    Interrupted,
    Lost,
    NotStarted,
    Outcome,
    Signaled,
    Status,
    TimedOut,
    status_of,
)
from gpulaunch.engines.slurm.attempt import SlurmAttempt
from gpulaunch.engines.slurm.node_files import NodeStart
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.journal.ends import EndRecord, cause_of

NFS_VISIBILITY_TIMEOUT = 60.0
"""Seconds to wait for a record that should exist: NFS shows new files late."""
NEED_FAILED = Interrupted(ByCluster("need_failed"))
CANCELLED_THERE = ByCluster("cancelled")
_TOLD_TO_END = cause_of(SLURM_ENDED_IT)
_MEMORY = re.compile(r"exceeded (job|step)? ?memory limit|oom_kill event|oom-kill", re.I)
"""What `slurmstepd` prints when a process was killed for want of memory (its source)."""
_KILLED = (Signaled(9), Exited(137))
_ENDED = re.compile(r"CANCELLED AT \S+(?: DUE TO (PREEMPTION))?")
"""What `slurmstepd` prints before it ends a job for its controller (its source). It prints nothing
where the controller has forgotten the job."""


class AttemptEvidence(Struct, frozen=True):
    """What is known of an attempt at the monotonic time `now`.

    `record` is that of its end; `said` is what Slurm or the node's side printed of it outside of
    its log.
    """

    one: SlurmAttempt
    record: EndRecord | None
    said: str
    now: float

    @property
    def row(self) -> QueueRow | None:
        return self.one.row

    @property
    def start(self) -> NodeStart | None:
        return self.one.start

    @property
    def is_late(self) -> bool:
        """Whether Slurm finished or forgot it so long ago that its records should be visible."""
        gone = self.one.sight.unaccounted
        return gone is not None and self.now - gone.since >= NFS_VISIBILITY_TIMEOUT

    @property
    def is_fresh(self) -> bool:
        """Whether the record of its end appeared so lately that other records may be missing."""
        seen_at = self.now if self.one.end_seen_at is None else self.one.end_seen_at
        return self.now - seen_at < NFS_VISIBILITY_TIMEOUT


class Over(Struct, frozen=True):
    """The attempt ended with this outcome; `failure` is the cause, where Slurm names one."""

    outcome: Outcome
    failure: Failure | None = None


def judge(seen: AttemptEvidence) -> Over | None:
    """Return how the attempt ended; None while it waits or runs, or that cannot be told yet."""
    row, recalled, stopped = seen.row, seen.one.sight.recalled, seen.one.stop is not None
    if seen.record is not None:
        return _recorded(seen.record, seen)
    if row is not None and row.phase == "queued" and not (recalled and seen.start):
        return None
    if row is not None and row.phase == "running":
        return None
    if row is not None and seen.start is None:
        if stopped and (row.node or row.kind == "cancelled"):
            return Over(Cancelled())  # before its claim, be it with a node: it never starts
        if not row.node:
            return _never_began(row, None if stopped else recalled)
        if row.status == Exited(NO_ROOM):
            return _no_room(row)
    return _unrecorded(seen) if seen.is_late else None


def _recorded(record: EndRecord, seen: AttemptEvidence) -> Over | None:
    """Return the verdict on a recorded outcome, corrected by what Slurm did.

    Slurm kills all processes of a job at once, so that its kill may look like the job's own end.
    """
    one, row, outcome = seen.one, seen.row, record.end.outcome
    status = status_of(outcome)
    if isinstance(outcome, NotStarted) and record.no_space and not one.stop:
        return Over(Interrupted(Quoted(outcome.error)))
    if not isinstance(outcome, Exited | Signaled | Interrupted) or one.stop:
        return Over(outcome)
    if isinstance(outcome, Exited) and outcome.code in one.job.success_codes:
        return Over(outcome)
    if seen.start is None and seen.is_fresh:
        return None  # the record of its start will show whether Slurm started it again since
    if _began_anew(seen):
        return _before_that(outcome, seen)
    if seen.is_fresh and not one.sight.is_over:
        return None  # Slurm's final state will show whether Slurm ended it
    match "" if row is None else row.kind:
        case "cancelled":
            return Over(Cancelled(status, CANCELLED_THERE))
        case "preempted":
            return Over(Interrupted(ByCluster("preempted"), status))
        case "node_fail" | "boot_fail" if row is not None:
            return Over(Lost(ByCluster("node_failed", row.node)))
        case "timeout" | "deadline" if row is not None:
            return _out_of_time(row, status)
        case "failed" if one.sight.preempted:  # ended at the warning (preempt_send_user_signal)
            return Over(Interrupted(ByCluster("preempted"), status))
        case "failed" if row is not None and outcome == Interrupted(_TOLD_TO_END, status):
            # Ended at the warning that its time is nearly up (`--signal` in sbatch.1).
            return _out_of_time(row, status)
    short = outcome in _KILLED or (row is not None and row.kind == "out_of_memory")
    return Over(outcome, _out_of_memory(seen) if short else None)


def refused(why: str) -> Over:
    """Return the verdict on an attempt that Slurm will not take, or not start."""
    return Over(NotStarted(why), Failure("not_started", advice=(Hint("queue_refused"),)))


def hidden_kill(seen: AttemptEvidence) -> str:
    """Return the evidence of a kill for memory that the attempt's status does not show; else ""."""
    memory = _out_of_memory(seen)
    return "" if memory is None else memory.evidence


def _began_anew(seen: AttemptEvidence) -> bool:
    """Return True if Slurm started, or will start, the job again since the attempt was claimed."""
    row, start = seen.row, seen.start
    if seen.one.sight.recalled:
        return True
    if row is None or start is None:
        return False
    if row.restarts > start.restart:
        return True
    its_own = seen.record is not None and status_of(seen.record.end.outcome) == row.status
    return found_its_claim(row) and not its_own


def found_its_claim(row: QueueRow) -> bool:
    """Return True if the row's start was a second one, which found the attempt claimed."""
    return (row.kind, row.status) == ("failed", Exited(STARTED_BEFORE))


def _before_that(outcome: Exited | Signaled | Interrupted, seen: AttemptEvidence) -> Over:
    """Return the verdict on a recorded first start after which Slurm started the job again.

    A failure of the job's own counts: sites may requeue jobs that exit with some status.
    """
    status, memory = status_of(outcome), _out_of_memory(seen)
    word = _ENDED.search(seen.said)
    aborted = outcome in _KILLED and not _requeued(seen) and memory is None
    if isinstance(outcome, Interrupted) or aborted or (word and memory is None):
        return Over(Interrupted(ByCluster(_why_anew(seen)), status))
    return Over(outcome, memory if outcome in _KILLED else None)


def _requeued(seen: AttemptEvidence) -> bool:
    """Return True if Slurm counts a restart since the claim, and so knows the first start."""
    return bool(seen.row and seen.start and seen.row.restarts > seen.start.restart)


def _why_anew(seen: AttemptEvidence) -> Literal["preempted", "requeued"]:
    word = _ENDED.search(seen.said)
    return "preempted" if seen.one.sight.preempted or (word and word[1]) else "requeued"


def is_full_there(row: QueueRow | None) -> bool:
    """Tell whether the node's side could not write its records because the disk was full."""
    return row is not None and (row.phase, row.status) == ("over", Exited(NO_ROOM))


def _never_began(row: QueueRow, recalled: ByCluster | None) -> Over:
    if recalled:
        return Over(Lost(recalled))
    if row.kind == "dependency":
        return Over(NEED_FAILED)
    if row.kind == "cancelled":
        return Over(Cancelled(by=CANCELLED_THERE))
    return Over(NotStarted(f"Slurm: {row.state}"))


def _unrecorded(seen: AttemptEvidence) -> Over:
    """Return the verdict on an attempt that left no record of its end, by Slurm's final state."""
    row = seen.row
    if row is None and seen.start is None:
        return Over(Cancelled() if seen.one.stop else Interrupted(ByCluster("forgotten")))
    if seen.start is not None and _began_anew(seen):
        return _gone_before_that(seen, seen.start)
    if row is None:
        return Over(Lost(ByCluster("vanished")))
    node = row.node or (seen.start.node if seen.start else "")
    where = f" ({node})" if node else ""
    match row.kind:
        case "cancelled":
            return Over(Cancelled(by=CANCELLED_THERE))
        case "preempted":
            return Over(Interrupted(ByCluster("preempted", node)))
        case "dependency":
            return Over(NEED_FAILED)
        case "node_fail" | "boot_fail":
            return Over(Lost(ByCluster("node_failed", node)))
    if seen.start is None:
        said = f": {seen.said}" if seen.said else ""
        return Over(NotStarted(f"Slurm: {row.state}{where}{said}"))
    if memory := _out_of_memory(seen):
        return Over(Signaled(9), memory)
    status = row.status
    if row.kind in ("timeout", "deadline"):
        own = seen.one.job.timeout
        # Slurm's limit is made of the job's own, and longer, unless a person asked for another.
        if own is not None and not 0 < row.limit < own:
            return Over(TimedOut("timeout", own))
        return _out_of_time(row, status)
    if status == Exited(NO_ROOM):
        return _no_room(row)
    if status == Exited(UNFIT):
        return Over(NotStarted(f"{seen.said or row.state}{where}"))
    if status in (None, Exited(0), Exited(LOST)):
        return Over(Lost(ByCluster("unrecorded", node, row.state)))
    return Over(status)


def _no_room(row: QueueRow) -> Over:
    """Return the verdict on a full disk: interrupted, not failed, so that it is launched again."""
    return Over(Interrupted(ByCluster("disk_full", row.node, os.strerror(errno.ENOSPC))))


def _gone_before_that(seen: AttemptEvidence, start: NodeStart) -> Over:
    """Return the verdict on an unrecorded first start after which Slurm started the job again.

    Requeued without a message, its node has usually failed: `Lost`, whose retries are bounded, so
    that a job that brings nodes down is not started for ever.
    """
    if _requeued(seen) and not _ENDED.search(seen.said):
        return Over(Lost(ByCluster("requeued_silently", start.node)))
    return Over(Interrupted(ByCluster(_why_anew(seen), start.node)))


def _out_of_time(row: QueueRow, status: Status | None) -> Over:
    """Return the verdict on an end at Slurm's time limit: a failure, as it would recur."""
    limit = 0.0 if row.kind == "deadline" else row.limit
    return Over(TimedOut("queue", limit, status))


def _out_of_memory(seen: AttemptEvidence) -> Failure | None:
    """Return the failure of a job that Slurm or the kernel killed for its memory; else None."""
    counted = seen.record.oom_kills if seen.record else 0
    if said := _MEMORY.search(seen.said):
        words = f"Slurm: {said[0]}"
    elif seen.row is not None and seen.row.kind == "out_of_memory":
        words = "Slurm: OUT_OF_MEMORY"
    elif counted:
        words = f"the kernel's count in its cgroup: oom_kill {counted}"
    else:
        return None
    return Failure("host_oom", words, (Hint("host_oom"), Hint("queue_memory")))
