"""GPULAUNCH_TRACE: what a supervisor was told and what it did, played again afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.launcher import Launcher
from tests.helpers import wait_until

REPLAY = ["-m", "gpulaunch.journal.trace"]
JOBS = """
    jobs:
      - {name: again, run: '[ -e good ] || { touch good; exit 1; }', retries: 2}
      - {name: long, run: '[ -e short ] || exec sleep 1000', grace: 1}
      - {name: needy, needs: [again, long], run: 'true'}
      - {name: held, run: '[ -e there ] || { touch there; exec sleep 1000; }'}
"""


def test_a_run_with_a_retry_a_cancel_and_a_drain_is_traced_and_replays(launcher: Launcher) -> None:
    launcher.environ["GPULAUNCH_TRACE"] = "trace"
    launcher.environ["TOKEN"] = "of the caller's environment"
    launcher.file("jobs.yaml", JOBS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "3") as process:
        wait_until(lambda: launcher.run.is_dir() and launcher.states().get("again") == "succeeded")
        assert launcher("cancel", "-r", launcher.run, "long").status == 0
        wait_until((launcher.path / "there").exists)
        assert launcher("drain", "-r", launcher.run, "--now").status == 0
        wait_until(lambda: launcher.states()["held"] == "waiting")
        assert launcher("drain", "-r", launcher.run, "--off").status == 0
        assert process.wait(60) == 1
    trace = launcher.path / "trace"
    assert "of the caller's environment" not in trace.read_text()
    assert "sleep" not in trace.read_text()
    assert _replayed(launcher.path, "trace").returncode == 0
    launcher.file("short", "")
    launcher.environ["GPULAUNCH_TRACE"] = "trace of a later supervisor"
    assert launcher("resume", launcher.run, "--recorded").status == 0
    assert _replayed(launcher.path, "trace of a later supervisor").returncode == 0


def test_a_trace_that_is_there_already_is_left_as_it_is_and_the_run_says_so(
    launcher: Launcher,
) -> None:
    launcher.environ["GPULAUNCH_TRACE"] = str(launcher.file("trace", "mine"))
    launcher.file("jobs.yaml", "jobs: [{run: 'true', gpus: 0}]")
    done = launcher("run", "jobs.yaml", "--simulate", "1")
    assert done.status == 0
    assert "File exists; the run is not traced" in done.out + done.err
    assert (launcher.path / "trace").read_text() == "mine"


def test_the_document_has_the_command() -> None:
    text = (Path(__file__).parents[2] / "docs" / "design" / "journal.md").read_text()
    assert "GPULAUNCH_TRACE=trace gpulaunch run jobs.yaml\n" in text
    assert " ".join(["python", *REPLAY, "trace"]) in text


def _replayed(where: Path, trace: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *REPLAY, trace]
    return subprocess.run(command, cwd=where, check=False, timeout=60)
