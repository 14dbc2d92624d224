"""Optuna itself, one process a card on one storage: examples/optuna as it stands."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launcher import Launcher
from tests.examples.helpers import EXAMPLES

TRIALS = """
import json, sys, optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
storage = JournalStorage(JournalFileBackend(sys.argv[1]))
study = optuna.load_study(study_name="sine", storage=storage)
print(json.dumps([[t.state.name, t.user_attrs, t.params] for t in study.get_trials()]))
"""

OPEN = """
import sys, optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
storage = JournalStorage(JournalFileBackend(sys.argv[1]))
trial = optuna.create_study(study_name="sine", storage=storage).ask()
trial.set_user_attr("run", "another")
trial.set_user_attr("job", "search-0")
trial.set_user_attr("card", "0")
"""
"""Leaves a trial open, as if a job of another run worked on it."""


@pytest.fixture
def example(tmp_path: Path, beside: Path) -> Launcher:
    """The example in a directory of its own, on two pretend cards, with Optuna installed."""
    at = tmp_path / "optuna"
    shutil.copytree(EXAMPLES / "optuna", at, ignore=shutil.ignore_patterns(".env"))
    made = at / ".env"
    made.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (made / name).symlink_to(beside.parent / name)
    stamp = hashlib.sha256((at / "setup").read_bytes()).hexdigest()
    (made / "installed").write_text(f"{stamp}  -\n")
    file = at / "jobs.yaml"
    file.write_text(file.read_text().replace("--trials 40", "--trials 10"))
    return Launcher(at)


def trials(file: Path, beside: Path) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    done = subprocess.run(
        [beside / "python", "-W", "ignore", "-c", TRIALS, file],
        capture_output=True,
        text=True,
        check=True,
    )
    return [(state, attrs, params) for state, attrs, params in json.loads(done.stdout)]


def test_each_card_has_one_process_and_all_trials_are_of_one_study(
    example: Launcher, beside: Path
) -> None:
    result = example("run", "jobs.yaml", "--simulate", "2", timeout=300)
    assert result.status == 0, result.err
    found = trials(example.run / "study.log", beside)
    assert {state for state, _, _ in found} <= {"COMPLETE", "PRUNED", "FAIL"}
    assert sum(state in ("COMPLETE", "PRUNED") for state, _, _ in found) >= 10
    where = {(attrs["job"], attrs["card"]) for _, attrs, _ in found}
    assert where <= {("search-0", "0"), ("search-1", "1")}
    assert " with {" in (example.run / "results/best/best.txt").read_text()


def test_a_process_that_is_killed_is_started_again_and_its_trial_is_done_again(
    example: Launcher, beside: Path
) -> None:
    program = example.path / "search.py"
    head, train, rest = program.read_text().partition("    draw = random")
    first = "(JOB, os.environ['GPULAUNCH_ATTEMPT']) == ('search-0', '1')"
    program.write_text(f"{head}    if {first}: os.kill(os.getpid(), 9)\n{train}{rest}")
    result = example("run", "jobs.yaml", "--simulate", "2", timeout=300)
    assert result.status == 0, result.err
    attempts = example.jobs()["search-0"]["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["failed", "succeeded"]
    found = trials(example.run / "study.log", beside)
    assert not [state for state, _, _ in found if state in ("RUNNING", "WAITING")]
    (left,) = [params for state, _, params in found if state == "FAIL"]
    again = [state for state, _, params in found if params == left and state != "FAIL"]
    assert len(again) == 1, "by whichever of them"


def test_the_trials_of_another_run_on_the_same_storage_are_its_own(
    tmp_path: Path, beside: Path
) -> None:
    file, python = tmp_path / "study.log", [beside / "python", "-W", "ignore"]
    subprocess.run([*python, "-c", OPEN, file], check=True, capture_output=True)
    subprocess.run(
        [*python, EXAMPLES / "optuna" / "search.py", file, "--trials", "1"],
        env={**os.environ, "GPULAUNCH_RUN_ID": "this", "GPULAUNCH_JOB": "search-0"},
        check=True,
        capture_output=True,
    )
    (theirs, *_), (own, *_) = trials(file, beside)
    assert (theirs, own) == ("RUNNING", "COMPLETE")
