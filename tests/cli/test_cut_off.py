"""What every view says of attempts whose end no supervisor recorded."""

from __future__ import annotations

import binascii
import json
import os
import signal
from pathlib import Path

import pytest

from gpulaunch.journal.ends import Ends
from tests.cli.launcher import Launcher
from tests.cli.test_report import data
from tests.helpers import wait_until


@pytest.fixture
def killed(launcher: Launcher) -> Launcher:
    """A run whose launcher was killed; its job's keeper wrote down that it ended 75.5 s after it
    began."""
    launcher.file("jobs.yaml", "jobs: [{name: slow, run: 'echo begun; sleep 600'}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as run:
        launcher.wait_for("attempt_started")
        os.kill(run.pid, signal.SIGKILL)
        run.wait(60)
    wait_until(lambda: Ends(launcher.run / "ends").of("slow.1"), 60)
    end_after(slots(launcher), 75.5)
    return launcher


def slots(launcher: Launcher) -> Path:
    """The file with the ends of the launcher's attempts."""
    (file,) = (launcher.run / "ends").iterdir()
    return file


def end_after(path: Path, seconds: float) -> None:
    """Rewrite a keeper's record as if the attempt had lasted so long."""
    record = json.loads(path.read_bytes().partition(b"\n")[0].partition(b" ")[2])
    record["ended"] = [start + seconds for start in record["started"]]
    text = json.dumps(record).encode()
    path.write_bytes(b"%08x %s\n" % (binascii.crc32(text), text))


def test_an_attempt_of_a_killed_run_lasted_until_its_keeper_ended_it(killed: Launcher) -> None:
    said = killed("status", "slow").out
    assert "attempt 1  interrupted  1:15" in said
    (attempt,) = killed.jobs()["slow"]["attempts"]
    assert attempt["seconds"] == pytest.approx(75, abs=1)
    assert attempt["ended"] is None


def test_the_report_draws_it_as_long(killed: Launcher) -> None:
    assert killed("report").status == 0
    drawn = data((killed.run / "report.html").read_text())["attempts"]
    assert drawn["end"][0] - drawn["start"][0] == pytest.approx(75, abs=1)


def test_where_the_keeper_was_killed_too_it_lasted_until_the_runs_last_sign_of_life(
    killed: Launcher,
) -> None:
    slots(killed).unlink()
    (attempt,) = killed.jobs()["slow"]["attempts"]
    assert attempt["seconds"] is not None
    assert attempt["seconds"] < 60
    assert "attempt 1  interrupted  0:0" in killed("status", "slow").out
