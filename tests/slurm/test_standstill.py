"""What waits for what does not come by itself: said, and given up where it never will."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from gpulaunch.core.events import Ended, Queued
from gpulaunch.core.model import AttemptId, Job, NotStarted
from gpulaunch.engines.slurm import reasons, standstill
from gpulaunch.engines.slurm.actions import Warn
from gpulaunch.engines.slurm.attempt import Sighting, SlurmAttempt, SlurmJob
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.engines.slurm.records import DiskRecords
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.engines.slurm.standstill import NEVER_STARTS_TIMEOUT, SETTLED
from gpulaunch.engines.slurm.state import Probe, SlurmState
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE as LONG
from tests.slurm.conftest import MakeCluster, launcher_on, nothing_waits

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
    return standstill.look(state, some)


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


def test_what_is_given_up_was_not_started_and_is_out_of_slurms_queue(
    own_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "NEVER_STARTS_TIMEOUT", 0.5)
    # Without accounts there are no limits of jobs: as if this were one. Until Slurm has looked at
    # a job for the first time, it says PartitionConfig of it.
    monkeypatch.setattr(reasons, "_NEVER", re.compile("PartitionTimeLimit"))
    cluster = own_cluster(nodes=1)
    bench = SlurmBench(cluster, run_directory(tmp_path / "run"), fresh_pool())
    try:
        cluster.command("scontrol", "update", "PartitionName=main", "MaxTime=2")
        bench.launch(sh("true", "long", timeout=6000.0))
        bench.expect(Queued)
        ended = bench.expect(Ended)
        assert isinstance(ended.end.outcome, NotStarted)
        assert ended.end.outcome.error.startswith(
            "Slurm will not start it: asks for more time than"
        )
        assert ended.end.failure is not None
        wait_until(lambda: not cluster.command("squeue", "-h", "--states=PENDING"), LONG)
    finally:
        bench.close()


def test_a_run_says_what_a_person_has_to_do(own_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = own_cluster(nodes=1)
    launcher = launcher_on(cluster, tmp_path)
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 0, run: 'true', timeout: 100m}]")
    cluster.command("scontrol", "update", "PartitionName=main", "MaxTime=2")
    with launcher.begun("run", "jobs.yaml", "--engine", "slurm") as process:
        said = "a waits for what does not come by itself: asks for more time than its partition"
        launcher.wait_for("noted")
        wait_until(lambda: said in str(launcher.events("noted")), LONG)
        cluster.command("scontrol", "update", "PartitionName=main", "MaxTime=INFINITE")
        assert process.wait(LONG) == 0


def test_a_run_that_is_stopped_leaves_no_probe_in_the_queue(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Its partition starts nothing, and would begin it some day."""
    cluster = own_cluster(nodes=1)
    launcher = launcher_on(cluster, tmp_path)
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 0, run: 'true'}]")
    cluster.command("scontrol", "update", "PartitionName=main", "State=DOWN")
    with launcher.begun("run", "jobs.yaml", "--engine", "slurm") as process:
        wait_until(lambda: len(cluster.command("squeue", "-h").splitlines()) == 2, LONG)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130
    nothing_waits(cluster)


def test_of_an_array_the_held_task_alone_reads_held(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = own_cluster(nodes=1)
    bench = SlurmBench(cluster, run_directory(tmp_path / "run"), fresh_pool())
    try:
        attempts = [bench.launch(sh("sleep 100", f"a{n}"), *bench.gpus) for n in range(6)]
        number = bench.expect(Queued).id.split()[-1].partition("_")[0]
        cluster.command("scontrol", "hold", f"{number}_4")

        def told() -> bool:
            bench.loop.turn()
            return "JobHeld" in bench.engine.why(attempts[4])

        wait_until(told, LONG)
        others = [bench.engine.why(attempt) for attempt in (attempts[3], attempts[5])]
        assert not [why for why in others if "JobHeld" in why]

        def said() -> bool:
            bench.loop.turn()
            return any("a4 waits for what" in text for text in bench.warned)

        wait_until(said, LONG)
    finally:
        bench.close()
