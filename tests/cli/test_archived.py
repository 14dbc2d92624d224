"""A standing run whose old jobs are archived while it lives, as other terminals see it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpulaunch.core.facts import Noted
from gpulaunch.core.model import AttemptId
from gpulaunch.journal.history import names_in
from gpulaunch.journal.read import read, replay
from gpulaunch.journal.rundir import RunDir
from tests import standing
from tests.cli.launcher import Launcher
from tests.helpers import goes_along, wait_until

JOBS = 60
AT, KEEP = 50, 10


@pytest.fixture
def run(launcher: Launcher) -> RunDir:
    """A run that was stopped with so many jobs behind it, one of which failed."""
    made, journal = standing.made(launcher.path)
    for number in range(JOBS):
        name = f"train-{number + 1}"
        state = "failed" if number == 3 else "succeeded"
        assert journal.append(list(standing.over(name, float(number), state)))
        made.log(AttemptId(name, 1)).write_text(f"I am {name}\n")
    standing.closed(journal, 100.0)
    return made


@contextmanager
def supervised(launcher: Launcher, run: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    """Its next supervisor, until it is told to finish."""
    line = [sys.executable, "-m", "tests.standing", str(run.path), str(AT), str(KEEP)]
    with subprocess.Popen(
        line,
        env=launcher.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=goes_along(),
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield process
            launcher("finish", run.path)
            process.wait(60)
        finally:
            process.kill()


def archived(run: RunDir) -> bool:
    return bool(replay(run.events).history)


def test_old_jobs_are_archived_and_found(launcher: Launcher, run: RunDir) -> None:
    where = str(run.path)
    with supervised(launcher, run):
        wait_until(lambda: archived(run), 60, "jobs archived")
        ledger = replay(run.events)
        older = names_in(run, ledger.history[0])
        assert "train-1" in older
        assert sum(ledger.counts.values()) == JOBS == len(older) + len(ledger.jobs)
        said = launcher("status", where).out
        assert f"{len(older)} older jobs are archived: status --all lists them" in said
        every = launcher("status", where, "--all").out
        assert all(f"train-{number + 1} " in every for number in range(JOBS))
        told = json.loads(launcher("status", where, "--json").out)
        assert told["run"]["archived"] == len(older)
        assert len(told["jobs"]) == len(ledger.jobs)
        told = json.loads(launcher("status", where, "--json", "--all").out)
        assert [job["name"] for job in told["jobs"]] == [*older, *ledger.jobs]
        about = launcher("status", "-r", where, "train-2").out
        assert "train-2  succeeded" in about
        assert "true train.py --seed train-2" in about
        assert "attempt 1  succeeded" in about
        assert launcher("logs", "-r", where, "train-2").out == "I am train-2\n"
        assert launcher("logs", "-r", where, "train-2", "-f").out == "I am train-2\n"
        assert launcher("report", where).status == 0
        assert "train-2" not in run.report.read_text()
        assert launcher("report", where, "--all").status == 0
        assert "train-2" in run.report.read_text()


def test_what_is_archived_can_only_be_looked_at(launcher: Launcher, run: RunDir) -> None:
    where = str(run.path)
    with supervised(launcher, run):
        wait_until(lambda: archived(run), 60, "jobs archived")
        for words in (
            ["cancel", "train-2"],
            ["retry", "train-2"],
            ["set", "train-2", "priority=1"],
        ):
            said = launcher(words[0], "-r", where, "train-2", *words[1:])
            assert said.status == 2, words
            assert "train-2 is archived" in said.err
        said = launcher("add", "-r", where, "--needs", "train-2", "--", "true")
        assert said.status == 2
        assert "train-2 ended long ago: it is archived" in said.err
        said = launcher("add", "-r", where, "--name", "train-2", "--", "true")
        assert "train-2 was a job of this run, and archived" in said.err
        said = launcher("add", "-r", where, "-g", "0", "--", "train")
        assert said.out == f"train-{JOBS + 1}\n"


def test_who_waits_hears_of_every_job_through_a_compaction(launcher: Launcher, run: RunDir) -> None:
    where = str(run.path)
    with supervised(launcher, run):
        wait_until(lambda: archived(run), 60, "jobs archived")
        with launcher.begun("wait", where) as waiting:
            jobs = [{"name": f"m-{number}", "gpus": 0, "run": "true"} for number in range(60)]
            file = launcher.file("more.yaml", json.dumps({"jobs": jobs}))
            assert launcher("add", "-r", where, file).status == 0
            wait_until(lambda: len(replay(run.events).history) == 2, 60, "archived again")
            assert launcher("add", "-r", where, "--wait", "-g", "0", "--", "true").status == 0
            launcher("finish", where)
            waiting.communicate(timeout=60)
    ledger = replay(run.events)
    older = [name for stem in ledger.history for name in names_in(run, stem)]
    assert len(older + list(ledger.jobs)) == len({*older, *ledger.jobs}) == JOBS + 61


def test_a_compaction_that_fails_is_told_of_in_a_line_and_changes_nothing(
    launcher: Launcher, run: RunDir
) -> None:
    run.history.write_text("in its place")
    with supervised(launcher, run):
        told = lambda: [f.text for f, _ in read(run.events) if isinstance(f, Noted)]  # noqa: E731
        wait_until(lambda: any("could not be compacted" in text for text in told()), 60, "a note")
        assert launcher("add", "-r", str(run.path), "--wait", "-g", "0", "--", "true").status == 0
    assert len(replay(run.events).jobs) == JOBS + 1
    assert run.history.read_text() == "in its place"
    assert sum("could not be compacted" in text for text in told()) == 1
