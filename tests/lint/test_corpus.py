"""The corpora: programs in which nothing may be found, and those in which each finding is known.

A program says in its head how it is run and with how many cards: `# run:`, `# gpus:`. Expected
findings stand beside it in a .txt; GPULAUNCH_TEST_GOLDEN=1 writes them anew, to be read then.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpulaunch.diagnose.lint import report
from gpulaunch.diagnose.lint.report import LintReport
from tests.jobfile.helpers import plan_of

HERE = Path(__file__).parent
CLEAN = sorted(HERE.glob("clean/*.*"))
FINDINGS = sorted(path for path in HERE.glob("findings/*.*") if path.suffix != ".txt")
_RUN = re.compile(r"^# run: (.*)$", re.MULTILINE)
_GPUS = re.compile(r"^# gpus: (\d+)$", re.MULTILINE)


def report_of(program: Path) -> LintReport:
    text = program.read_text()
    run, gpus = _RUN.search(text), _GPUS.search(text)
    assert run is not None, program
    quoted = run.group(1).format(name=program.name).replace('"', '\\"')
    jobs = f'jobs: [{{name: x, gpus: {gpus.group(1) if gpus else 1}, run: "{quoted}"}}]'
    return report(plan_of(jobs, base=program.parent))


def test_the_corpora_are_there() -> None:
    assert len(CLEAN) >= 25
    assert len(FINDINGS) >= 10


@pytest.mark.parametrize("program", CLEAN, ids=lambda path: path.name)
def test_nothing_is_found_in_a_clean_program(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    assert [str(finding) for finding in report_of(program).findings] == []


@pytest.mark.parametrize("program", FINDINGS, ids=lambda path: path.name)
def test_what_is_found_in_a_program(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.parent)
    found = "".join(f"{finding}\n" for finding in report_of(program).findings)
    golden = program.with_name(program.name + ".txt")
    if os.environ.get("GPULAUNCH_TEST_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()
