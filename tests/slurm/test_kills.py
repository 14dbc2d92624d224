"""Whole runs in trouble: the launcher SIGKILLed, a node or the controller gone, jobs forgotten.

GPULAUNCH_TEST_KILLS says how often the launcher is killed (6; the release figure is 50).
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.base.wording import cause
from gpulaunch.journal.ends import cause_of
from gpulaunch.journal.manifest import boot_id, hostname
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import MakeCluster, launcher_on
from tests.slurm.test_runs import SLURM, left, lines, places

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "6"))
# Waits seconds, not a minute, for records that a node which is gone has not left. The tests have to
# see `status` within these seconds.
IMPATIENT = [
    sys.executable,
    "-c",
    "from gpulaunch.engines.slurm import outcome; outcome.NFS_VISIBILITY_TIMEOUT = 15.0;"
    "from gpulaunch.cli import main; raise SystemExit(main())",
]


def why_ended(event: Mapping[str, Any]) -> str:
    """Why the attempt ended, in words."""
    outcome = event["end"]["outcome"]
    told = outcome.get("by") or outcome.get("why")
    return cause(cause_of(json.dumps(told))) if told else str(outcome["kind"])


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


ALONE = """
    jobs:
      - {name: "long-{{n}}", matrix: {n: [1, 2, 3]}, run: "until [ -e go ]; do sleep 0.1; done"}
      - {name: first, gpus: 0, run: "until [ -e step ]; do sleep 0.1; done; echo x > {{out}}/left"}
      - {name: second, gpus: 0, needs: [first], run: "cat {{run_dir}}/results/first/left"}
"""


def test_a_run_whose_launcher_died_on_another_machine_goes_on_and_is_taken_over(
    on_slurm: Launcher,
) -> None:
    """What follows another is begun without a launcher, too, and finds what that left."""
    on_slurm.file("jobs.yaml", ALONE)
    with on_slurm.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        on_slurm.wait_for("attempt_started", 4)
        drained = on_slurm("drain", "-r", on_slurm.run)
        assert (drained.status, "has every card back already" in drained.err) == (2, True)
        on_slurm.wait_for("attempt_queued", 5)
        manifest = on_slurm.run / "manifest.json"
        ours = manifest.read_text()
        theirs = ours.replace(f'"host": "{hostname()}"', '"host": "login1"')
        theirs = theirs.replace(boot_id(), "another")
        manifest.write_text(theirs)
        alive = on_slurm("resume", "--take-over")
        assert (alive.status, "its launcher is alive" in alive.err) == (2, True)
        process.send_signal(signal.SIGKILL)
        process.wait()
    manifest.write_text(ours)
    assert "goes on: `gpulaunch resume` takes it up" in on_slurm("status").out
    assert "these jobs: its supervisor is gone; " in on_slurm("logs", "--follow").err
    for named in ((), ("-r", on_slurm.run)):
        cancelled = on_slurm("cancel", *named, "second")
        assert (cancelled.status, "`gpulaunch resume` takes it up" in cancelled.err) == (2, True)
    manifest.write_text(theirs)
    refused = on_slurm("resume")
    assert refused.status == 2
    assert "login1" in refused.err
    assert "--take-over" in refused.err
    on_slurm.file("step", "")
    log = on_slurm.run / "logs/second.1.log"
    wait_until(lambda: lines(log) == ["x"], what="one follows the other without a launcher")
    on_slurm.file("go", "")
    again = on_slurm("resume", "--take-over")
    assert again.status == 0, again.err
    assert "5 jobs: 5 succeeded" in again.err
    assert {len(job["attempts"]) for job in on_slurm.jobs().values()} == {1}
    assert json.loads(manifest.read_text())["epochs"][-1]["host"] == hostname()
    assert re.search(r"n[12], no card", (on_slurm.run / "report.html").read_text())


def test_a_list_whose_jobs_are_in_slurms_queue_is_not_handed_over_again_from_another_directory(
    on_slurm: Launcher,
) -> None:
    """Wherever the second run would be kept, and wherever it is typed; --new says that it may."""
    on_slurm.file("jobs.yaml", f"jobs: [{{name: job, gpus: 0, run: 'echo x >> ran; {UNTIL_GO}'}}]")
    elsewhere = Launcher(on_slurm.path / "sub", on_slurm.environ)
    elsewhere.path.mkdir()
    file = str(on_slurm.path / "jobs.yaml")
    with on_slurm.begun("run", file, *SLURM, "--quiet", "--run-dir", "kept") as process:
        wait_until(lambda: len(lines(on_slurm.path / "ran")) == 1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for launcher, options in ((on_slurm, ()), (on_slurm, ("--run-dir", "a b")), (elsewhere, ())):
        refused = launcher("run", file, *SLURM, "--quiet", *options)
        assert refused.status == 5, refused.err
        for words in ("whose launcher is gone: ", "gpulaunch resume ", "kept", "--new "):
            assert words in refused.err
    assert "--run-dir 'a b'" in on_slurm("run", file, *SLURM, "--run-dir", "a b").err
    assert len(lines(on_slurm.path / "ran")) == 1
    on_slurm.file("go", "")
    assert on_slurm("run", file, *SLURM, "--quiet", "--new").status == 0
    kept = on_slurm("resume", "kept", "--quiet")
    assert kept.status == 0, kept.err
    assert on_slurm("run", file, *SLURM, "--quiet", "--run-dir", "again").status == 0
    assert len(lines(on_slurm.path / "ran")) == 3


def test_cancel_takes_what_a_launcher_that_was_killed_left_out_of_slurms_queue(
    cluster: Cluster, on_slurm: Launcher
) -> None:
    """What runs is ended, what waits is withdrawn, and nobody else's job is touched."""
    jobs = """
        jobs:
          - {name: 'runs-{{n}}', matrix: {n: [1, 2, 3]}, run: sleep 300}
          - {name: waits, gpus: 2, run: sleep 300}
          - {name: then, needs: [runs-1], run: sleep 300}
    """
    on_slurm.file("jobs.yaml", jobs)
    wrap = ("--wrap=sleep 300", "--output=/dev/null", "--job-name=gl:another:1-1:runs")
    other = cluster.command("sbatch", "--parsable", "--gpus=1", *wrap).strip()
    with on_slurm.begun("run", "jobs.yaml", *SLURM, "--quiet") as process:
        on_slurm.wait_for("attempt_started", 3)
        on_slurm.wait_for("attempt_queued", 5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(cluster.command("squeue", "-h", "-r").splitlines()) == 6
    cancelled = on_slurm("cancel", "--all")
    assert cancelled.status == 0, cancelled.err
    assert "is gone, and left 5 attempts in Slurm's queue: they are cancelled" in cancelled.err
    wait_until(lambda: cluster.command("squeue", "-h", "-o", "%A").split() == [other], PATIENCE)
    assert set(on_slurm.states().values()) == {"cancelled"}
    again = on_slurm("cancel", "--all")
    assert (again.status, "no run of" in again.err) == (2, True)


def test_cancel_of_a_queue_whose_launcher_was_killed_ends(on_slurm: Launcher) -> None:
    """Otherwise it would stand again, and take jobs until somebody stops it."""
    on_slurm.environ["XDG_STATE_HOME"] = str(on_slurm.path / "state")
    queue = str(on_slurm.path / "state" / "gpulaunch" / "queue")
    with on_slurm.begun("queue", "start", *SLURM, "--quiet") as process:
        wait_until(lambda: on_slurm("queue", "status").status == 0, PATIENCE)
        added = on_slurm("add", "--run", queue, "--", "bash", "-c", "echo x > ran; sleep 300")
        assert added.status == 0, added.err
        wait_until((on_slurm.path / "ran").exists, PATIENCE)
        process.send_signal(signal.SIGKILL)
        process.wait()
    cancelled = on_slurm("cancel", "--run", queue, "--all")
    assert cancelled.status == 0, cancelled.err
    shown = json.loads(on_slurm("status", queue, "--json").out)
    assert (shown["run"]["state"], shown["run"]["counts"]["cancelled"]) == ("failed", 1)


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
        # Slurm would notice in half a minute.
        cluster.command("scontrol", "update", "nodename=n2", "state=down", "reason=gone")
        for name in there:  # power that fails leaves its keepers no time to write
            (launcher.run / "ends" / f"{name}.1").unlink(missing_ok=True)
        doubt = "Slurm has put it back into its queue, as when node n2 fails, for "

        def doubted() -> set[str]:
            every = launcher.jobs().items()
            return {name for name, job in every if job["reason"].startswith(doubt)}

        wait_until(lambda: doubted() == there, PATIENCE, "status says so before they are lost")
        launcher.wait_for("attempt_ended", 2)
        launcher.file("go", "")
        assert process.wait(120) == 0, cluster.log()
    for name, job in launcher.jobs().items():
        expected = ["lost", None] if name in there else [None]
        assert [attempt["failure"] for attempt in job["attempts"]] == expected
        assert [node for node, _ in places(job)] == ["n1"]
    why = "requeued by Slurm (n2), as when a node fails"
    ended = launcher.events("attempt_ended")
    assert {e["job"] for e in ended if why_ended(e).startswith(why)} == there
    assert sorted(lines(launcher.path / "ended")) == ["j-1", "j-2", "j-3", "j-4"]
    assert not [e for e in launcher.events("attempt_ended") if e.get("charged")]


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


LONG = """
    jobs:
      - name: j-{{n}}
        matrix: {n: [1, 2, 3, 4]}
        grace: 2
        run: 'echo {{job}}.{{attempt}} >> ran; until [ -e go ]; do sleep 0.1; done'
"""


def test_ctrl_c_needs_no_controller(own_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = own_cluster(nodes=1)
    launcher = launcher_on(cluster, tmp_path)
    launcher.file("jobs.yaml", LONG)
    with launcher.begun("run", "jobs.yaml", *SLURM) as process:
        launcher.wait_for("attempt_queued", 4)
        launcher.wait_for("attempt_started", 2)
        wait_until(lambda: len(lines(launcher.path / "ran")) == 2)
        cluster.stop_controller()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read() if process.stderr else ""
    assert "Slurm's controller does not answer: " in said
    assert "2 attempts are withdrawn" in said
    assert "(scancel 2_[2-3] takes them out of its queue)" in said
    assert not left(launcher)
    assert launcher.status()["run"]["state"] == "stopped"
    assert set(launcher.states().values()) == {"waiting"}
    cluster.start_controller()
    wait_until(lambda: not cluster.command("squeue", "-h"), what="what waited ends as it begins")
    before = set(lines(launcher.path / "ran"))
    assert len(before) == 2
    launcher.file("go", "")
    result = launcher("resume", "--quiet")
    assert result.status == 0, result.err
    assert set(lines(launcher.path / "ran")) == before | {f"j-{n}.2" for n in (1, 2, 3, 4)}
