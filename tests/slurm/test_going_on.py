"""On a cluster: `{{keep}}`, and the warning before a timeout and Slurm's limit, at preemption."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.examples.helpers import EXAMPLES
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster
from tests.slurm.conftest import MakeCluster, launcher_on
from tests.slurm.test_requeue import PREEMPTING, id_of
from tests.slurm.test_runs import SLURM


def trainer(launcher: Launcher, at: Path, **fields: str) -> None:
    """A list of one job that counts to 1,000, and waits at 300 the first time."""
    program = at / "count.py"
    program.write_text((EXAMPLES / "training" / "count.py").read_text())
    given = "".join(f"\n        {name}: {value}" for name, value in fields.items())
    launcher.file(
        "jobs.yaml",
        f"""
    jobs:
      - name: train
        run: {sys.executable} -I -S {program} {{{{keep}}}} --hold 300
        outputs: ["{{{{keep}}}}/final.txt"]{given}
    """,
    )


def holds(launcher: Launcher) -> None:
    def held() -> bool:  # `launcher.run` is another one once there is a run
        return (launcher.run / "keep/train/held").exists()

    wait_until(held, PATIENCE, "the trainer is at 300")


def check_counted(launcher: Launcher, *states: str) -> None:
    numbers = (launcher.run / "keep" / "train" / "numbers.txt").read_text().split()
    assert numbers == [str(number) for number in range(1, 1001)]
    attempts = launcher.jobs()["train"]["attempts"]
    assert [attempt["state"] for attempt in attempts] == list(states)


@pytest.mark.slow
def test_a_timeout_with_a_warning_continues(on_slurm: Launcher) -> None:
    trainer(
        on_slurm,
        on_slurm.path,
        timeout="6s",
        warn="{signal: USR2, before: 2s}",
        retries='{times: 1, "on": [timeout]}',
    )
    result = on_slurm("run", "jobs.yaml", *SLURM)
    assert result.status == 0, result.err
    check_counted(on_slurm, "failed", "succeeded")
    first = on_slurm.jobs()["train"]["attempts"][0]
    assert (first["failure"], first["warned"]["why"]) == ("timeout", "timeout")
    assert "counting from 300" in on_slurm.log("train", 2)
    assert "warned" in result.err


@pytest.mark.slow
def test_it_is_warned_before_slurms_own_limit(cluster: Cluster, on_slurm: Launcher) -> None:
    """Which its owner shortens, to half a minute's waiting here."""
    trainer(
        on_slurm,
        on_slurm.path,
        warn="{signal: USR2, before: 30s}",
        retries='{times: 1, "on": [timeout]}',
    )
    with on_slurm.begun("run", "jobs.yaml", *SLURM) as run:
        holds(on_slurm)
        cluster.command("scontrol", "update", f"jobid={id_of(on_slurm, 'train')}", "timelimit=1")
        assert run.wait(180) == 0, cluster.log()
    check_counted(on_slurm, "failed", "succeeded")
    first = on_slurm.jobs()["train"]["attempts"][0]
    assert (first["failure"], first["warned"]["why"]) == ("timeout", "stop")
    assert "counting from 300" in on_slurm.log("train", 2)


@pytest.mark.slow
@pytest.mark.parametrize("told", ["warned", "killed"])
def test_what_slurm_preempts_goes_on_when_there_is_room(
    own_cluster: MakeCluster, tmp_path: Path, told: str
) -> None:
    grace = 20 if told == "warned" else 0
    cluster = own_cluster(nodes=1, gpus=1, settings=PREEMPTING)
    create = ("scontrol", "create", "nodes=ALL")
    cluster.command(*create, "partitionname=high", "prioritytier=10")
    low = f"gracetime={grace}"
    cluster.command(*create, "partitionname=low", "preemptmode=requeue", low)
    launcher = launcher_on(cluster, tmp_path)
    trainer(
        launcher,
        tmp_path,
        preemptible="true",
        warn="{signal: USR2, before: 10s}",
        engine="{slurm: {partition: low}}",
    )
    free = tmp_path / "free"
    with launcher.begun("run", "jobs.yaml", *SLURM) as run:
        holds(launcher)
        more = f"--wrap=until [ -e '{free}' ]; do sleep 0.1; done"
        cluster.command("sbatch", "--partition=high", "--gpus=1", "--output=/dev/null", more)
        launcher.wait_for("attempt_ended")
        free.touch()
        assert run.wait(180) == 0, cluster.log()
    check_counted(launcher, "interrupted", "succeeded")
    assert not any(event.get("charged", False) for event in launcher.events("attempt_ended"))
