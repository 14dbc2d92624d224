"""What the tests start goes along with them: a killed test run leaves no run of ours behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpulaunch.agent.proc import state_of
from tests.cli.launcher import COMMAND, Launcher
from tests.faults.test_stopping import alive
from tests.helpers import wait_until

ROOT = Path(__file__).parents[2]
RUN = "'run', 'jobs.yaml', '--simulate', '1'"


@pytest.mark.parametrize(
    "starts",
    [f"launcher({RUN})", f"launcher.begun({RUN})", f"terminal(launcher, {RUN})"],
    ids=["to its end", "begun", "at a terminal"],
)
def test_a_killed_test_takes_its_launcher_and_the_job_along(
    launcher: Launcher, starts: str
) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, grace: 0, run: exec sleep 1000}]")
    code = f"""
import sys, time
from pathlib import Path
from tests.cli.launcher import Launcher
from tests.cli.terminal import terminal
launcher = Launcher(Path(sys.argv[1]))
with {starts}:
    time.sleep(1000)
"""
    command = [sys.executable, "-c", code, str(launcher.path)]
    with subprocess.Popen(command, cwd=ROOT) as test:
        try:
            wait_until((launcher.path / "gpulaunch-runs" / "latest").exists, 60)
            launcher.wait_for("attempt_started")
        finally:
            test.kill()
    (opened,) = launcher.events("run_opened")
    wait_until(lambda: not alive(opened["run"]), 60, "the launcher and its job are gone")
    wait_until(lambda: state_of(opened["pid"]) in ("", "Z"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_tests_ignore_is_not_ignored_by_a_launcher(
    launcher: Launcher, number: int
) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, grace: 0, run: exec sleep 1000}]")
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
            launcher.wait_for("attempt_started")
            process.send_signal(number)
            assert process.wait(60) == 128 + number
    finally:
        signal.signal(number, before)


def test_a_forked_command_does_what_one_that_starts_anew_does(launcher: Launcher) -> None:
    cold = Launcher(launcher.path, command=[*COMMAND])
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'cat; echo $HOME >&2; exit 3'}]")
    launcher.file("wrong.yaml", "jobs: [{name: a}]")
    launcher.environ["HOME"] = cold.environ["HOME"] = "/elsewhere"
    for argv in (
        ("--version",),
        ("check", "jobs.yaml", "--simulate", "1"),
        ("check", "wrong.yaml", "--json"),
        ("nonsense",),
    ):
        assert launcher(*argv) == cold(*argv)
    for each in (launcher, cold):
        result = each("run", "--new", "jobs.yaml", "--simulate", "1", stdin="unread")
        assert (result.status, result.out) == (1, "")
        assert each.log("a") == "/elsewhere\n"
