"""Stopping while Slurm's controller does not answer: nothing of it waits for that."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Ended, StopAttempt
from gpulaunch.core.model import Interrupted, Signaled
from tests.engines.bench import SlurmBench, fresh_pool, run_directory, sh
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import MakeCluster, launcher_on, nothing_waits
from tests.slurm.test_runs import SLURM, left, lines

pytestmark = pytest.mark.slow

Make = Callable[[Cluster], SlurmBench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Launchers of one run, one after the other: the one before is killed."""
    made: list[SlurmBench] = []
    pool = fresh_pool()

    def build(cluster: Cluster) -> SlurmBench:
        for before in made:
            before.close()
        run = run_directory(tmp_path / "run")
        made[:] = [SlurmBench(cluster, run, pool, len(made) + 1)]
        return made[0]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def small(own_cluster: MakeCluster) -> Cluster:
    """One node with two cards."""
    return own_cluster(nodes=1)


# ── The engine ──────────────────────────────────────────────────────────────────────────────────


def test_one_that_is_to_end_at_once_is_killed_on_its_node(make: Make, small: Cluster) -> None:
    bench = make(small)
    said = "trap 'echo heard' TERM; echo trapped; while :; do sleep 0.1 || :; done"
    attempt = bench.launch(sh(said, grace=600), bench.gpus[0])
    wait_until(lambda: bench.loop.turn(block=False) or lines(bench.run.log(attempt)))
    small.stop_controller()
    bench.engine.carry_out(StopAttempt(attempt, "interrupted", Quoted("a test")))
    wait_until(lambda: bench.loop.turn(block=False) or len(lines(bench.run.log(attempt))) > 1)
    bench.engine.carry_out(StopAttempt(attempt, "interrupted", Quoted("a test"), now=True))
    assert bench.expect(Ended).end.outcome == Interrupted(Quoted("a test"), Signaled(9))


# ── Whole runs ──────────────────────────────────────────────────────────────────────────────────

LONG = """
    jobs:
      - name: j-{{n}}
        matrix: {n: [1, 2, 3, 4]}
        grace: 2
        run: 'echo {{job}}.{{attempt}} >> ran; until [ -e go ]; do sleep 0.1; done'
"""


def patched(text: str) -> list[str]:
    """gpulaunch, with something of it changed first."""
    return [
        sys.executable,
        "-c",
        f"{text}\nfrom gpulaunch.cli import main; raise SystemExit(main())",
    ]


def test_ctrl_c_needs_no_controller(small: Cluster, tmp_path: Path) -> None:
    launcher = launcher_on(small, tmp_path)
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_queued", 4)
        launcher.wait_for("attempt_started", 2)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        small.stop_controller()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read() if process.stderr else ""
    assert "Slurm's controller does not answer: " in said
    assert "2 attempts are withdrawn" in said
    assert "(scancel 2_[2-3] takes them out of its queue)" in said
    assert not left(launcher)
    assert launcher.status()["run"]["state"] == "stopped"
    assert set(launcher.states().values()) == {"waiting"}
    small.start_controller()
    wait_until(lambda: not small.command("squeue", "-h"), PATIENCE, "what waited ends as it begins")
    before = set(lines(launcher.path / "ran"))
    assert len(before) == 2
    launcher.file("go", "")
    result = launcher("resume", "--quiet")
    assert result.status == 0, result.err
    assert set(lines(launcher.path / "ran")) == before | {f"j-{n}.2" for n in (1, 2, 3, 4)}


def test_a_run_is_cancelled_without_the_controller(small: Cluster, tmp_path: Path) -> None:
    launcher = launcher_on(small, tmp_path)
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        launcher.wait_for("attempt_queued", 4)
        launcher.wait_for("attempt_started", 2)
        small.stop_controller()
        assert launcher("cancel", "-r", launcher.run, "--all").status == 0
        assert process.wait(60) == 1
    assert set(launcher.states().values()) == {"cancelled"}
    assert not left(launcher)


def test_a_launcher_that_is_killed_while_it_withdraws_runs_nothing_twice(
    small: Cluster, tmp_path: Path
) -> None:
    killed = """
import os
from gpulaunch.engines.slurm import records
withdraw = records.withdraw
records.withdraw = lambda *told: (withdraw(*told), os.kill(os.getpid(), 9))
"""
    launcher = launcher_on(small, tmp_path, patched(killed))
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        launcher.wait_for("attempt_queued", 4)
        launcher.wait_for("attempt_started", 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGKILL
    waited = [name for name, job in launcher.jobs().items() if not job["attempts"][0]["started"]]
    launcher.file("go", "")
    result = launcher_on(small, tmp_path)("resume", "--quiet")
    assert result.status == 0, result.err
    expected = {name: 2 if name in waited else 1 for name in launcher.jobs()}
    assert {name: len(job["attempts"]) for name, job in launcher.jobs().items()} == expected
    assert Counter(lines(launcher.path / "ran")) == {f"{n}.{c}": 1 for n, c in expected.items()}
    nothing_waits(small)


def test_what_neither_slurm_nor_its_node_tells_is_left_after_a_second_ctrl_c(
    small: Cluster, tmp_path: Path
) -> None:
    impatient = """
from gpulaunch.engines.slurm import following, withdrawals
withdrawals.OUT_OF_REACH_TIMEOUT = 1.0
following.NFS_VISIBILITY_TIMEOUT = 5.0
"""
    launcher = launcher_on(small, tmp_path, patched(impatient))
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_queued", 4)
        launcher.wait_for("attempt_started", 2)
        small.stop_controller()
        small.kill_node(1)
        for end in (launcher.run / "ends").iterdir():  # power that fails leaves no time to write
            end.unlink()
        process.send_signal(signal.SIGINT)
        launcher.wait_for("attempt_ended", 2)
        assert process.poll() is None, "two of them may still run"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read() if process.stderr else ""
    assert "2 attempts are told through the run directory, within a minute" in said
    assert "what has not ended in 1 s is left in its hands" in said
    assert "2 attempts are still in Slurm's hands: gpulaunch resume looks after them" in said
    assert f"gpulaunch resume {launcher.run.relative_to(launcher.path)}" in said
    assert launcher.status()["run"]["state"] == "interrupted"
    assert Counter(launcher.states().values()) == {"waiting": 2, "running": 2}
    assert launcher("wait").status == 130
    small.start_controller()
    small.start_node(1)
    launcher.file("go", "")
    result = launcher("resume", "--quiet")
    assert result.status == 0, result.err
    assert {len(job["attempts"]) for job in launcher.jobs().values()} == {2}
    assert {attempt for attempt in lines(launcher.path / "ran") if attempt.endswith(".2")} == {
        f"j-{n}.2" for n in (1, 2, 3, 4)
    }
