from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.facts import AttemptEnded, AttemptLaunched, AttemptStarted
from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    End,
    Exited,
    Failure,
    Instant,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.core.template import Slot, Template
from gpulaunch.journal.joblog import HEADER, JobLog, command_line
from tests.journal.facts import added, opened

A1 = AttemptId("a", 1)


def ended(
    outcome: Outcome, failure: str | None, started: bool = True
) -> tuple[Ledger, AttemptRecord]:
    ledger = Ledger()
    start = 1795160535.25
    ledger.apply(opened(gpus=()), Instant(0.0, start))
    ledger.apply(added("a"), Instant(0.0, start))
    ledger.apply(AttemptLaunched(A1, ()), Instant(0.0, start))
    if started:
        ledger.apply(AttemptStarted(A1, 7), Instant(0.0, start))
    ledger.apply(
        AttemptEnded(A1, End(outcome, Failure(failure) if failure else None)),
        Instant(1.5, start + 1.5),
    )
    return ledger, ledger.attempt(A1)


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_a_row_has_gnu_parallel_s_columns(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "joblog.tsv", lambda job: f"python {job}.py")
    ledger, attempt = ended(Exited(3), "exit")
    assert log.ended([attempt], ledger)
    log.close()
    header, row = rows(tmp_path / "joblog.tsv")
    assert header == HEADER.rstrip("\n").split("\t")
    assert row == ["1", "box", "1795160535.250", "     1.500", "0", "0", "3", "0", "a: python a.py"]


@pytest.mark.parametrize(
    ("outcome", "failure", "expected"),
    [
        (Exited(0), None, ("0", "0")),
        (Exited(7), None, ("7", "0")),  # one of success_codes
        (Exited(9), "exit", ("9", "0")),
        (Signaled(11), "signal", ("0", "11")),
        (TimedOut("timeout", 5.0, Signaled(15)), "timeout", ("-1", "15")),
        (TimedOut("idle_timeout", 5.0, Exited(0)), "idle_timeout", ("-1", "0")),
        (MissingOutput(("x",), Exited(0)), "missing_output", ("-1", "0")),
        (NotStarted("no such file"), "not_started", ("-1", "0")),
        (Cancelled(Signaled(15)), None, ("0", "15")),
        (Cancelled(Exited(0)), None, ("-1", "0")),
        (Stopped(Signaled(15)), None, ("0", "15")),
        (Stopped(None), None, ("0", "0")),
        (Lost(Quoted("nobody saw it")), "lost", ("-1", "0")),
    ],
)
def test_a_failure_never_looks_like_a_success(
    tmp_path: Path, outcome: Outcome, failure: str | None, expected: tuple[str, str]
) -> None:
    log = JobLog(tmp_path / "joblog.tsv", lambda job: "x")
    ledger, attempt = ended(outcome, failure)
    log.ended([attempt], ledger)
    log.close()
    assert tuple(rows(tmp_path / "joblog.tsv")[1][6:8]) == expected


def test_no_text_breaks_the_table(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "joblog.tsv", lambda job: "a\tb\nc\\d\re \udcff")
    ledger, attempt = ended(Exited(0), None)
    log.ended([attempt], ledger)
    log.close()
    [_, row] = rows(tmp_path / "joblog.tsv")
    assert len(row) == 9
    assert row[8] == "a: a\\tb\\nc\\\\d\\re \\udcff"


def test_a_resumed_joblog_counts_on_and_drops_a_torn_row(tmp_path: Path) -> None:
    path = tmp_path / "joblog.tsv"
    ledger, attempt = ended(Exited(0), None, started=False)
    for _ in range(2):
        log = JobLog(path, lambda job: "x")
        log.ended([attempt, attempt], ledger)
        log.close()
        with open(path, "a") as file:
            file.write("9\tbox\ttorn")
    log = JobLog(path, lambda job: "x")
    log.close()
    assert [row[0] for row in rows(path)] == ["Seq", "1", "2", "3", "4"]


def test_a_row_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "joblog.tsv"
    ledger, attempt = ended(Exited(0), None)
    log = JobLog(path, lambda job: "x")
    log.ended([attempt], ledger)
    with open(path, "rb") as unwritable:
        healthy = os.dup(log._fd)
        os.dup2(unwritable.fileno(), log._fd, inheritable=False)
    assert not log.ended([attempt], ledger)
    os.dup2(healthy, log._fd, inheritable=False)
    os.close(healthy)
    assert log.ended([attempt], ledger)
    log.close()
    log.close()
    assert [row[0] for row in rows(path)] == ["Seq", "1", "2"]


def test_a_command_is_shown_on_one_line_with_what_is_not_known_yet() -> None:
    text = Template(("fold a.fasta ", Slot("out", "bare")))
    assert command_line(text) == "fold a.fasta {{out}}"
    assert command_line(("python", "my script.py", Template((Slot("gpu"),)))) == (
        "python 'my script.py' '{{gpu}}'"
    )
