"""`gpulaunch export --to slurm`, submitted to a real Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.export.helpers import as_run, hostile, results
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster


@pytest.fixture
def slurm(tmp_path: Path, cluster: Cluster) -> Launcher:
    """gpulaunch in an empty directory, on the cluster's login node."""
    at = tmp_path / "work it"
    at.mkdir()
    return Launcher(at, {"SLURM_CONF": cluster.environ["SLURM_CONF"]})


def export(launcher: Launcher) -> Path:
    done = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "out dir")
    assert done.status == 0, done.err
    return launcher.path / "out dir"


def submitted(launcher: Launcher, cluster: Cluster, directory: Path) -> dict[str, str]:
    """Submit everything and wait for its end: the state of each array task or job, by name."""
    done = subprocess.run(
        ["bash", directory / "submit.sh"],
        cwd="/",
        env=launcher.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    numbers = [line.split()[0] for line in done.stdout.splitlines()]

    def states() -> dict[str, str]:
        found = {}
        listed = cluster.command("squeue", "-h", "-r", "-t", "all", "-o", "%F %K %T %j")
        for line in listed.splitlines():
            if line.partition(" ")[0] in numbers:  # else another test's, whatever it is called
                _, task, state, name = line.split(" ", 3)
                found[name if task == "N/A" else f"{name}.{task}"] = state
        return found

    waiting = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
    wait_until(lambda: not any(state in waiting for state in states().values()), 3 * PATIENCE)
    return states()


def test_hostile_names_and_values_leave_exactly_what_a_run_leaves(
    slurm: Launcher, cluster: Cluster
) -> None:
    jobs = hostile(slurm)
    expected = as_run(slurm, jobs)
    directory = export(slurm)
    for script in directory.glob("*.sh"):
        if script.name != "submit.sh":
            subprocess.run(
                ["sbatch", "--test-only", script.name],
                cwd=directory,
                env=slurm.environ,
                check=True,
                capture_output=True,
                timeout=PATIENCE,
            )
    states = submitted(slurm, cluster, directory)
    assert set(states.values()) == {"COMPLETED"}
    assert len(states) == 47
    assert results(directory) == expected
    assert not list(slurm.path.glob("**/owned"))


def test_needs_tokens_cards_and_limits_are_kept_and_what_cannot_run_is_cancelled(
    slurm: Launcher, cluster: Cluster
) -> None:
    slurm.file(
        "jobs.yaml",
        """
        limits: {server: 1}
        jobs:
          - name: fold-{{item}}
            foreach: {values: [a, b, c]}
            first: true
            run: test {{item}} != b
          - name: relax-{{item}}
            foreach: {values: [a, b, c]}
            needs: ["fold-{{item}}"]
            run: echo {{item}} > {{out}}/x
          - name: always
            gpus: 0
            after: ["relax-*"]
            run: (cd {{run_dir}}/results; ls -d relax-*) > {{out}}/x
          - {name: never, gpus: 0, needs: ["relax-*"], run: "true"}
          - name: one-{{item}}
            foreach: {values: [1, 2, 3, 4]}
            uses: [server]
            run: mkdir busy && sleep 0.2 && rmdir busy && echo $CUDA_VISIBLE_DEVICES > {{out}}/x
          - {name: two, gpus: 2, run: 'echo $CUDA_VISIBLE_DEVICES {{gpu_index}} > {{out}}/x'}
          - {name: none, gpus: 0, run: 'echo "<${CUDA_VISIBLE_DEVICES-unset}>" > {{out}}/x'}
          - {name: three, success_codes: [3], run: exit 3}
          - {name: slow, timeout: 300ms, grace: 0, run: sleep 60}
        """,
    )
    directory = export(slurm)
    states = submitted(slurm, cluster, directory)
    found = results(directory)
    assert {name for name, state in states.items() if state == "FAILED"} == {"fold.1", "slow"}
    assert {name for name, state in states.items() if state == "CANCELLED"} == {"relax.1", "never"}
    done = {name for name, state in states.items() if state == "COMPLETED"}
    assert len(done) == len(states) - 4, f"one at a time, nobody found it busy: {states}"
    assert found["always :: x"] == b"relax-a\nrelax-c\n"
    assert found["two :: x"] == b"0,1 0,1\n"
    assert found["none :: x"] == b"<>\n"
    assert {found[f"one-{i} :: x"] for i in range(1, 5)} <= {b"0\n", b"1\n"}


def test_options_of_the_job_file_come_to_slurm_as_they_are(
    slurm: Launcher, cluster: Cluster
) -> None:
    slurm.file(
        "jobs.yaml",
        r"""
        jobs:
          - name: told-of
            gpus: 0
            engine: {slurm: {account: "lab x", extra: ['--comment=it''s a "b" \ c, # d', --nice=7]}}
            run: "true"
        """,
    )
    assert set(submitted(slurm, cluster, export(slurm)).values()) == {"COMPLETED"}
    listed = cluster.command("squeue", "-h", "-t", "all", "-n", "told-of", "-o", "%a|%k")
    assert listed.splitlines() == [r"""lab x|it's a "b" \ c, # d"""]
