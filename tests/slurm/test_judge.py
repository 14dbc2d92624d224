"""What became of an attempt: Slurm's word, the records, and which of them counts."""

from __future__ import annotations

import errno
import os

import pytest
from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.wording import cause, ending
from gpulaunch.core.causes import ByCluster, Quoted
from gpulaunch.core.events import StopAttempt
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    End,
    Exited,
    Instant,
    Interrupted,
    Job,
    Lost,
    NotStarted,
    Outcome,
    Signaled,
    TimedOut,
)
from gpulaunch.core.retry import failure_of
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.engines.slurm import outcome as judging
from gpulaunch.engines.slurm.attempt import (
    REQUEUED,
    Began,
    Sighting,
    SlurmAttempt,
    Unaccounted,
    to_recall,
)
from gpulaunch.engines.slurm.node_files import NodeStart
from gpulaunch.engines.slurm.outcome import (
    NFS_VISIBILITY_TIMEOUT,
    NO_ROOM,
    AttemptEvidence,
    Over,
    is_full_there,
)
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.journal.ends import EndRecord

NOW = Instant(1.0, 1.0)
START = NodeStart("a.1", "12", "n1", "host", 7, 0, "0", (), "boot", NOW)
LATE = NFS_VISIBILITY_TIMEOUT + 1
THERE = ByCluster("cancelled")


def row(
    state: str, reason: str = "", node: str = "n1", code: int | None = 0, limit: float = 0.0
) -> QueueRow:
    status = None if code is None else Exited(code)
    name = "gl:run:1-1:a"
    return QueueRow(
        "12", name=name, state=state, reason=reason, status=status, node=node, limit=limit
    )


def end(outcome: Outcome, no_space: bool = False) -> EndRecord:
    return EndRecord("a.1", End(outcome, None, 0, NOW, NOW), 7, no_space=no_space)


class Seen(Struct, frozen=True):
    """What a test says of an attempt: `over` and `ended` are seconds since Slurm finished it and
    since its record appeared."""

    row: QueueRow | None
    start: NodeStart | None = None
    record: EndRecord | None = None
    over: float = 0.0
    ended: float = 0.0
    timeout: float | None = None
    said: str = ""
    asked_to_end: bool = False
    recalled: ByCluster | None = None
    asked: bool = True
    preempted: bool = False
    success: frozenset[int] = frozenset({0})

    def observed(self) -> AttemptEvidence:
        """Return it as the engine sees it, at a time that only `over` and `ended` count from."""
        now, attempt = 1000.0, AttemptId("a", 1)
        gone = Unaccounted(now - self.over) if self.over else None
        stop = StopAttempt(attempt, "cancelled", Quoted("")) if self.asked_to_end else None
        one = SlurmAttempt(
            attempt,
            Job("a", (), timeout=self.timeout, success_codes=self.success),
            sight=Sighting(self.row, self.asked, self.preempted, self.recalled, unaccounted=gone),
            holder=Began(self.start, now) if self.start else "nobody",
            stop=stop,
            end_seen_at=now - self.ended,
        )
        return AttemptEvidence(one, self.record, self.said, now)


def judge(seen: Seen) -> Over | None:
    return judging.judge(seen.observed())


def hidden_kill(seen: Seen) -> str:
    return judging.hidden_kill(seen.observed())


def over(sight: Seen) -> Outcome:
    verdict = judge(sight)
    assert isinstance(verdict, Over), verdict
    return verdict.outcome


def test_what_waits_waits_for_slurms_reason() -> None:
    assert judge(Seen(row("PENDING", "Priority", node=""))) is None


def test_what_runs_is_not_judged_however_long_it_was_out_of_sight() -> None:
    assert judge(Seen(row("RUNNING"), over=LATE)) is None
    assert judge(Seen(row("COMPLETING"), START, over=LATE)) is None


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "RUNNING"])
def test_the_record_of_a_success_counts_whatever_slurm_says(state: str) -> None:
    assert over(Seen(row(state, code=9), START, end(Exited(0)))) == Exited(0)
    assert over(Seen(None, START, end(Exited(0)))) == Exited(0)
    sight = Seen(row(state), START, end(Exited(3)), success=frozenset({3}))
    assert over(sight) == Exited(3)


def test_the_record_of_a_failure_counts_once_slurm_has_said_that_it_was_not_its_doing() -> None:
    for outcome in (Exited(3), Signaled(15)):
        assert judge(Seen(row("RUNNING"), START, end(outcome))) is None
        assert over(Seen(row("RUNNING"), START, end(outcome), ended=LATE)) == outcome
        assert over(Seen(row("FAILED"), START, end(outcome))) == outcome
        assert over(Seen(row("COMPLETED"), START, end(outcome))) == outcome
        assert over(Seen(None, START, end(outcome))) == outcome
        assert over(Seen(row("CANCELLED"), START, end(outcome))) == Cancelled(outcome, THERE)


def test_a_code_of_0_without_a_record_is_no_success() -> None:
    for state in ("COMPLETED", "FAILED", "NODE_FAIL"):
        assert judge(Seen(row(state, code=0), START)) is None
        assert isinstance(over(Seen(row(state, code=0), START, over=LATE)), Lost)


def test_without_a_record_slurms_code_counts_in_the_end() -> None:
    assert judge(Seen(row("FAILED", code=3), START)) is None
    assert over(Seen(row("FAILED", code=3), START, over=LATE)) == Exited(3)


def test_what_slurm_has_forgotten_and_left_no_record_is_lost() -> None:
    assert judge(Seen(None, START)) is None
    assert isinstance(over(Seen(None, START, over=LATE)), Lost)


def test_a_full_disk_is_no_failure_of_the_job() -> None:
    full = row("FAILED", code=NO_ROOM)
    assert is_full_there(full)
    others = (None, row("FAILED", code=1), row("RUNNING"), row("COMPLETED", code=0))
    assert not any(map(is_full_there, others))
    never_began = judge(Seen(full))
    assert isinstance(never_began, Over)
    assert isinstance(never_began.outcome, Interrupted)
    assert "disk is full" in cause(never_began.outcome.by)
    assert judge(Seen(full, START)) is None
    assert isinstance(over(Seen(full, START, over=LATE)), Interrupted)
    assert judge(Seen(full, START, end(Exited(NO_ROOM)))) == Over(Exited(NO_ROOM))
    recorded = end(NotStarted("cannot lay out ends/a.1: Kein Platz mehr"), no_space=True)
    assert isinstance(over(Seen(row("FAILED", code=NO_ROOM), START, recorded)), Interrupted)
    for words in ("cannot lay out ends/a.1: Disk quota exceeded", os.strerror(errno.ENOSPC)):
        other = end(NotStarted(words))
        assert isinstance(over(Seen(row("FAILED", code=NO_ROOM), START, other)), NotStarted)


def test_a_kill_is_judged_when_slurm_has_said_whether_memory_was_why() -> None:
    killed = end(Signaled(9))
    assert judge(Seen(row("RUNNING"), START, killed)) is None
    verdict = judge(Seen(row("OUT_OF_MEMORY"), START, killed))
    assert isinstance(verdict, Over)
    assert verdict.failure is not None
    assert (verdict.outcome, verdict.failure.kind) == (Signaled(9), "host_oom")
    assert judge(Seen(row("FAILED"), START, killed)) == Over(Signaled(9))


def test_the_kernels_own_count_tells_of_memory_where_slurm_does_not() -> None:
    killed = replace(end(Signaled(9)), oom_kills=2)
    verdict = judge(Seen(row("FAILED"), START, killed))
    assert isinstance(verdict, Over)
    assert verdict.failure is not None
    assert verdict.failure.kind == "host_oom"
    assert verdict.failure.evidence == "the kernel's count in its cgroup: oom_kill 2"
    assert judge(Seen(row("FAILED"), START, replace(killed, end=End(Exited(1))))) == Over(Exited(1))
    assert hidden_kill(Seen(row("RUNNING"), START, replace(killed, end=End(Exited(0)))))
    assert not hidden_kill(Seen(row("RUNNING"), START, end(Exited(0))))


def test_a_job_that_ends_by_itself_for_a_process_that_was_killed_for_memory_has_no_memory() -> None:
    verdict = judge(Seen(row("OUT_OF_MEMORY"), START, end(Exited(1))))
    assert isinstance(verdict, Over)
    assert verdict.failure is not None
    assert (verdict.outcome, verdict.failure.kind) == (Exited(1), "host_oom")
    assert "memory: 64GB" in advice(verdict.failure.advice)
    assert judge(Seen(row("OUT_OF_MEMORY"), START, end(Exited(0)))) == Over(Exited(0))


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("CANCELLED", Cancelled(Exited(5), THERE)),
        ("PREEMPTED", Interrupted(ByCluster("preempted"), Exited(5))),
        ("TIMEOUT", TimedOut("queue", 0.0, Exited(5))),
        ("NODE_FAIL", Lost(ByCluster("node_failed", "n1"))),
    ],
)
def test_an_end_that_slurm_asked_for_is_told_by_its_word(state: str, outcome: Outcome) -> None:
    ended = end(Interrupted(ByCluster("told_to_end"), Exited(5)))
    assert judge(Seen(row("RUNNING"), START, ended)) is None
    assert over(Seen(row(state), START, ended)) == outcome


def test_an_end_that_we_asked_for_needs_no_word_of_slurm() -> None:
    ended = end(Interrupted(Quoted("Ctrl-C")))
    assert over(Seen(row("RUNNING"), START, ended, asked_to_end=True)) == Interrupted(
        Quoted("Ctrl-C")
    )


@pytest.mark.parametrize(
    ("state", "reason", "outcome"),
    [
        ("CANCELLED", "", Cancelled(by=THERE)),
        (
            "CANCELLED",
            "DependencyNeverSatisfied",
            Interrupted(ByCluster("need_failed")),
        ),
        ("FAILED", "", NotStarted("Slurm: FAILED")),
    ],
)
def test_what_never_had_a_node_is_over_at_once(state: str, reason: str, outcome: Outcome) -> None:
    assert over(Seen(row(state, reason, node=""))) == outcome


def test_what_we_had_ended_on_its_way_to_its_node_is_over_at_once() -> None:
    assert over(Seen(row("CANCELLED"), asked_to_end=True)) == Cancelled()
    assert judge(Seen(row("CANCELLED"))) is None


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("CANCELLED", Cancelled(by=THERE)),
        ("PREEMPTED", Interrupted(ByCluster("preempted", "n1"))),
        ("NODE_FAIL", Lost(ByCluster("node_failed", "n1"))),
        ("BOOT_FAIL", Lost(ByCluster("node_failed", "n1"))),
        ("TIMEOUT", TimedOut("timeout", 60.0)),
        ("OUT_OF_MEMORY", Signaled(9)),
    ],
)
def test_slurms_own_ends_count_once_no_record_can_come(state: str, outcome: Outcome) -> None:
    sight = Seen(row(state), START, timeout=60.0)
    assert judge(sight) is None
    assert over(replace(sight, over=LATE)) == outcome


@pytest.mark.parametrize("state", ["TIMEOUT", "DEADLINE"])
@pytest.mark.parametrize("code", [0, 5])
def test_a_time_limit_that_the_job_did_not_set_is_a_failure_and_no_success(
    state: str, code: int
) -> None:
    """One that is nobody's would go again, and end there again, for ever."""
    told = end(Interrupted(ByCluster("told_to_end"), Exited(code)))
    recorded = Seen(row(state, limit=60.0), START, told)
    heeded = replace(recorded, row=row("FAILED", code=143, limit=60.0))
    gone = Seen(row(state, code=code, limit=60.0), START, over=LATE)
    for sight in (recorded, heeded, gone, replace(gone, timeout=7200.0)):
        outcome = over(sight)
        long = 0.0 if sight is not heeded and state == "DEADLINE" else 60.0
        assert outcome == TimedOut("queue", long, Exited(code))
        assert failure_of(outcome, Job("a", ())) == "timeout"


def test_a_time_limit_that_is_known_is_named_with_its_length_and_a_deadline_has_none() -> None:
    told = end(Interrupted(ByCluster("told_to_end"), Exited(1)))
    words = {
        state: ending(over(Seen(row(state, limit=5400.0), START, told)))
        for state in ("TIMEOUT", "DEADLINE")
    }
    assert words == {
        "TIMEOUT": "Slurm's time limit of 1 h 30 min (its partition's, or --time) ended it",
        "DEADLINE": "Slurm's time limit ended it (its partition's, --time or --deadline)",
    }


def test_slurms_longer_limit_ends_what_outlived_the_jobs_own_timeout() -> None:
    """The keeper was to end it, and is gone without a record."""
    sight = Seen(row("TIMEOUT", limit=300.0), START, over=LATE, timeout=60.0)
    assert over(sight) == TimedOut("timeout", 60.0)


def test_what_had_a_node_and_never_began_was_not_started_and_says_why() -> None:
    sight = Seen(row("FAILED", code=78), over=LATE, said="no Python 3.8 on n1")
    assert judge(replace(sight, over=0.0)) is None
    assert over(sight) == NotStarted("Slurm: FAILED (n1): no Python 3.8 on n1")


@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd-n1: error: Exceeded job memory limit",
        # 20.11 and 22.05, then 26.05
        "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=12.batch cgroup.",
        "[2026-11-22T10:18:47.445] error: Detected 1 oom_kill event in StepId=12.batch.",
    ],
)
def test_what_was_killed_for_its_memory_is_known_by_slurms_word_in_its_output(said: str) -> None:
    for end_of_it in (None, end(Signaled(9))):
        verdict = judge(Seen(row("FAILED", code=9), START, end_of_it, over=LATE, said=said))
        assert isinstance(verdict, Over)
        assert verdict.failure is not None
        assert (verdict.outcome, verdict.failure.kind) == (Signaled(9), "host_oom")
    assert over(Seen(row("FAILED", code=3), START, end(Exited(3)), said=said)) == Exited(3)


# ── What Slurm began anew ───────────────────────────────────────────────────────────────────────

BY_SLURM = Interrupted(ByCluster("told_to_end"), Exited(5))
TOLD = "slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-22T09:46:00"


def anew(state: str, **fields: object) -> QueueRow:
    """The row of a job that was requeued since its attempt was claimed."""
    return replace(row(state, "BeginTime", node=""), restarts=1, **fields)  # type: ignore[arg-type]


AGAIN = {
    "waits": Seen(anew("PENDING"), START, recalled=REQUEUED),
    "is ended": Seen(anew("COMPLETING"), START),
    "is held": Seen(anew("SPECIAL_EXIT"), START, recalled=REQUEUED),
    "runs again": Seen(anew("RUNNING"), START),
    "found its claim": Seen(anew("FAILED", status=Exited(75)), START),
    "was taken back": Seen(anew("CANCELLED"), START, recalled=REQUEUED),
}
FORGOTTEN = {
    "waits": Seen(row("PENDING", node=""), START, recalled=REQUEUED),
    "found its claim": Seen(row("FAILED", code=75), START),
    "was taken back": Seen(row("CANCELLED"), START, recalled=REQUEUED),
    "is gone": Seen(None, START, recalled=REQUEUED),
}


@pytest.mark.parametrize("sight", [*AGAIN.values(), *FORGOTTEN.values()])
def test_of_what_slurm_begins_anew_the_first_starts_record_counts(sight: Seen) -> None:
    assert over(replace(sight, record=end(Exited(0)))) == Exited(0)
    assert over(replace(sight, record=end(Exited(3)))) == Exited(3)
    assert over(replace(sight, record=end(BY_SLURM))) == Interrupted(REQUEUED, Exited(5))
    late = replace(sight, record=end(TimedOut("timeout", 1.0)))
    assert over(late) == TimedOut("timeout", 1.0)


@pytest.mark.parametrize("sight", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("outcome", [Exited(5), Exited(143), Signaled(15), Signaled(9)])
def test_a_failure_is_slurms_doing_where_slurm_said_that_it_ended_it(
    sight: Seen, outcome: Exited | Signaled
) -> None:
    """A job may end at the signal before its keeper has heard of it."""
    seen = replace(sight, record=end(outcome))
    assert over(seen) == outcome
    told = replace(seen, said=f"{TOLD} DUE TO JOB REQUEUE ***; gpulaunch: a.1 was started before")
    assert over(told) == Interrupted(REQUEUED, outcome)
    told = replace(seen, said=f"{TOLD} DUE TO PREEMPTION ***")
    assert over(told) == Interrupted(ByCluster("preempted"), outcome)


@pytest.mark.parametrize("sight", FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_node_whose_controller_forgot_the_job_kills_it_without_a_word(sight: Seen) -> None:
    killed = replace(sight, record=end(Signaled(9)))
    assert over(killed) == Interrupted(REQUEUED, Signaled(9))
    assert over(replace(sight, over=LATE)) == Interrupted(ByCluster("requeued", "n1"))
    memory = replace(
        killed, said="slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch."
    )
    assert over(memory) == Signaled(9)


def test_without_a_record_it_is_awaited_and_then_what_slurm_said_counts() -> None:
    for name in ("waits", "is held", "found its claim", "was taken back"):
        assert judge(AGAIN[name]) is None
        late = replace(AGAIN[name], over=LATE)
        told = replace(late, said=f"{TOLD} DUE TO PREEMPTION ***")
        assert over(told) == Interrupted(ByCluster("preempted", "n1"))
        told = replace(late, said=f"{TOLD} DUE TO JOB REQUEUE ***")
        assert over(told) == Interrupted(ByCluster("requeued", "n1"))
        # A node that failed, as a rule: a job of which that is the doing is not begun for ever.
        assert isinstance(over(late), Lost)


def test_while_it_is_being_ended_or_begins_again_nothing_is_judged() -> None:
    for name in ("is ended", "runs again"):
        assert judge(replace(AGAIN[name], over=LATE)) is None


def test_a_status_of_75_may_be_the_jobs_own() -> None:
    own = Seen(row("FAILED", code=75), START, end(Exited(75)))
    assert over(own) == Exited(75)
    cancelled = Seen(row("CANCELLED", code=75), START, end(Exited(75)))
    assert over(cancelled) == Cancelled(Exited(75), THERE)
    warned = replace(
        own, record=end(Interrupted(ByCluster("told_to_end"), Exited(75))), said=f"{TOLD} ***"
    )
    assert over(warned) == TimedOut("queue", 0.0, Exited(75))


def test_one_that_heeded_the_warning_of_its_preemption_was_preempted() -> None:
    """Else the same warning says that its time is nearly up."""
    heeded = Seen(row("FAILED", code=5), START, end(BY_SLURM), preempted=True)
    assert over(heeded) == Interrupted(ByCluster("preempted"), Exited(5))
    again = replace(AGAIN["waits"], record=end(BY_SLURM), preempted=True)
    assert over(again) == Interrupted(ByCluster("preempted"), Exited(5))
    assert over(replace(heeded, record=end(Exited(0)))) == Exited(0)


def test_an_end_is_not_judged_before_slurm_was_asked_of_it() -> None:
    """A launcher that takes it up has not looked yet."""
    unasked = Seen(None, START, end(Signaled(15)), asked=False)
    assert judge(unasked) is None
    assert over(replace(unasked, ended=LATE)) == Signaled(15)
    assert over(replace(unasked, asked=True)) == Signaled(15)


def test_what_is_to_be_taken_out_of_the_queue_again() -> None:
    for state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        assert to_recall(row(state, node=""), START) == REQUEUED
    for state in ("CONFIGURING", "RUNNING", "COMPLETING", "FAILED"):
        assert not to_recall(row(state), START)
    for reason in ("Priority", "BeginTime", "JobHeldUser", "JobHeldAdmin", "Dependency"):
        assert not to_recall(row("PENDING", reason, node=""), None)


@pytest.mark.parametrize(
    "reason",
    [
        "launch failed requeued held",
        "launch_failed_requeued_held",
        "launch failure limit exceeded requeued held",
        "user env retrieval failed requeued held",
        "job requeued in special exit state",
    ],
)
def test_what_slurm_could_not_begin_and_holds_is_lost_with_its_reason(reason: str) -> None:
    """It would wait for ever; lost so often in a row, its job fails."""
    held = row("PENDING", reason, node="")
    recalled = to_recall(held, None)
    assert recalled == ByCluster("not_begun", said=reason)
    assert judge(Seen(held, recalled=recalled)) is None
    taken = Seen(row("CANCELLED", reason, node=""), recalled=recalled)
    assert over(taken) == Lost(ByCluster("not_begun", said=reason))
    assert over(replace(taken, asked_to_end=True)) == Cancelled()


def test_an_end_whose_start_shows_late_waits_for_it_where_slurm_may_have_started_it_again() -> None:
    again = row("FAILED", code=75)
    ended = Seen(again, None, end(Interrupted(ByCluster("told_to_end"), Exited(143))), over=2.0)
    assert judge(ended) is None
    assert over(replace(ended, start=START, row=replace(again, restarts=1))) == Interrupted(
        REQUEUED, Exited(143)
    )
    assert isinstance(judge(replace(ended, ended=LATE)), Over)
    assert judge(replace(ended, record=end(Exited(0)))) == Over(Exited(0))
