"""Whole runs on a pretend driver that announces Xids."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpulaunch.agent.proc import state_of
from tests.cli.launcher import Launcher
from tests.gpus.fake import FakeDriver
from tests.helpers import wait_until

WAITS = """
jobs:
  - {name: a, grace: 0, run: "touch $GPULAUNCH_GPU_INDEX.up; until [ -e go ]; do sleep 0.02; done"}
"""


@pytest.fixture
def launcher(on_cards: Launcher) -> Launcher:
    on_cards.file("jobs.yaml", WAITS)
    return on_cards


def helper_of(pid: int) -> int:
    """The process that listens for this launcher, once it is there."""

    def search() -> int:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and parent(int(entry.name)) == pid:
                try:
                    if b"gpulaunch-listen" in (entry / "cmdline").read_bytes():
                        return int(entry.name)
                except OSError:
                    continue
        return 0

    return wait_until(search, what="a process that listens")


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def listens(pid: int) -> bool:
    """Whether the helper has got as far as waiting: its library is open and it sleeps in it."""
    try:
        return "libnvidia-ml" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def announce(driver: FakeDriver, launcher: Launcher, card: int, code: int) -> None:
    """An Xid, again and again until the run has noted one: the helper may just be coming up."""

    def noted() -> bool:
        if any(f"Xid {code} " in event["text"] for event in launcher.events("gpu_reported")):
            return True
        driver.event(card, code)
        return False

    wait_until(noted, what=f"Xid {code} in the journal")


def test_a_program_s_own_xid_is_noted_with_its_attempt_and_nothing_else_happens(
    launcher: Launcher, driver: FakeDriver
) -> None:
    uuid = driver.card(0)
    with launcher.begun("run", "jobs.yaml") as process:
        launcher.wait_for("attempt_started")
        announce(driver, launcher, 0, 31)
        launcher.file("go", "")
        assert process.wait(60) == 0
    (report, *_) = launcher.events("gpu_reported")
    assert report["gpu"] == uuid
    assert report["attempts"] == [{"job": "a", "number": 1}]
    assert not [e for e in launcher.events("gpu_changed") if e["state"] == "aside"]
    assert len(launcher.status()["jobs"][0]["attempts"]) == 1


def test_a_card_that_falls_off_the_bus_is_set_aside_and_its_job_runs_elsewhere(
    launcher: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    driver.card(1)
    with launcher.begun("run", "jobs.yaml") as process:
        launcher.wait_for("attempt_started")
        (first,) = wait_until(lambda: list(launcher.path.glob("*.up")))
        announce(driver, launcher, int(first.stem), 79)
        wait_until(lambda: len(list(launcher.path.glob("*.up"))) == 2, what="the other card")
        launcher.file("go", "")
        assert process.wait(60) == 0
    (job,) = launcher.status()["jobs"]
    assert job["state"] == "succeeded"
    one, two = ([gpu["index"] for gpu in attempt["gpus"]] for attempt in job["attempts"])
    assert one == [int(first.stem)]
    assert two == [1 - int(first.stem)]
    (aside,) = [e for e in launcher.events("gpu_changed") if e["state"] == "aside"]
    assert "fallen off the bus" in str(aside)


def test_a_driver_without_events_runs_jobs_as_ever(launcher: Launcher, driver: FakeDriver) -> None:
    driver.card(0, events=0)
    launcher.file("go", "")
    result = launcher("run", "jobs.yaml")
    assert result.status == 0, result.err
    assert not launcher.events("gpu_reported")


def test_a_killed_helper_is_replaced_while_the_run_goes_on(
    launcher: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    with launcher.begun("run", "jobs.yaml") as process:
        launcher.wait_for("attempt_started")
        first = helper_of(process.pid)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: helper_of(process.pid) != first, what="another helper")
        announce(driver, launcher, 0, 13)
        launcher.file("go", "")
        assert process.wait(60) == 0


def test_no_helper_outlives_a_killed_launcher(launcher: Launcher, driver: FakeDriver) -> None:
    driver.card(0)
    with launcher.begun("run", "jobs.yaml") as process:
        launcher.wait_for("attempt_started")
        helper = helper_of(process.pid)
        wait_until(lambda: listens(helper))
        driver.driver(hang="wait")
        process.kill()
        process.wait()
        wait_until(lambda: state_of(helper) in ("", "Z"), what="the helper is gone")
        launcher.file("go", "")


def test_a_run_ends_although_its_helper_hangs_in_the_driver(
    launcher: Launcher, driver: FakeDriver
) -> None:
    driver.card(0, hang="register")
    launcher.file("go", "")
    result = launcher("run", "jobs.yaml", timeout=30)
    assert result.status == 0, result.err
