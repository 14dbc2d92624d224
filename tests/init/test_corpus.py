"""Launch scripts of the kinds that people have, and exactly what comes of each.

Behind each script of corpus.txt stands the job file, or the difference to the new script, or why
nothing was made. GPULAUNCH_TEST_GOLDEN=1 writes these anew, to be read then. What was made is run,
as the script is, with stand-ins for the programs: calls, order and masks are the same.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpulaunch.diagnose.lint import report
from gpulaunch.init import Converted, Unfit, convert
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from tests.init.stage import GPULAUNCH, HERE, Stage, with_wait

CORPUS = HERE / "corpus.txt"
JOB_FILE, SCRIPT, REFUSED = "job file", "script", "refused"


@dataclass(frozen=True)
class Case:
    """A script, and what comes of it: a `kind`, and the text of it."""

    name: str
    script: str
    kind: str
    text: str


def cases() -> list[Case]:
    parts = re.split(r"^=== (\w+)\n", CORPUS.read_text(), flags=re.M)[1:]
    found = []
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        script, kind, made = re.split(rf"^--- ({JOB_FILE}|{SCRIPT}|{REFUSED})\n", text, flags=re.M)
        found.append(Case(name, script, kind, made))
    return found


CASES = cases()
MADE = [case for case in CASES if case.kind != REFUSED]
JOB_FILES = [case for case in CASES if case.kind == JOB_FILE]
REAL = ["by_env", "by_wrappers", "seeds_in_a_loop", "several_cards_in_a_pipe"]


def short(case: Case) -> str:
    return case.name


def converted(case: Case) -> Converted:
    return convert(case.script, f"{case.name}.sh")


def told(case: Case) -> tuple[str, str]:
    """What comes of a script, and its text."""
    try:
        made = converted(case)
    except Unfit as unfit:
        return REFUSED, f"{unfit.line}: {unfit.why}\n"
    if not made.is_script:
        return JOB_FILE, made.text
    number, why = made.no_job_file
    notes = [f"# {note}" for note in (f"line {number}: {why}", *made.notes)]
    lines = case.script.splitlines(), made.text.splitlines()
    changes = [*difflib.unified_diff(*lines, n=0, lineterm="")][2:]
    return SCRIPT, "\n".join([*notes, *changes, ""])


@pytest.fixture
def stage(tmp_path: Path, standin: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "script", standin) as made:
        yield made


@pytest.fixture
def result(tmp_path: Path, standin: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "result", standin) as made:
        yield made


def test_the_corpus_is_large_and_both_steps_are_in_it() -> None:
    if os.environ.get("GPULAUNCH_TEST_GOLDEN"):
        parts = ((case, *told(case)) for case in CASES)
        texts = (f"=== {case.name}\n{case.script}--- {kind}\n{text}" for case, kind, text in parts)
        CORPUS.write_text("".join(texts))
    assert len(CASES) >= 110
    assert len(JOB_FILES) >= 15
    assert len(MADE) - len(JOB_FILES) >= 45


@pytest.mark.parametrize("case", CASES, ids=short)
def test_what_comes_of_a_script(case: Case) -> None:
    assert told(case) == (case.kind, case.text)


@pytest.mark.parametrize("case", JOB_FILES, ids=short)
def test_check_finds_nothing_wrong_in_a_job_file(
    case: Case, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.path)
    monkeypatch.setenv("PATH", stage.environ["PATH"])
    stage.lay("run.sh", case.script)
    plan = load_text(case.text.encode(), Surroundings({}), name="jobs.yaml", base=stage.path)
    assert [str(finding) for finding in report(plan).findings] == []


@pytest.mark.parametrize("case", MADE, ids=short)
def test_the_same_calls_are_made_in_the_same_order(case: Case, stage: Stage, result: Stage) -> None:
    made = converted(case)
    stage.lay("run.sh", with_wait(case.script))
    steps, status = stage.steps(["bash", "run.sh"])
    assert steps
    if made.is_script:
        result.lay("bin/gpulaunch", GPULAUNCH, 0o755)
        result.lay("run.sh", with_wait(made.text))
        assert result.follow(["bash", "run.sh"], steps) == status
        assert b"gpulaunch" not in (result.path / "said").read_bytes()
    else:
        result.lay("jobs.yaml", made.text)
        command = [sys.executable, "-m", "gpulaunch", "run", "jobs.yaml", "--simulate", "12", "-q"]
        assert result.follow(command, steps) == 0, (result.path / "said").read_text()


@pytest.mark.parametrize("case", [case for case in CASES if case.name in REAL], ids=short)
def test_the_real_exec_makes_the_same_calls(case: Case, stage: Stage, result: Stage) -> None:
    stage.lay("run.sh", with_wait(case.script))
    steps, status = stage.steps(["bash", "run.sh"])
    run = f'shift; exec {sys.executable} -m gpulaunch exec --simulate 12 "$@"'
    result.lay("bin/gpulaunch", f"#!/bin/sh\n{run}\n", 0o755)
    result.lay("run.sh", with_wait(converted(case).text))
    assert result.follow(["bash", "run.sh"], steps) == status


@pytest.mark.parametrize("case", [case for case in MADE if case.kind == SCRIPT], ids=short)
def test_bash_reads_the_new_script(case: Case) -> None:
    bash = shutil.which("bash") or "bash"
    text = converted(case).text.encode()
    subprocess.run([bash, "-n"], input=text, check=True, capture_output=True)
