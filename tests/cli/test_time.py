"""When jobs start: the hours of a run, and the moment before which a job does not."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta

import pytest

from gpulaunch.base.hours import DAYS
from tests.cli.launcher import Launcher
from tests.helpers import wait_until

ONE = """
    jobs:
      - {name: a, run: echo ran}
"""


def other_day() -> str:
    """A weekday that is neither today nor tomorrow, however long the test takes."""
    return DAYS[(datetime.now().weekday() + 3) % 7]


def later() -> str:
    """A time of day some hours from now."""
    return (datetime.now() + timedelta(hours=5)).strftime("%H:%M")


def test_a_run_outside_its_hours_says_so_starts_nothing_and_goes_on_when_told(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", ONE)
    day = other_day()
    with launcher.begun("run", "jobs.yaml", "--simulate", "1", "--between", day) as process:
        launcher.wait_for("admission_paused")
        told = wait_until(lambda: launcher("status").out, 30)
        assert f"starts no job before {day.title()} 00:00 (in " in told
        assert "the run starts no job before" in launcher.jobs()["a"]["reason"]
        assert launcher.status()["gpus"][0]["state"] == "free"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with launcher.begun("resume") as process:  # it counts as a run, though nothing was started
        launcher.wait_for("admission_paused", 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    result = launcher("resume", "--between", "always")
    assert result.status == 0, result.err
    assert launcher.states() == {"a": "succeeded"}
    assert launcher.log("a") == "ran\n"


def test_the_hours_are_kept_and_named(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: '[ -e fixed ]'}]")
    hours = "mon-sun 0-24"
    assert launcher("run", "jobs.yaml", "--simulate", "1", "--between", hours).status == 1
    launcher.file("fixed", "")
    result = launcher("retry")
    assert result.status == 0, result.err
    assert "as before: --simulate 1 --between 'mon-sun 00:00-24:00'" in result.err


def test_map_has_its_hours_too(launcher: Launcher) -> None:
    hours = ["--between", "00:00-24:00"]
    result = launcher("map", "--simulate", "1", *hours, "echo", "{{item}}", ":::", "a")
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        ("nights", "expected hours like 19:00-07:30"),
        ("mon,wed 19:00-07:30", "mon before 'wed 19:00-07:30' may mean all of mon"),
    ],
)
def test_hours_that_say_nothing_clear_are_refused(
    launcher: Launcher, hours: str, said: str
) -> None:
    launcher.file("jobs.yaml", ONE)
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--between", hours)
    assert result.status == 2
    assert said in result.err


def test_a_job_waits_for_its_moment_and_the_others_do_not(launcher: Launcher) -> None:
    when = later()
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: now, run: 'true'}}
          - {{name: over, run: 'true', not_before: 2020-01-01 00:00}}
          - {{name: night, run: 'true', not_before: {when}}}
        """,
    )
    plan = launcher("check", "jobs.yaml", "--simulate", "1")
    assert f"not before {datetime.now() + timedelta(hours=5):%Y-%m-%d}" in plan.out
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_ended", 2)
        assert wait_until(lambda: launcher.jobs()["over"]["state"] == "succeeded", 30)
        assert launcher.jobs()["night"]["reason"].startswith(f"not before {when} (in ")
        told = launcher("status", "night").out
        assert f"not_before: {when}" in told
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    due = launcher.jobs()["night"]["not_before"]
    assert due is not None
    with launcher.begun("resume") as process:
        launcher.wait_for("run_opened", 2)
        assert wait_until(lambda: "(in " in launcher.jobs()["night"]["reason"], 30)
        assert launcher.jobs()["night"]["not_before"] == due
        assert launcher("cancel", "--all").status == 0
        assert process.wait(60) == 1
    assert [e["job"] for e in launcher.events("job_added")] == ["now", "over", "night"]
