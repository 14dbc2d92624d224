"""When the run cannot be recorded: a full disk, a directory that is deleted under it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.faults.test_stopping import alive

# The command, but a full disk is waited for 2 seconds instead of 60.
IMPATIENT = """
import sys
import gpulaunch.supervisor
gpulaunch.supervisor.RECORD_PATIENCE = 2.0
from gpulaunch.cli import main
raise SystemExit(main())
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    if os.getuid() != 0:
        pytest.skip("a small file system is mounted by root only")
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


def test_a_disk_that_stays_full_stops_the_run_with_status_4(
    launcher: Launcher, small_disk: Path
) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: fill, retries: 1, run: 'cat /dev/zero > {small_disk}/big || exit 7'}}
          - {{name: long, run: exec sleep 1000, grace: 1}}
          - {{name: later, needs: [long], run: 'true'}}
        """,
    )
    run = small_disk / "run"
    impatient = Launcher(launcher.path, command=[sys.executable, "-c", IMPATIENT])
    result = impatient("run", "jobs.yaml", "--simulate", "2", "--run-dir", run, timeout=60)
    assert result.status == 4, result.err
    assert "No space left" in result.err
    run_id = launcher.events("run_opened", run)[0]["run"]
    assert not alive(run_id), "running jobs are ended in good order"
    (small_disk / "big").unlink()
    launcher.file("jobs.yaml", "jobs: [{name: fill, run: 'true'}, {name: long, run: 'true'}]")
    result = launcher("resume", run)
    assert result.status == 0, result.err
    first = launcher.jobs(run)["fill"]["attempts"][0]
    assert first["exit_code"] == 7, "the laid-out file took the end that the journal could not"


def test_a_disk_that_has_room_again_costs_nothing(launcher: Launcher, small_disk: Path) -> None:
    """What does not fit first is chance: a line of the journal, or what a start lays out."""
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: fill
            run: |
              cat /dev/zero > {small_disk}/big || touch full
              until [ -e freed ]; do sleep 0.02; done
          - {{name: other, run: 'until [ -e full ]; do sleep 0.02; done'}}
          - {{name: later, needs: [other], run: 'true'}}
        """,
    )
    run = small_disk / "run"
    with launcher.begun("run", "jobs.yaml", "--simulate", "2", "--run-dir", run) as process:
        assert process.stderr
        assert any("No space left" in line for line in process.stderr)
        (small_disk / "big").unlink()
        launcher.file("freed", "")
        assert process.wait(60) == 0
    assert set(launcher.states(run).values()) == {"succeeded"}


def test_a_run_directory_that_is_deleted_stops_the_run(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: short, run: sleep 1}
          - {name: long, run: exec sleep 1000, grace: 1}
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        run_id = launcher.events("run_opened")[0]["run"]
        shutil.rmtree(launcher.run)
        assert process.wait(60) == 4
    assert not alive(run_id)
