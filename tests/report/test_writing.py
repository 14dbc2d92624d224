"""The run's side of the report: whatever becomes of the process, it is waited for and told of."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.app.supervisor import STOPPING
from gpulaunch.journal.rundir import RunDir
from gpulaunch.report.writing import Writing
from tests.report import night
from tests.views.history import History


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    history = History(1).open().jobs("a").start("a", 0).pass_(5).fail("a")
    return night.write(tmp_path / "run", history, measured=False)


@pytest.fixture
def hung(run: RunDir) -> Iterator[RunDir]:
    """A run with a log that cannot be read to its end: a pipe that nobody writes into."""
    log = next(run.logs.iterdir())
    log.unlink()
    os.mkfifo(log)
    yield run
    assert not run.report.exists()


def test_it_is_written_by_a_process_of_its_own(run: RunDir) -> None:
    assert Writing(run).wait(STOPPING) == ""
    assert run.report.read_text().startswith("<!doctype html>")


def test_what_goes_wrong_is_one_line(run: RunDir) -> None:
    (run.report / "in the way").mkdir(parents=True)
    why = Writing(run).wait(STOPPING)
    assert why == f"{run.report} cannot be written: Is a directory"


def test_nobody_waits_for_a_report_for_ever(hung: RunDir) -> None:
    assert Writing(hung).wait(STOPPING, patience=0.05) == "it took longer than 0 s"


def test_a_person_who_stops_the_waiting_stops_the_report_alone(hung: RunDir) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert Writing(hung).wait(STOPPING) == "SIGTERM came first"
        assert not signal.sigpending(), "it was heard, and ends nothing else"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_process_that_is_killed_says_so(hung: RunDir) -> None:
    writing = Writing(hung)
    assert writing._process is not None
    writing._process.kill()
    assert writing.wait(STOPPING) == "its process ended with status -9"


def test_a_machine_without_room_for_a_process_says_so(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert Writing(run).wait(STOPPING) == "No such file or directory"
