"""Longest first: what an earlier run of the file took decides the order of the next."""

from __future__ import annotations

from typing import Any

from tests.cli.launcher import Launcher

FILE = """
jobs:
  - name: fold-{{item}}
    foreach: {values: [a, b, c, d, e]}
    run: "true"
"""


def launched(launcher: Launcher) -> list[str]:
    return [event["job"] for event in launcher.events() if event["e"] == "attempt_launched"]


def took(status: dict[str, Any]) -> dict[str, float]:
    return {job["name"]: job["attempts"][-1]["seconds"] for job in status["jobs"]}


def test_the_second_run_of_a_file_starts_what_took_longest_first(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", FILE)
    launcher("run", "jobs.yaml", "--simulate", "1")
    names = [f"fold-{letter}" for letter in "abcde"]
    assert launched(launcher) == names
    seconds = took(launcher.status())
    launcher("run", "jobs.yaml", "--simulate", "1", "--new")
    expected = {e["job"]: e.get("expected", 0) for e in launcher.events() if e["e"] == "job_added"}
    assert all(abs(seconds[name] - expected[name]) < 0.01 for name in names)
    assert launched(launcher) == sorted(names, key=lambda name: (-expected[name], name))


def test_check_says_that_the_order_is_by_earlier_times(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", FILE)
    assert "longest first" not in launcher("check", "jobs.yaml", "--simulate", "1").out
    launcher("run", "jobs.yaml", "--simulate", "1")
    said = launcher("check", "jobs.yaml", "--simulate", "1").out
    assert "longest first, by how long these jobs took in earlier runs" in said
