"""The run's side of the report: whatever becomes of the process, it is waited for and told of."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.core.facts import Noted
from gpulaunch.journal import codec
from gpulaunch.journal.codec import now
from gpulaunch.journal.read import read
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.report.writing import REPORT_TIMEOUT, Writing
from gpulaunch.run.supervisor import STOPPING
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


def written(run: RunDir, patience: float = REPORT_TIMEOUT) -> str:
    with Writing(run) as writing:
        writing.begin()
        return writing.wait(STOPPING, patience)


def process_of(writing: Writing) -> subprocess.Popen[bytes]:
    assert writing._process is not None
    return writing._process


def test_it_is_written_by_a_process_of_its_own(run: RunDir) -> None:
    assert written(run) == ""
    assert run.report.read_text().startswith("<!doctype html>")


def test_what_goes_wrong_is_one_line(run: RunDir) -> None:
    (run.report / "in the way").mkdir(parents=True)
    why = written(run)
    assert why == f"{run.report} cannot be written: Is a directory"


def test_nobody_waits_for_a_report_for_ever(hung: RunDir) -> None:
    assert written(hung, patience=0.05) == "it took longer than 0 s"


def test_a_person_who_stops_the_waiting_stops_the_report_alone(hung: RunDir) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert written(hung) == "SIGTERM came first"
        assert not signal.sigpending(), "it was heard, and ends nothing else"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_process_that_is_killed_while_it_writes_says_so(hung: RunDir) -> None:
    with Writing(hung) as writing:
        writing.begin()
        process_of(writing).kill()
        assert writing.wait(STOPPING) == "its process ended with status -9"


def test_a_process_that_is_killed_before_the_end_is_replaced(run: RunDir) -> None:
    with Writing(run) as writing:
        writing.prepare()
        process_of(writing).kill()
        process_of(writing).wait()
        writing.begin()
        assert writing.wait(STOPPING) == ""
    assert run.report.exists()


def test_it_is_ready_before_the_end_and_shows_what_came_after(run: RunDir) -> None:
    with Writing(run) as writing:
        writing.prepare()
        early = process_of(writing).pid
        writing.prepare()
        assert process_of(writing).pid == early, "one process a run"
        with open(run.events, "ab") as journal:
            fact = Noted("the last thing that happened", None)
            journal.write(codec.encode(1 + len(list(read(run.events))), fact, now()))
        writing.begin()
        assert writing.wait(STOPPING) == ""
    assert "the last thing that happened" in run.report.read_text()


def test_a_journal_that_lacks_a_line_is_read_as_a_whole_at_the_end(run: RunDir) -> None:
    lines = run.events.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"job", b"jot", 1)
    run.events.write_bytes(b"".join(lines))
    with Writing(run) as writing:
        writing.prepare()
        writing.begin()
        assert writing.wait(STOPPING) == ""
    assert run.report.exists()


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_without_an_end_there_is_no_report_and_no_process(run: RunDir, how: str) -> None:
    with Writing(run) as writing:
        writing.prepare()
        process = process_of(writing)
        if how == "gone":  # as the supervisor's death closes it
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
    assert process.poll() is not None
    assert not run.report.exists()


def test_a_machine_without_room_for_a_process_says_so(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert written(run) == "No such file or directory"
