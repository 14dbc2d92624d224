"""The functions of `gpulaunch.run` do what the commands of their names do, without click or rich.

Each is called in a process that cannot import them, and compared with the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launcher import Launcher

CALLER = """
import json, sys
sys.modules.update(dict.fromkeys(["click", "rich"]))  # importing one raises ImportError

from gpulaunch.run import *
from gpulaunch.base.errors import GpulaunchError

CARDS = RunOptions(Choices(simulate=1))

class Hearing(Observer):
    def __init__(self):
        self.facts, self.notes = [], []
    def see(self, fact, at, ledger):
        self.facts.append(type(fact).__name__)
    def note(self, text, urgent=False):
        self.notes.append(text)

heard = Hearing()
try:
    told = {call}
except GpulaunchError as error:
    told = {{"error": type(error).__name__, "status": error.status}}
print(json.dumps([told, heard.facts, heard.notes]))
"""

FILE = """
name: three
jobs:
  - {name: good, run: "true"}
  - {name: bad, run: "test -e mended"}
  - {name: last, run: "true", needs: [bad]}
"""


def called(call: str, cwd: Path) -> tuple[Any, list[str], list[str]]:
    """Return what the call came to, the facts that its observer saw, and its notes."""
    done = subprocess.run(
        [sys.executable, "-c", CALLER.format(call=call)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told, facts, notes = json.loads(done.stdout)
    return told, facts, notes


def journal(directory: Path) -> list[dict[str, Any]]:
    """Return a run's events, without what differs from one run to the next."""
    own = {"t", "m", "c", "run", "pid", "gpus", "started", "ended", "expected"}
    lines = (json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines())
    return [_without(own, line) for line in lines]


def _without(own: set[str], line: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in line.items() if name not in own}
    return rest | {"end": _without(own, rest["end"])} if "end" in rest else rest


@pytest.fixture
def twice(tmp_path: Path) -> tuple[Launcher, Path]:
    """Return a place for the commands and one for the functions, each with the same file."""
    (tmp_path / "command").mkdir()
    (tmp_path / "function").mkdir()
    for name in ("command", "function"):
        (tmp_path / name / "jobs.yaml").write_text(FILE)
    return Launcher(tmp_path / "command"), tmp_path / "function"


def kept(directory: Path) -> list[dict[str, Any]]:
    (run,) = (path for path in (directory / "gpulaunch-runs").iterdir() if not path.is_symlink())
    assert {path.name for path in run.iterdir()} >= {"manifest.json", "report.html", "joblog.tsv"}
    return journal(run)


def test_a_run_a_retry_and_a_resume_are_the_command_s(twice: tuple[Launcher, Path]) -> None:
    launcher, there = twice
    steps = [
        (["run", "jobs.yaml", "--simulate", "1"], 'run("jobs.yaml", CARDS, heard).status'),
        (["retry"], "retry(observer=heard).status"),
        (["resume"], "resume(observer=heard).status"),
    ]
    for step, (command, call) in enumerate(steps):
        if step == 2:
            (launcher.path / "mended").touch()
            (there / "mended").touch()
        status = launcher(*command).status
        told, facts, notes = called(call, there)
        assert told == status == (1, 1, 0)[step]
        assert facts[0] == "RunOpened"
        assert facts[-1] == "RunClosed"
        assert any("simulated card" in note for note in notes)
        assert kept(there) == kept(launcher.path)
    told, _, _ = called("[status().state, dict(status().ledger.counts)['succeeded']]", there)
    assert told == ["succeeded", 3]
    assert called("wait().status", there)[0] == launcher("wait").status == 0


def test_some_jobs_alone_are_gone_on_with_this_time(twice: tuple[Launcher, Path]) -> None:
    _, there = twice
    called('run("jobs.yaml", CARDS).status', there)
    (there / "mended").touch()
    told, _, _ = called(
        """[[one.state for one in end.ledger.jobs.values()]
        for end in (resume(among={"bad"}), resume())]""",
        there,
    )
    assert told == [["succeeded", "succeeded", "skipped"], ["succeeded"] * 3]


def test_what_is_wrong_is_an_error_with_the_command_s_status(
    twice: tuple[Launcher, Path],
) -> None:
    launcher, there = twice
    (there / "jobs.yaml").write_text("jobs: [{nmae: a}]")
    assert called('run("jobs.yaml", CARDS)', there)[0] == {"error": "JobFileError", "status": 2}
    assert called("resume()", there)[0] == {"error": "UsageError", "status": 2}
    assert called("cancel()", there)[0] == {"error": "NoneAliveError", "status": 2}
    assert called("drain()", there)[0] == {"error": "NoneAliveError", "status": 2}
    assert launcher("resume").status == 2


def test_an_observer_that_raises_before_the_start_starts_nothing(
    twice: tuple[Launcher, Path],
) -> None:
    _, there = twice
    code = """
from gpulaunch.run import Choices, Observer, RunOptions, run
class Declining(Observer):
    def planned(self, preview):
        print(sorted(job.name for job in preview.jobs), preview.pool.echo)
        raise LookupError
try:
    run("jobs.yaml", RunOptions(Choices(simulate=1)), Declining())
except LookupError:
    print("declined")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=there, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["['bad', 'good', 'last'] 1 simulated card", "declined"]
    assert not (there / "gpulaunch-runs").exists()


def test_a_run_in_a_thread_leaves_signals_alone(twice: tuple[Launcher, Path]) -> None:
    _, there = twice
    code = """
import signal, threading
from gpulaunch.run import Choices, RunOptions, run
before = signal.getsignal(signal.SIGINT)
found = []
thread = threading.Thread(
    target=lambda: found.append(run("jobs.yaml", RunOptions(Choices(simulate=1))).status)
)
thread.start()
assert signal.getsignal(signal.SIGINT) is before
thread.join()
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=there, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1]\n"
