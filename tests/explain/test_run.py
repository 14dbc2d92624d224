"""A whole run: the job's log says more, by the file's field and by the command's option."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpulaunch.diagnose.failure.judge import judge
from tests.cli.launcher import Launcher
from tests.explain.support import FAKE, MIXING, REPORT

JOBS = """
    jobs:
      - name: told
        run: {python} predict.py
        explain: true
      - name: not-told
        run: {python} predict.py
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    # The project's own path, first: a job's PYTHONPATH stays what it was, after one more entry.
    path = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    launcher = Launcher(tmp_path, {"PYTHONPATH": path})
    launcher.file("predict.py", f"import torch\ntorch.CARDS = 1\n{MIXING}\n")
    launcher.file("jobs.yaml", JOBS.format(python=sys.executable))
    return launcher


def reports(launcher: Launcher, job: str, attempt: int = 1) -> list[str]:
    return REPORT.findall(launcher.log(job, attempt))


def test_explain_true_puts_the_report_behind_the_traceback(launcher: Launcher) -> None:
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1
    (report,) = reports(launcher, "told")
    assert launcher.log("told").endswith(report)
    assert "where: predict.py:3, in <module>" in report
    assert reports(launcher, "not-told") == []
    assert launcher.log("told").removesuffix(report) == launcher.log("not-told")
    told, not_told = (judge(launcher.log(job)).finding for job in ("told", "not-told"))
    assert told is not None
    assert not_told is not None
    assert told.kind == not_told.kind == "device_mismatch"


def test_the_option_holds_for_every_job_of_the_run_until_it_is_taken_back(
    launcher: Launcher,
) -> None:
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--explain").status == 1
    assert len(reports(launcher, "not-told")) == 1
    assert launcher("retry").status == 1
    assert len(reports(launcher, "not-told", attempt=2)) == 1
    assert launcher("resume", "--no-explain").status == 1
    assert reports(launcher, "not-told", attempt=3) == []


def test_map_explains_its_items(launcher: Launcher) -> None:
    argv = ["map", "--simulate", "1", "--explain", sys.executable, "predict.py", ":::", "a"]
    assert launcher(*argv).status == 1
    assert len(reports(launcher, "a")) == 1
