"""`status JOB` and `logs --failed`: what there is to know about single jobs."""

from __future__ import annotations

import json

import pytest

from tests.cli.launcher import Launcher


@pytest.fixture
def ended(launcher: Launcher) -> Launcher:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: good, run: echo fine}
          - {name: bad, run: "echo 'ValueError: no chain B'; exit 3", retries: 1}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    return launcher


def test_status_of_a_job_says_everything_about_it(ended: Launcher) -> None:
    result = ended("status", "bad")
    assert result.status == 0
    assert "bad  failed" in result.out
    assert "why  exited with status 3" in result.out
    assert "shows  ValueError: no chain B" in result.out
    assert "command  echo 'ValueError: no chain B'; exit 3" in result.out
    assert result.out.count("simulated GPU 0") == 2, "both attempts"
    assert "logs/bad.1.log" in result.out
    assert "logs/bad.2.log" in result.out
    assert "good" not in result.out
    assert ended("status", "bad", "-r", ended.run).out == result.out


def test_status_of_a_job_as_json_has_that_job_alone(ended: Launcher) -> None:
    told = json.loads(ended("status", "bad", "--json").out)
    assert [job["name"] for job in told["jobs"]] == ["bad"]
    assert told["jobs"][0]["evidence"] == "ValueError: no chain B"


def test_what_is_neither_a_run_nor_a_job_is_one_line(ended: Launcher) -> None:
    result = ended("status", "nonsense")
    assert result.status == 2
    assert "nonsense" in result.err
    assert "Traceback" not in result.err


def test_logs_of_what_failed(ended: Launcher) -> None:
    result = ended("logs", "--failed")
    assert "no chain B" in result.out
    assert "fine" not in result.out
    nothing = ended("logs", "--failed", "good")
    assert (nothing.status, nothing.out) == (0, "")
    assert "nothing failed" in nothing.err


def test_a_single_log_that_is_empty_is_said(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: mute, run: 'false'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    result = launcher("logs", "--failed")
    assert (result.status, result.out) == (0, "")
    assert "mute: " in result.err
    assert "mute.1.log is empty" in result.err
