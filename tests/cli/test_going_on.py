"""A trainer that is ended in every way there is goes on from its checkpoints, each number once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.examples.helpers import EXAMPLES
from tests.helpers import wait_until

TRAINER = EXAMPLES / "training" / "count.py"


def trainer(launcher: Launcher, **fields: str) -> None:
    """A list of one job that counts to 1,000, and waits at 300 the first time."""
    given = "".join(f"\n        {name}: {value}" for name, value in fields.items())
    text = f"""
    jobs:
      - name: train
        run: {sys.executable} {TRAINER} {{{{keep}}}} --hold 300
        outputs: ["{{{{keep}}}}/final.txt"]{given}
    """
    launcher.file("jobs.yaml", text)


def kept(launcher: Launcher) -> Path:
    return launcher.run / "keep" / "train"


def holds(launcher: Launcher) -> None:
    def held() -> bool:
        return launcher.run.name != "latest" and (kept(launcher) / "held").exists()

    wait_until(held, 60, "the trainer is at 300")


def check_counted(launcher: Launcher, *states: str) -> None:
    """Each number is there once, in order; these are what became of the attempts."""
    numbers = (kept(launcher) / "numbers.txt").read_text().split()
    assert numbers == [str(number) for number in range(1, 1001)]
    attempts = launcher.jobs()["train"]["attempts"]
    assert [attempt["state"] for attempt in attempts] == list(states)


def charged(launcher: Launcher) -> int:
    return sum(event.get("charged", False) for event in launcher.events("attempt_ended"))


def test_a_timeout_with_a_warning_continues(launcher: Launcher) -> None:
    trainer(
        launcher,
        timeout="4s",
        warn="{signal: USR2, before: 1s}",
        retries='{times: 1, "on": [timeout]}',
    )
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 0, result.err
    check_counted(launcher, "failed", "succeeded")
    assert "its timeout is near: SIGUSR2 sent to 1 process" in result.err
    first, second = launcher.jobs()["train"]["attempts"]
    assert (first["failure"], first["exit_code"], second["warned"]) == ("timeout", 1, None)
    assert (first["warned"]["signal"], first["warned"]["why"]) == ("USR2", "timeout")
    assert "counting from 300" in launcher.log("train", 2), "not from its last regular checkpoint"
    shown = launcher("status", "train").out
    assert "its timeout is near: SIGUSR2 sent to 1 process" in shown
    assert "its timeout is near" in (launcher.run / "report.html").read_text()


def test_cancel_and_retry(launcher: Launcher) -> None:
    trainer(launcher)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        holds(launcher)
        assert launcher("cancel", "train").status == 0
        assert run.wait(60) == 1
    assert launcher("retry", "train").status == 0
    check_counted(launcher, "cancelled", "succeeded")


def test_a_program_that_is_killed_and_tried_again(launcher: Launcher) -> None:
    trainer(launcher, retries="1")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        holds(launcher)
        (started,) = launcher.events("attempt_started")
        os.kill(started["pid"], signal.SIGKILL)
        assert run.wait(60) == 0
    check_counted(launcher, "failed", "succeeded")


def test_a_launcher_that_is_killed_and_resumed(launcher: Launcher) -> None:
    trainer(launcher)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        holds(launcher)
        run.kill()
        run.wait()
    assert launcher("resume").status == 0
    check_counted(launcher, "interrupted", "succeeded")


@pytest.mark.parametrize("warn", ["{signal: USR2, before: 10m}", "null"])
def test_a_preemptible_job_gives_its_card_up_and_goes_on_when_it_is_free(
    launcher: Launcher, warn: str
) -> None:
    launcher.environ["GPULAUNCH_SIM_POOL"] = uuid.uuid4().hex[:12]
    trainer(launcher, preemptible="true", warn=warn)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        holds(launcher)
        found = launcher("exec", "--simulate", "1", "--", "true")
        assert found.status == 0, found.err
        assert run.wait(60) == 0
    check_counted(launcher, "interrupted", "succeeded")
    assert charged(launcher) == 0
    first = launcher.jobs()["train"]["attempts"][0]
    assert (first["warned"] is None) == (warn == "null")
    lines = launcher.events("attempt_ended")[0]["end"]["outcome"]
    assert lines["by"] == {"kind": "because", "cause": "gives_way"}


def test_a_preemptible_job_interrupts_no_preemptible_job_of_another_run(launcher: Launcher) -> None:
    launcher.environ["GPULAUNCH_SIM_POOL"] = uuid.uuid4().hex[:12]
    launcher.file("other.yaml", "jobs: [{name: other, preemptible: true, run: 'touch ran'}]")
    trainer(launcher, preemptible="true", warn="{signal: USR2, before: 10m}")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        holds(launcher)
        there = launcher.path / "there"
        options = ("--simulate", "1", "--run-dir", there)
        with launcher.begun("run", "other.yaml", *options) as other:
            launcher.wait_for("gpu_changed", run=there)
            assert not launcher.events("attempt_warned")
            assert launcher("cancel", "-r", launcher.run, "train").status == 0
            assert (run.wait(60), other.wait(60)) == (1, 0)
    assert [a["state"] for a in launcher.jobs()["train"]["attempts"]] == ["cancelled"]


def test_the_example_counts_each_number_once(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "training", tmp_path / "training")
    done = subprocess.run(
        [sys.executable, "-m", "gpulaunch", "run", "training/jobs.yaml", "--simulate", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "gpulaunch-runs" / "latest"
    assert (run / "results/sum/sum.txt").read_text() == f"{1000 * 1001 // 2}\n"
