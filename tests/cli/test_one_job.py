"""`status JOB` and `logs --failed`: what there is to know about single jobs."""

from __future__ import annotations

import json

import pytest

from tests.cli.launcher import UNTIL_GO, Launcher


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


DEMANDS = """
    limits: {db: 1}
    jobs:
      - name: packed
        run: "true"
        share: true
        gpu_memory: 8GiB
        mps: true
        memory: 1GiB
        cpus: 2
        affinity: none
        card: "*A100*"
        uses: [db]
        timeout: 1h
        gpu_idle: 30m
        warn: {before: 3m}
        preemptible: true
        retries: 2
        priority: 7
      - {name: later, run: "true", after: [packed], isolation: strict}
"""
WORDS = (
    "1 card · of the model *A100* · 1 GiB of memory · through MPS · 2 CPUs · affinity none"
    " · priority 7 · uses db · timeout 1 h · gpu_idle 30 min · SIGUSR2 3 min before · preemptible"
    " · 2 retries"
)


def test_what_a_job_asks_for_is_told_with_it(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", DEMANDS)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    told = launcher("status", "packed").out
    assert f"asks for  {WORDS}\n" in told
    assert "card  shares its card: 8 GiB promised; 10 fit on a card\n" in told
    assert "1 card · strict isolation · after packed" in launcher("status", "later").out
    (packed,) = json.loads(launcher("status", "packed", "--json").out)["jobs"]
    plan = json.loads(launcher("check", "jobs.yaml", "--simulate", "1", "--json").out)
    assert packed["definition"] == plan["jobs"][0] | {"expected_seconds": None}
    everything = json.loads(launcher("status", "--json").out)["jobs"]
    assert not any("definition" in job for job in everything)


def test_what_a_person_set_counts_and_a_lost_file_leaves_what_is_recorded(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}'}}, {{name: b, run: echo}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        assert launcher("set", "b", "memory=2GiB", "timeout=3h").status == 0
        assert "asks for  1 card · 2 GiB of memory · timeout 3 h" in launcher("status", "b").out
        (launcher.run / "jobs.yaml").unlink()
        assert "cards  1\n" in launcher("status", "b").out
        launcher.file("go", "")
        assert process.wait(60) == 0


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
