"""Whole runs in trouble: the launcher SIGKILLed, a node or the controller gone, jobs forgotten.

GPULAUNCH_TEST_KILLS says how often the launcher is killed (6; the release figure is 50).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gpulaunch.journal.manifest import boot_id, hostname
from tests.cli.launcher import Launcher
from tests.helpers import wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import MakeCluster, launcher_on, nothing_waits
from tests.slurm.test_runs import SLURM, left, lines, places

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "6"))
# Waits seconds, not a minute, for records that a node which is gone has not left.
IMPATIENT = [
    sys.executable,
    "-c",
    "from gpulaunch.engines.slurm import following; following.NFS_VISIBILITY_TIMEOUT = 5.0;"
    "from gpulaunch.cli import main; raise SystemExit(main())",
]

# ── The launcher ────────────────────────────────────────────────────────────────────────────────

ONCE = """
    jobs:
      - name: card-{{n}}
        matrix: {n: [0, 1, 2, 3, 4, 5, 6, 7]}
        run: 'echo "{{job}} begins" >> ran; sleep 0.3; echo "{{job}} ends" >> ran'
      - name: then-{{n}}
        matrix: {n: [0, 1, 2, 3]}
        gpus: 0
        needs: ['card-{{n}}']
        run: 'echo "{{job}} begins" >> ran; echo "{{job}} ends" >> ran'
"""
JOBS = [f"card-{n}" for n in range(8)] + [f"then-{n}" for n in range(4)]


@pytest.mark.timeout(1200)
def test_killed_at_random_moments_each_job_runs_once_and_none_is_lost(on_slurm: Launcher) -> None:
    on_slurm.file("jobs.yaml", ONCE)
    generator = random.Random(os.environ.get("GPULAUNCH_TEST_SEED", "7"))
    for kill in range(KILLS):
        # Half of them while it begins and hands over, half at any time.
        if run_for(on_slurm, generator.uniform(0, 3.0 if kill % 2 else 0.4)):
            check_each_ran_once(on_slurm)
            shutil.rmtree(on_slurm.path / "gpulaunch-runs")
            (on_slurm.path / "ran").unlink()
    if on_slurm.events():
        result = on_slurm("resume", "--quiet")
        assert result.status == 0, result.err
        check_each_ran_once(on_slurm)


def run_for(launcher: Launcher, seconds: float) -> bool:
    """Begin the run, or resume it, and kill it so long after it has begun to work.

    Whether it was done before that.
    """
    before = len(launcher.events())
    command = ("resume",) if before else ("run", "jobs.yaml", *SLURM)
    with launcher.begun(*command, "--quiet") as process:
        wait_until(lambda: len(launcher.events()) > before + 1 or process.poll() is not None)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return False
        assert process.stderr is not None
        assert status == 0, process.stderr.read()
        return True


def check_each_ran_once(launcher: Launcher) -> None:
    assert set(launcher.states().values()) == {"succeeded"}
    ran = Counter(lines(launcher.path / "ran"))
    assert ran == {f"{name} {word}": 1 for name in JOBS for word in ("begins", "ends")}


def test_a_run_whose_launcher_died_on_another_machine_is_taken_over(on_slurm: Launcher) -> None:
    on_slurm.file("jobs.yaml", ONCE.replace("sleep 0.3", "until [ -e go ]; do sleep 0.1; done"))
    with on_slurm.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        on_slurm.wait_for("attempt_started")
        manifest = on_slurm.run / "manifest.json"
        ours = manifest.read_text()
        theirs = ours.replace(f'"host": "{hostname()}"', '"host": "login1"')
        manifest.write_text(theirs.replace(boot_id(), "another"))
        alive = on_slurm("resume", "--take-over")
        assert alive.status == 2
        assert "its launcher is alive" in alive.err
        process.send_signal(signal.SIGKILL)
        process.wait()
    refused = on_slurm("resume")
    assert refused.status == 2
    assert "login1" in refused.err
    assert "--take-over" in refused.err
    on_slurm.file("go", "")
    result = on_slurm("resume", "--take-over", "--quiet")
    assert result.status == 0, result.err
    check_each_ran_once(on_slurm)
    assert json.loads(manifest.read_text())["epochs"][-1]["host"] == hostname()


# ── The cluster ─────────────────────────────────────────────────────────────────────────────────


def test_what_a_dead_node_ran_runs_elsewhere_and_spends_no_retry(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = own_cluster()
    launcher = launcher_on(cluster, tmp_path, IMPATIENT)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: j-{{n}}
            matrix: {n: [1, 2, 3, 4]}
            run: 'until [ -e go ]; do sleep 0.1; done; echo {{job}} >> ended'
        """,
    )
    with launcher.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        launcher.wait_for("attempt_started", 4)
        there = {name for name, job in launcher.jobs().items() if places(job)[0][0] == "n2"}
        assert len(there) == 2
        cluster.kill_node(2)
        for name in there:  # power that fails leaves its keepers no time to write
            (launcher.run / "ends" / f"{name}.1").unlink(missing_ok=True)
        launcher.wait_for("attempt_ended", 2)
        launcher.file("go", "")
        assert process.wait(120) == 0, cluster.log()
    for name, job in launcher.jobs().items():
        expected = ["lost", None] if name in there else [None]
        assert [attempt["failure"] for attempt in job["attempts"]] == expected
        assert [node for node, _ in places(job)] == ["n1"]
    assert sorted(lines(launcher.path / "ended")) == ["j-1", "j-2", "j-3", "j-4"]
    assert not [e for e in launcher.events("attempt_ended") if e["charged"]]


def test_a_controller_that_is_killed_and_comes_back_costs_nothing(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Some end, and what needs them could begin, while it is away."""
    cluster = own_cluster()
    launcher = launcher_on(cluster, tmp_path)
    launcher.file("jobs.yaml", ONCE.replace("sleep 0.3", "until [ -e go ]; do sleep 0.1; done"))
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_started", 4)
        cluster.all_written()  # else it would forget, and give the same numbers anew
        cluster.kill_controller()
        launcher.file("go", "")
        launcher.wait_for("attempt_ended", 4)
        cluster.start_controller()
        assert process.wait(200) == 0, cluster.log()
    check_each_ran_once(launcher)
    assert {len(job["attempts"]) for job in launcher.jobs().values()} == {1}


def test_what_slurm_forgot_while_nobody_looked_is_known(
    own_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = own_cluster(settings={"MinJobAge": "2"})
    launcher = launcher_on(cluster, tmp_path)
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: 'until [ -e go ]; do sleep 0.1; done; echo good >> ran'}
          - {name: bad, run: 'until [ -e go ]; do sleep 0.1; done; exit 3'}
          - {name: next, needs: [good], run: 'echo next >> ran'}
        """,
    )
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_started", 2)
        process.kill()
        process.wait()
    ids = {job["attempts"][0]["queue_id"] for job in launcher.jobs().values() if job["attempts"]}
    assert launcher.status()["run"]["state"] == "interrupted"
    launcher.file("go", "")
    for number in {id.removeprefix("Slurm job ").partition("_")[0] for id in ids}:
        cluster.forget(number)
    result = launcher("resume", "--quiet")
    assert result.status == 1, result.err
    jobs = launcher.jobs()
    assert (jobs["bad"]["state"], jobs["bad"]["exit_code"]) == ("failed", 3)
    assert {name: len(job["attempts"]) for name, job in jobs.items()} == dict.fromkeys(jobs, 1)
    assert lines(launcher.path / "ran") == ["good", "next"]


# ── Cancelling ──────────────────────────────────────────────────────────────────────────────────


def test_cancel_leaves_no_process_however_a_job_hides(on_slurm: Launcher, cluster: Cluster) -> None:
    on_slurm.file(
        "jobs.yaml",
        """
        defaults: {grace: 1}
        jobs:
          - {name: deaf, run: "trap '' TERM; while :; do sleep 1000; done"}
          - {name: apart, run: "setsid sleep 1000 & (setsid sleep 1000 &); exec sleep 1000"}
          - {name: bare, run: "setsid env -i sleep 1000 & exec env -i sleep 1000"}
          - {name: asleep, gpus: 0, run: "kill -STOP $$"}
        """,
    )
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as process:
        on_slurm.wait_for("attempt_started", 4)
        wait_until(lambda: len(left(on_slurm)) > 8)  # their programs, too
        for name in ("deaf", "apart", "bare", "asleep"):
            assert on_slurm("cancel", "-r", on_slurm.run, name).status == 0
        assert process.wait(60) == 1
    assert set(on_slurm.states().values()) == {"cancelled"}
    assert not left(on_slurm)
    nothing_waits(cluster)
