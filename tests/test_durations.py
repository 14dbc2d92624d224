"""The record of what tests cost keeps to the promises: four minutes, forty for everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import durations
from tests.durations import Cost, Durations, cost, recorded

CORES = 2


def test_a_plain_pytest_takes_under_four_minutes_on_two_cores_and_everything_under_forty() -> None:
    """Slurm's tests on a cluster come on top of the forty: see .ci/run."""
    costs = recorded().values()
    assert sum(each.plain[1] for each in costs) / CORES < 4 * 60
    assert sum(each.clock for each in costs) / CORES < 40 * 60


def test_slow_is_what_takes_long_but_for_the_quickest() -> None:
    spent = {"test_a": (0.1, 2.0), "test_b": (3.0, 3.5), "test_c": (0.2, 0.25)}
    assert cost(spent) == Cost((0.2, 0.25), (3.1, 5.5), ("test_a", "test_b"))
    assert cost({"test_a": (3.0, 3.0)}) == Cost((3.0, 3.0), (0.0, 0.0), ())


def test_a_file_far_beyond_its_record_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"tests/test_x.py": Cost((4.0, 9.0), (20.0, 30.0), ("test_slow",))}
    monkeypatch.setattr(durations, "recorded", lambda: known)
    measured = Durations()
    for processor, named in ((12.9, False), (13.1, True)):  # not the slow one: 2 * 4 + 5
        measured._spent["tests/test_x.py"] = {"test_quick": (processor, 1.0)}
        assert bool(measured._beyond()) == named
    measured._spent["tests/test_x.py"]["test_slow"] = (30.0, 1.0)
    assert measured._beyond() == []


def test_what_the_record_s_run_skipped_is_held_to_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"tests/test_x.py": Cost((1.0, 1.0), skipped=("test_real",))}
    monkeypatch.setattr(durations, "recorded", lambda: known)
    measured = Durations()
    measured._spent["tests/test_x.py"] = {"test_quick": (1.0, 1.0), "test_real": (90.0, 90.0)}
    assert measured._beyond() == []
    measured._spent["tests/test_x.py"]["test_quick"] = (7.1, 1.0)
    assert measured._beyond() == ["tests/test_x.py: 7.1 s of processor time; 7.0 s are allowed"]


PROGRAM = r"""
import subprocess, sys
import pytest

BUSY = "import time\nwhile time.process_time() < 1: pass\ninput()"

@pytest.fixture(scope="session")
def engine():
    made = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
    yield
    made.communicate(b"\n")

@pytest.fixture(scope="module")
def own():
    subprocess.run([sys.executable, "-c", BUSY], input=b"\n")

def test_first(engine): pass

@pytest.mark.parametrize("here", [True, False])
def test_in_part(here):
    if not here: pytest.skip("not here")

@pytest.mark.skip
def test_elsewhere(): pass

def test_last(own): pass
"""
MEASURES = """
import json, pytest
from tests.durations import Durations

measured = Durations()
status = pytest.main(["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_it.py"], [measured])
print(json.dumps([status, measured._spent["test_it.py"], [*measured._skipped["test_it.py"]]]))
"""


def test_what_was_skipped_is_told_and_no_file_pays_for_the_session_s_fixtures(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", MEASURES]
    said = subprocess.check_output(command, cwd=tmp_path, env=environ, text=True)
    status, spent, skipped = json.loads(said.splitlines()[-1])
    assert status == 0, said
    found = cost(spent, skipped)
    assert found.skipped == ("test_elsewhere",)
    assert 1 <= found.plain[0] + found.rest[0] < 2, found  # its own process, not the engine's
