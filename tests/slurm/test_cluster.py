"""The throw-away cluster itself: what the other tests in here rest on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers import goes_along, wait_until
from tests.slurm.cluster import PATIENCE, Cluster, processes_told_of

ONE_THAT_IS_KILLED = """
import sys, time
from tests.slurm.cluster import Cluster
with Cluster(nodes=1) as made:
    print(made.dir, flush=True)
    made.command("sbatch", "--output=/dev/null", "--wrap", f"touch {made.dir}/ran; sleep 600")
    time.sleep(600)
"""


def submit(cluster: Cluster, *argv: str) -> str:
    return cluster.command("sbatch", "--parsable", "--output=/dev/null", *argv).strip()


def state(cluster: Cluster, job: str) -> str:
    return cluster.command("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def pid_in(path: Path) -> int:
    """What a job wrote there as its own process id."""
    return int(wait_until(lambda: path.exists() and path.read_text().strip(), PATIENCE))


def test_a_job_is_given_as_many_cards_as_it_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    for count in (1, 2):
        said = tmp_path / f"said-{count}"
        submit(
            cluster, f"--gpus-per-node={count}", "--nodes=1",
            "--wrap", f"echo $CUDA_VISIBLE_DEVICES > {said}.new; mv {said}.new {said}",
        )  # fmt: skip
        wait_until(said.exists, PATIENCE)
        assert len(said.read_text().split(",")) == count


def test_a_killed_node_takes_its_jobs_along(
    own_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = own_cluster()
    jobs = [
        submit(
            cluster, f"--nodelist=n{number}",
            "--wrap", f"setsid sleep 600 & echo $! > {tmp_path}/{number}.new;"
            f" mv {tmp_path}/{number}.new {tmp_path}/{number}; wait",
        )
        for number in (1, 2)
    ]  # fmt: skip
    ours, theirs = (pid_in(tmp_path / str(number)) for number in (1, 2))
    cluster.kill_node(1)
    assert not Path(f"/proc/{ours}").exists()
    assert Path(f"/proc/{theirs}").exists()
    assert state(cluster, jobs[1]) == "RUNNING"
    cluster.start_node(1)
    again = submit(cluster, "--nodelist=n1", "--wrap", "true")
    wait_until(lambda: state(cluster, again) == "COMPLETED", PATIENCE, "the node works again")


def test_a_controller_that_was_stopped_in_good_order_knows_its_jobs_again(
    own_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = own_cluster(nodes=1)
    job = submit(
        cluster, "--wrap", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid;"
        " sleep 600",
    )  # fmt: skip
    pid = pid_in(tmp_path / "pid")
    cluster.stop_controller()
    assert Path(f"/proc/{pid}").exists()
    cluster.start_controller()
    assert state(cluster, job) == "RUNNING"


def test_nothing_of_a_cluster_is_left_when_the_tests_are_killed(slurm_here: None) -> None:
    ours = subprocess.Popen(
        [sys.executable, "-c", ONE_THAT_IS_KILLED],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    with ours:
        assert ours.stdout
        at = Path(ours.stdout.readline().strip())
        wait_until((at / "ran").exists, PATIENCE, "its job runs")
        assert len(processes_told_of(at)) > 4
        ours.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes_told_of(at), PATIENCE, "all its processes have ended")
    shutil.rmtree(at)


def test_one_to_play_with_says_how_to_speak_to_it_and_ends_when_told(slurm_here: None) -> None:
    play = subprocess.Popen(
        [sys.executable, "-m", "tests.slurm.cluster"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=goes_along(),
    )
    assert play.stdout is not None
    said = play.stdout.readline().strip()
    assert said.startswith("export SLURM_CONF=")
    directory = Path(said.partition("=")[2]).parent
    assert directory.is_dir()
    play.terminate()
    assert play.wait(PATIENCE) == 143
    play.stdout.close()
    assert not directory.exists()
    assert processes_told_of(directory) == []
