"""Whole runs on cards that a desktop uses as well: browsers that compute, and Windows under WSL."""

from __future__ import annotations

import json
import os

import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Acquire, Drain, Event, Granted, Occupied, Refused
from gpulaunch.engines.local import leases as cards
from gpulaunch.engines.local.leases import CardLeases
from gpulaunch.engines.pool import open_pool
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.gpus.fake import GIB, MIB, FakeDriver
from tests.helpers import wait_until

ONE = "jobs: [{name: a, run: echo ran}]\n"


@pytest.fixture
def launcher(on_cards: Launcher) -> Launcher:
    on_cards.environ.pop("GPULAUNCH_LEASED")  # inside a job, others on the card are its own
    on_cards.file("jobs.yaml", ONE)
    return on_cards


@pytest.fixture
def desktop(driver: FakeDriver) -> FakeDriver:
    """A card of 24 GiB, whose bus id no other test process has at the same time."""
    driver.card(0, total=24 * GIB, bus=f"0000{os.getpid() % 0xFFFF:04x}:03:00.0")
    return driver


def browser(driver: FakeDriver, memory: int | None, used: int) -> None:
    driver.no_processes()
    driver.process(0, pid=os.getpid(), memory=memory, kind="C+G")
    driver.card(0, used=used)


def test_a_browser_that_computes_as_well_keeps_no_card_from_jobs(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    browser(desktop, 400 * MIB, 600 * MIB)
    assert launcher("run", "jobs.yaml", "--wait", "1s").status == 0
    browser(desktop, None, 400 * MIB)
    assert launcher("run", "jobs.yaml", "--wait", "1s", "--new").status == 0
    assert launcher("exec", "--no-wait", "--", "true").status == 0
    (row,) = json.loads(launcher("gpus", "--json").out)["gpus"]
    assert (row["state"], row["option"]) == (None, None)
    assert row["users"][0]["pid"] == os.getpid()


def test_whatever_waits_for_a_card_names_the_option_that_would_take_it(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    browser(desktop, 3 * GIB, 3 * GIB + 100 * MIB)
    option = "--free-below 4GB"
    told = f"{option} takes it all the same"
    for result in (
        launcher("run", "jobs.yaml", "--wait", "1s"),
        launcher("exec", "--no-wait", "--", "true"),
        launcher("hold", "--no-wait", "--", "true"),
    ):
        assert result.status in (3, 124)
        assert f"pid {os.getpid()}, 3 GiB" in result.err
        assert told in result.err
    assert told in launcher("gpus").out
    assert json.loads(launcher("gpus", "--json").out)["gpus"][0]["option"] == option
    assert told in launcher("doctor").out
    for command in (("exec", "--no-wait"), ("hold", "--no-wait")):
        assert launcher(*command, *option.split(), "--", "true").status == 0
    assert launcher("run", "jobs.yaml", "--new", "--wait", "1s", *option.split()).status == 0
    assert launcher("map", *option.split(), "--wait", "1s", "true {{item}}", ":::", "x").status == 0


def test_a_program_that_only_computes_is_shared_with_or_waited_for(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    desktop.process(0, pid=os.getpid(), memory=1 * MIB)
    result = launcher("run", "jobs.yaml", "--wait", "1s", "--free-below", "4GB")
    assert result.status == 3
    assert "--share-busy takes it all the same" in result.err
    assert launcher("run", "jobs.yaml", "--new", "--wait", "1s", "--share-busy").status == 0


def test_status_says_how_a_waiting_job_would_get_the_card(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    desktop.card(0, used=1400 * MIB)
    with launcher.begun("run", "jobs.yaml") as process:
        run = wait_until(lambda: next((launcher.path / "gpulaunch-runs").glob("jobs-*"), None))
        wait_until(lambda: launcher.events(run=run))
        wait_until(lambda: "--free-below 2GB" in str(launcher.jobs(run).get("a")))
        (card,) = launcher.status(run)["gpus"]
        assert "--free-below 2GB takes it all the same" in card["reason"]
        assert "--free-below 2GB takes it all the same" in launcher("status").out
        desktop.card(0, used=0)
        assert process.wait(60) == 0


def test_the_job_file_sets_the_line_and_the_option_goes_before_it(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    desktop.card(0, used=3 * GIB)
    launcher.file("jobs.yaml", f"free_below: 512MB,20%\n{ONE}")
    assert launcher("run", "jobs.yaml", "--wait", "1s").status == 0
    result = launcher("run", "jobs.yaml", "--new", "--wait", "1s", "--free-below", "1GB")
    assert result.status == 3
    assert "--free-below 4GB" in result.err
    launcher.file("jobs.yaml", f"free_below: lots\n{ONE}")
    result = launcher("run", "jobs.yaml")
    assert result.status == 2
    assert "jobs.yaml:1:13: free_below: expected memory like 2GB" in result.err


@pytest.mark.parametrize(
    ("command", "wrong"), [("run jobs.yaml", "150%"), ("exec -- true", "lots"), ("hold", "-1")]
)
def test_a_line_that_means_nothing_is_refused(launcher: Launcher, command: str, wrong: str) -> None:
    name, *rest = command.split()
    result = launcher(name, f"--free-below={wrong}", *rest)
    assert result.status in (2, 125)
    assert "--free-below" in result.err
    assert "expected" in result.err
    assert "Traceback" not in result.err


# ── WSL: the driver names no process, and tells the memory of all together ──────────────────────


def test_a_run_under_wsl_does_not_wait_for_windows_to_leave(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    desktop.wsl(0, used=1700 * MIB)
    assert launcher("run", "jobs.yaml", "--wait", "1s").status == 0
    result = launcher("doctor")
    assert "Windows draws on it" in result.out
    assert "less than 2 GiB" in result.out


def test_a_card_that_a_job_fills_under_wsl_is_waited_for(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    desktop.wsl(0, used=20 * GIB)
    result = launcher("run", "jobs.yaml", "--wait", "1s")
    assert result.status == 3
    assert "20 GiB are in use there by Windows or others: the driver names nobody" in result.err
    assert "--share-busy takes it all the same" in result.err
    desktop.wsl(0, used=3 * GIB)
    result = launcher("run", "jobs.yaml", "--wait", "1s")
    assert result.status == 3
    assert "--free-below 4GB takes it all the same" in result.err
    assert launcher("run", "jobs.yaml", "--wait", "1s", "--free-below", "4GB").status == 0


def test_a_job_inside_wsl_that_the_driver_names_keeps_others_waiting(
    launcher: Launcher, desktop: FakeDriver
) -> None:
    desktop.wsl(0, used=1 * GIB)
    desktop.process(0, pid=os.getpid())
    result = launcher("run", "jobs.yaml", "--wait", "1s")
    assert result.status == 3
    assert f"pid {os.getpid()}" in result.err


# ── After a job ─────────────────────────────────────────────────────────────────────────────────

TWO = f"""
jobs:
  - {{name: first, priority: 1, run: 'touch started; {UNTIL_GO}'}}
  - {{name: second, run: touch second}}
"""


@pytest.mark.parametrize("wsl", [False, True])
def test_a_desktop_that_grows_meanwhile_does_not_keep_the_next_job(
    launcher: Launcher, desktop: FakeDriver, wsl: bool
) -> None:
    launcher.file("jobs.yaml", TWO)
    if wsl:
        desktop.wsl(0, used=300 * MIB)
    else:
        browser(desktop, 100 * MIB, 110 * MIB)
    with launcher.begun("run", "jobs.yaml") as process:
        wait_until((launcher.path / "started").exists)
        desktop.card(0, used=12 * GIB)  # the job's own, and the desktop's
        launcher.file("go", "")
        launcher.wait_for("attempt_ended")
        wait_until(lambda: [e for e in launcher.events("gpu_changed") if e["state"] == "draining"])
        assert not (launcher.path / "second").exists()
        if wsl:
            desktop.card(0, used=1600 * MIB)
        else:
            browser(desktop, 900 * MIB, 930 * MIB)
        assert process.wait(60) == 0
    states = [event["state"] for event in launcher.events("gpu_changed")]
    assert "aside" not in states
    assert "occupied" not in states


@pytest.mark.parametrize("wsl", [False, True])
def test_memory_that_windows_may_have_sets_no_card_aside(
    launcher: Launcher, desktop: FakeDriver, monkeypatch: pytest.MonkeyPatch, wsl: bool
) -> None:
    monkeypatch.setattr(cards, "DRAIN_TIMEOUT", 0.0)
    for name, value in desktop.environ.items():
        monkeypatch.setenv(name, value)
    if wsl:
        desktop.wsl(0, used=300 * MIB)
    loop, events = Loop(), list[Event]()
    pool = open_pool(None, None, desktop.environ, "run")
    leases = CardLeases(pool, loop, events.append, {})
    leases.carry_out(Acquire(pool.gpus[0].uuid))
    while not events:
        loop.turn()
    assert isinstance(events.pop(), Granted)
    desktop.card(0, used=5 * GIB)
    leases.carry_out(Drain(pool.gpus[0].uuid))
    while not events:
        loop.turn()
    refused = events.pop()
    assert isinstance(refused, Refused)
    assert isinstance(refused.why, Occupied) is wsl
    assert not leases.holds(pool.gpus[0].uuid)
    leases.close()
    loop.close()
