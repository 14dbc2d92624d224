"""What whole runs used: in `status --json`, in the summary, across a resume and a crash.

The pretend driver is told where a job's processes are once they are there.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until

GPU_KEYS = (
    "peak_gpu_memory",
    "mean_gpu_memory",
    "peak_card_memory",
    "peak_gpu_utilization",
    "mean_gpu_utilization",
    "gpu_seconds",
    "pin",
)
WAITS = "jobs: [{name: a, grace: 0, run: 'until [ -e go ]; do sleep 0.02; done; exit 3'}]"


def attempt(launcher: Launcher, job: str = "a", number: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = launcher.jobs()[job]["attempts"][number - 1]
    return found


def sampled(launcher: Launcher, key: str = "peak_resident", number: int = 1) -> dict[str, Any]:
    """The attempt's figures, once there is this one."""

    def there() -> dict[str, Any] | None:
        found = attempt(launcher, number=number)
        return found if found[key] is not None else None

    found = wait_until(there, 30, f"{key} of attempt {number}")
    assert found is not None
    return found


def test_on_pretend_cards_a_job_has_cpu_time_and_memory_and_nothing_of_a_card(
    launcher: Launcher,
) -> None:
    burn = "import time; held = b'x' * (64 << 20)\nwhile time.process_time() < 1.0: pass\n"
    launcher.file("burn.py", f"{burn}import os\nwhile not os.path.exists('go'): time.sleep(0.02)\n")
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: [{sys.executable}, burn.py]}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "2") as process:
        launcher.wait_for("attempt_started")
        live = sampled(launcher)
        assert live["state"] == "running"
        launcher.file("go", "")
        assert process.wait(60) == 0
        assert process.stderr is not None
        shown = process.stderr.read()
    done = attempt(launcher)
    assert {key: done[key] for key in GPU_KEYS} == dict.fromkeys(GPU_KEYS)
    assert done["cpu_seconds"] >= 1.0
    assert done["peak_resident"] > 64 << 20
    assert "used  resident memory at most" in shown
    assert "GPU memory" not in shown
    assert "utilised" not in shown


def test_a_list_that_is_over_at_once_leaves_no_database(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    assert not (launcher.run / "metrics.db").exists()
    assert attempt(launcher)["cpu_seconds"] is None


def test_a_resumed_run_goes_on_in_the_same_database(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)
    for number, command in enumerate((("run", "jobs.yaml", "--simulate", "1"), ("resume",)), 1):
        with launcher.begun(*command) as process:
            launcher.wait_for("attempt_started", number)
            sampled(launcher, number=number)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
    attempts = launcher.jobs()["a"]["attempts"]
    assert all(each["peak_resident"] for each in attempts)
    assert [entry.name for entry in launcher.run.glob("metrics.db*")] == ["metrics.db"]


def test_what_was_measured_survives_a_supervisor_that_was_killed(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        sampled(launcher)
        process.kill()
        process.wait()
    assert launcher.status()["run"]["state"] == "interrupted"
    assert attempt(launcher)["peak_resident"] is not None


def test_a_torn_database_is_as_good_as_none_and_a_resume_begins_another(
    launcher: Launcher,
) -> None:
    launcher.file("jobs.yaml", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        sampled(launcher)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    database = launcher.run / "metrics.db"
    database.write_bytes(b"\0" * 5000)
    assert attempt(launcher)["peak_resident"] is None
    with launcher.begun("resume") as process:
        launcher.wait_for("attempt_started", 2)
        sampled(launcher, number=2)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert database.with_name("metrics.db.aside").read_bytes() == b"\0" * 5000
    (note,) = launcher.events("noted")
    assert "metrics.db.aside" in note["text"]


# ── On the pretend driver ───────────────────────────────────────────────────────────────────────


def test_a_job_on_a_card_has_its_memory_its_utilisation_and_its_place_proved(
    on_cards: Launcher, driver: FakeDriver
) -> None:
    driver.card(0, utilization=50)
    on_cards.file("jobs.yaml", WAITS)
    with on_cards.begun("run", "jobs.yaml") as process:
        (started,) = on_cards.wait_for("attempt_started")
        driver.process(0, started["pid"], 3 * GIB)
        driver.card(0, used=3 * GIB)
        live = sampled(on_cards, "pin")
        assert live["pin"] == "verified"
        driver.no_processes()
        driver.card(0, used=0)
        on_cards.file("go", "")
        assert process.wait(60) == 1
        assert process.stderr is not None
        shown = process.stderr.read()
    done = attempt(on_cards)
    assert done["peak_gpu_memory"] == 3 * GIB
    assert done["peak_card_memory"] >= 3 * GIB
    assert (done["mean_gpu_utilization"], done["peak_gpu_utilization"]) == (50.0, 50.0)
    assert 0 < done["gpu_seconds"] < done["seconds"] + 10
    assert "used  GPU memory at most 3 GiB, 50 % utilised" in shown
    assert "used  a job's GPU memory at most 3 GiB (a), the jobs' cards 50 % utilised" in shown


@pytest.mark.parametrize(("pin", "status"), [("fail", None), ("warn", 3)])
def test_a_job_on_a_card_that_is_not_its_own_fails_or_is_named(
    on_cards: Launcher, driver: FakeDriver, pin: str, status: int | None
) -> None:
    driver.card(0)
    stranger = driver.card(1)
    on_cards.file("jobs.yaml", WAITS)
    with on_cards.begun("run", "jobs.yaml", "--gpus", "[0]", "--pin", pin) as process:
        (started,) = on_cards.wait_for("attempt_started")
        driver.process(1, started["pid"], GIB)
        (note,) = on_cards.wait_for("noted")
        found = sampled(on_cards, "pin")
        assert found["pin"] == "misplaced"
        assert f"process {started['pid']}" in found["pin_reason"]
        assert f"GPU 1 ({stranger})" in found["pin_reason"]
        assert note["text"] == found["pin_reason"]
        driver.no_processes()
        if pin == "warn":
            on_cards.file("go", "")
        assert process.wait(60) == 1
    job = on_cards.jobs()["a"]
    assert job["state"] == "failed"
    assert job["failure"] == ("wrong_gpu" if pin == "fail" else "exit")
    assert job["exit_code"] == status
    assert ("is on GPU 1" in job["reason"]) == (pin == "fail")
    assert ("isolation: strict" in job["attempts"][0]["advice"]) == (pin == "fail")


def test_the_sampler_writes_where_the_run_is_and_nowhere_else(
    launcher: Launcher, tmp_path: Path
) -> None:
    launcher.file("jobs.yaml", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        sampled(launcher)
        shutil.rmtree(launcher.run)  # its reader goes too: what is left is the run itself
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert not list(tmp_path.rglob("metrics.db*"))


def test_the_database_is_a_plain_one_that_other_programs_can_read(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", WAITS)
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        sampled(launcher)
        with sqlite3.connect(launcher.run / "metrics.db") as database:
            assert database.execute("SELECT job, number FROM attempt").fetchall() == [("a", 1)]
        database.close()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
