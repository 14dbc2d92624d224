"""What waits for what does not come by itself: said, and given up where it never will."""

from __future__ import annotations

from pathlib import Path

from gpulaunch.core.model import AttemptId, Exited, Job, NotStarted
from gpulaunch.engines.slurm import standstill
from gpulaunch.engines.slurm.actions import Warn
from gpulaunch.engines.slurm.attempt import Sighting, SlurmAttempt, SlurmJob
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.engines.slurm.records import DiskRecords
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.engines.slurm.standstill import NEVER_STARTS_TIMEOUT, SETTLED
from gpulaunch.engines.slurm.state import Probe, SlurmState
from tests.slurm.histories import History
from tests.slurm.programs import squeue
from tests.slurm.scenes import attempt, busy, free, good, outcomes
from tests.slurm.world import Plan

NOWHERE = DiskRecords(SlurmDir(Path("/nowhere")))
"""No record shows."""


def waiting(reason: str, *jobs: str) -> list[SlurmAttempt]:
    return [
        SlurmAttempt(
            AttemptId(job, 1), Job(job, ()), SlurmJob("1"), Sighting(QueueRow("1", reason=reason))
        )
        for job in jobs
    ]


def look(state: SlurmState, some: list[SlurmAttempt], now: float) -> list[SlurmAttempt]:
    state.now = now
    return standstill.find_unschedulable(state, some)


def said(state: SlurmState) -> list[str]:
    return [action.text for action in state.out if isinstance(action, Warn)]


def test_each_reason_is_said_once_with_how_to_end_what_waits() -> None:
    state = SlurmState("gl:x:", 1, "/run", 5.0, Probe("p"), NOWHERE)
    some = waiting("PartitionDown", "a", "b", "c", "d", "e")
    for now in (0.0, 5.0, 1e6):
        assert look(state, [*some, *waiting("Priority", "f")], now) == []
    assert said(state) == [
        "a, b, c and 2 more wait for what does not come by itself: its partition starts no jobs now"
        " (PartitionDown); gpulaunch cancel ends what shall not wait"
    ]


def test_what_can_never_start_is_given_up_once_slurm_has_kept_saying_so() -> None:
    state = SlurmState("gl:x:", 1, "/run", 5.0, Probe("p"), NOWHERE)
    some = waiting("QOSMaxGRESPerJob", "a")
    assert look(state, some, -SETTLED) == []
    assert said(state) == []
    assert look(state, some, 0.0) == []
    assert said(state)[0].endswith("(QOSMaxGRESPerJob); given up in 60 s")
    assert look(state, waiting("Priority", "a"), NEVER_STARTS_TIMEOUT) == []
    assert look(state, some, NEVER_STARTS_TIMEOUT) == []
    assert look(state, some, 2 * NEVER_STARTS_TIMEOUT - 1) == []
    assert look(state, some, 2 * NEVER_STARTS_TIMEOUT) == some
    assert len(said(state)) == 1


# ── On a pretend cluster ────────────────────────────────────────────────────────────────────────


def test_what_is_given_up_was_not_started_and_is_out_of_slurms_queue(history: History) -> None:
    history.cluster.keeps = lambda task: (
        "QOSMaxWallDurationPerJobLimit" if task.minutes > 60 else ""
    )
    history.add("long", Plan(1.0), timeout=6000.0)
    history.wanted["long"].stopped = True  # else it would be tried again
    history.add("short", Plan(1.0))
    history.until(lambda: len(history.told) == 2)
    assert outcomes(history)["short"] == Exited(0)
    (ended,) = (ended for ended in history.told if ended.attempt.job == "long")
    assert isinstance(ended.end.outcome, NotStarted)
    assert ended.end.outcome.error.startswith("Slurm will not start it: asks for more time than")
    assert ended.end.failure is not None
    history.finish()
    assert history.starts("long") == 0


def test_a_person_is_told_what_she_has_to_do_and_does_it(history: History) -> None:
    history.cluster.keeps = lambda task: "PartitionTimeLimit" if task.minutes > 2 else ""
    history.add("a", Plan(1.0), timeout=6000.0)
    history.until(lambda: bool(history.warned))
    told = "a waits for what does not come by itself: asks for more time than its partition"
    assert history.warned[0].startswith(told)
    history.cluster.keeps = lambda task: ""
    history.finish()
    assert outcomes(history) == good("a")


def test_of_an_array_the_held_task_alone_reads_held(history: History) -> None:
    """Slurm shows all that waits of it in one row, with the reasons of all."""
    names = [f"b{number}" for number in range(6)]
    busy(history, *names)
    held = history.cluster.waiting_for("b4")
    history.cluster.holds(held)
    assert "Resources,JobHeldUser" in squeue(history.cluster, "JobArrayID:|")
    history.until(lambda: "JobHeld" in history.engine.why(attempt("b4")))
    others = [history.engine.why(attempt(name)) for name in names if name != "b4"]
    assert len([why for why in others if why.endswith("(Resources)")]) == 5
    history.until(lambda: any("b4 waits for what" in said for said in history.warned))
    assert not [said for said in history.warned if "b3" in said]
    history.cluster.frees()
    free(history)
    history.finish()
