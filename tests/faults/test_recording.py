"""When the run cannot be recorded: a full disk, a directory that is deleted under it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher
from tests.faults.test_stopping import alive


def waiting(seconds: float) -> list[str]:
    """The command, but so long is waited for a full disk, instead of a minute."""
    script = f"""
import sys
import gpulaunch.run.supervisor
gpulaunch.run.supervisor.RECORD_PATIENCE = {seconds}
from gpulaunch.cli import main
raise SystemExit(main())
"""
    return [sys.executable, "-c", script]


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


def test_a_run_that_cannot_be_described_starts_nothing(tmp_path: Path) -> None:
    script = """
import resource
from gpulaunch.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # as if the disk had so much room
raise SystemExit(main())
"""
    launcher = Launcher(tmp_path, command=[sys.executable, "-c", script])
    launcher.file("jobs.yaml", "jobs: [{name: a, run: touch begun}]\n" + "# long\n" * 1000)
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--run-dir", "kept")
    assert result.status == 4, result.err
    assert "Traceback" not in result.err
    copy = tmp_path / "kept/jobs.yaml"
    assert result.err.splitlines()[-1] == (
        f"gpulaunch: the run could not be recorded ({copy}: File too large); no job was started"
    )
    assert not (tmp_path / "begun").exists()


def test_a_disk_that_stays_full_stops_the_run_with_status_4(
    launcher: Launcher, small_disk: Path
) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: fill, retries: 1, run: 'cat /dev/zero > {small_disk}/big || exit 7'}}
          - {{name: next, after: [fill], run: 'true'}}  # its launch is what finds no room
          - {{name: long, run: exec sleep 1000, grace: 1}}
          - {{name: later, needs: [long], run: 'true'}}
        """,
    )
    run = small_disk / "run"
    impatient = Launcher(launcher.path, command=waiting(2.0))
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


@pytest.mark.parametrize("known", [False, True], ids=["first noticed then", "known before"])
def test_ctrl_c_while_the_disk_is_full_ends_the_run_as_soon_as_its_jobs_have(
    launcher: Launcher, small_disk: Path, known: bool
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: 'long-{{item}}', foreach: {values: [1, 2, 3]}, run: exec sleep 1000, grace: 1}
          - {name: short, run: 'until [ -e full ]; do sleep 0.02; done'}
          - {name: later, needs: [short], run: 'true'}
        """,
    )
    run, big = small_disk / "run", small_disk / "big"
    patient = Launcher(launcher.path, command=waiting(3600.0))
    with patient.begun("run", "jobs.yaml", "--simulate", "4", "--run-dir", run) as process:
        launcher.wait_for("attempt_started", 4, run)
        run_id = launcher.events("run_opened", run)[0]["run"]
        with suppress(OSError), big.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        if known:
            launcher.file("full", "")
            assert process.stderr
            assert any("No space left" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "the run could not be recorded (No space left on device) and was stopped" in err
    assert not alive(run_id)
    big.unlink()
    launcher.file("full", "")
    text = (launcher.path / "jobs.yaml").read_text()
    launcher.file("jobs.yaml", text.replace("exec sleep 1000", "'true'"))
    result = launcher("resume", run)
    assert result.status == 0, result.err
    attempts = {name: job["attempts"] for name, job in launcher.jobs(run).items()}
    again = ["interrupted", "succeeded"]
    states = {name: [each["state"] for each in some] for name, some in attempts.items()}
    # Its launch is recorded where the line fits into the journal's last block.
    assert states.pop("later") in (["succeeded"], ["lost", "succeeded"])
    assert states == {
        **dict.fromkeys(["long-1", "long-2", "long-3"], again),
        "short": ["succeeded"] if known else again,
    }


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
        f"""
        jobs:
          - {{name: short, run: '{UNTIL_GO}'}}
          - {{name: long, run: exec sleep 1000, grace: 1}}
        """,
    )
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started", 2)
        run_id = launcher.events("run_opened")[0]["run"]
        shutil.rmtree(launcher.run)
        launcher.file("go", "")
        assert process.wait(60) == 4
    assert not alive(run_id)


def test_a_run_that_ends_on_a_disk_that_is_nearly_full_says_so(
    launcher: Launcher, small_disk: Path
) -> None:
    script = """
import sys
import gpulaunch.run.clean
gpulaunch.run.clean.LARGE = 100_000
from gpulaunch.cli import main
raise SystemExit(main())
"""
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: a
            retries: 1
            run: |
              head -c 300000 /dev/zero > {{{{out}}}}/x
              test {{{{attempt}}}} = 2
              # What is left is enough for the end of the run, and less than a tenth.
              avail=$(df -B1 --output=avail {small_disk} | tail -1)
              head -c $((avail - 150000)) /dev/zero > {small_disk}/filled
        """,
    )
    one = Launcher(launcher.path, command=[sys.executable, "-c", script])
    run = small_disk / "run"
    done = one("run", "jobs.yaml", "--simulate", "1", "-q", "--run-dir", run)
    assert done.status == 0, done.err
    (line,) = [text for text in done.err.splitlines() if "nearly full" in text]
    assert "gpulaunch clean disk/run would free " in line
    assert launcher("clean", run).status == 0, "a full disk is no reason not to make room"
    assert not (run / "out" / "a.1").exists()
