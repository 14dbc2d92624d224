"""What cannot be killed (stuck in the kernel, frozen) is named, and no stop waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpulaunch.gpus.socket_locks import bind_name
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until

FREEZER = Path("/sys/fs/cgroup/freezer")
JOBS = f"defaults: {{grace: 0.1s}}\njobs:\n  - {{name: a, run: '{UNTIL_GO}'}}\n"


@pytest.fixture
def left(launcher: Launcher) -> Iterator[Launcher]:
    """A run whose launcher was killed; a keeper of its attempt seems to be alive."""
    launcher.file("jobs.yaml", JOBS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        process.kill()
    run = launcher.status()["run"]["id"]
    wait_until(lambda: any(os.path.getsize(end) for end in (launcher.run / "ends").iterdir()))
    for end in (launcher.run / "ends").iterdir():
        end.unlink()  # as if the attempt had not ended
    with bind_name(f"keeper/{run}/1.1.0"):
        yield launcher


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "cancel"])
def test_a_resume_that_waits_for_an_old_attempt_says_so_and_can_be_stopped(
    left: Launcher, how: str
) -> None:
    with left.begun("resume", "--quiet") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "waits for the end of a.1, which an earlier launcher started" in line
        if how == "cancel":
            assert left("cancel", "--all").status == 0
            status = 1
        else:
            process.send_signal(signal.Signals[how])
            status = 128 + signal.Signals[how]
        said = process.communicate(timeout=60)[1]
        assert process.returncode == status
    assert "not ended yet, and left alive: " in said
    assert " of a.1" in said
    assert left.states() == {"a": "waiting"}


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A group whose processes cannot even be killed while they are frozen (cgroup v1)."""
    group = FREEZER / f"gpulaunch-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no freezer of cgroup v1 that this user may use")
    try:
        yield group
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (group / "tasks").read_text(), what="the end of what was frozen")
        group.rmdir()


def test_a_live_run_can_be_stopped_while_a_process_cannot_be_killed(
    launcher: Launcher, freezer: Path
) -> None:
    script = f"""
        sleep 1000 & c=$!
        echo $c > {freezer}/tasks; echo FROZEN > {freezer}/freezer.state; echo $c > frozen; wait
    """
    launcher.file("job.sh", script)
    launcher.file("jobs.yaml", "defaults: {grace: 0.1s}\njobs: [{name: a, run: bash job.sh}]\n")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "--quiet") as process:
        wait_until((launcher.path / "frozen").exists)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    pid = (launcher.path / "frozen").read_text().strip()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"a.1: process {pid} cannot be killed; its cards are not used again" in said
    assert f"left alive: process {pid} of a.1 on GPU 0" in said
    with launcher.begun("resume", "--quiet") as again:
        assert again.stderr is not None
        assert f"process {pid} (frozen)" in again.stderr.readline()
        (launcher.path / "job.sh").write_text("true")
        (freezer / "freezer.state").write_text("THAWED")
        with suppress(subprocess.TimeoutExpired):
            again.communicate(timeout=60)
        assert again.returncode == 0
    assert launcher.states() == {"a": "succeeded"}


EXECUTOR = """
import os, signal, sys
from pathlib import Path
from gpulaunch import GpuExecutor

def stuck():
    pid = os.fork()
    if not pid:
        signal.pause()
    Path(sys.argv[1], "tasks").write_text(str(pid))
    Path(sys.argv[1], "freezer.state").write_text("FROZEN")
    return pid

if __name__ == "__main__":
    with GpuExecutor(simulate=1) as executor:
        print(executor.submit(stuck).result())
"""


def test_an_executor_ends_while_a_process_of_its_worker_cannot_be_killed(
    launcher: Launcher, freezer: Path
) -> None:
    program = launcher.file("program.py", EXECUTOR)
    said = launcher.path / "said"
    with open(said, "w") as file:  # no pipe: what is frozen may have it open
        line = [sys.executable, program, freezer]
        assert subprocess.call(line, stdout=file, stderr=file, timeout=60) == 0
    pid = (freezer / "tasks").read_text().strip()
    assert f"process {pid} of a worker cannot be killed" in said.read_text()
