"""Cards that are held and not used, and what cards draw: whole runs on the pretend driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until

WAITS = "until [ -e go ]; do sleep 0.02; done"


def freed(driver: FakeDriver) -> None:
    """The card's memory is back."""
    driver.no_processes()
    driver.card(0, used=0)


def attempts(launcher: Launcher, job: str = "a") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = launcher.jobs()[job]["attempts"]
    return found


def test_a_job_that_hangs_with_memory_held_is_ended_and_tried_again(
    on_cards: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    once = "if [ $GPULAUNCH_ATTEMPT = 1 ]; then sleep 1000; fi"
    on_cards.file(
        "jobs.yaml",
        "defaults: {gpu_idle: '{{limit}}s', grace: 1, retries: {times: 1, 'on': gpu_idle}}\n"
        f"jobs: [{{name: a, matrix: {{limit: 2}}, run: '{once}'}}]\n",
    )
    with on_cards.begun("run", "jobs.yaml") as process:
        (started,) = on_cards.wait_for("attempt_started")
        driver.process(0, started["pid"], 3 * GIB)
        driver.card(0, used=3 * GIB)
        (ended,) = on_cards.wait_for("attempt_ended")
        freed(driver)
        assert process.wait(60) == 0
        assert process.stderr is not None
        shown = process.stderr.read()
    first, second = attempts(on_cards, "a-limit=2")
    assert ended["charged"]
    assert (first["state"], first["failure"]) == ("failed", "gpu_idle")
    assert first["evidence"].startswith("used 0 % of GPU 0 for ")
    assert first["evidence"].endswith(" s with 3 GiB held")
    assert "py-spy" in first["advice"]
    assert second["state"] == "succeeded"
    assert "used 0 % of GPU 0 for " in shown


def test_a_job_that_never_touched_its_card_is_named_at_the_end(
    on_cards: Launcher, driver: FakeDriver
) -> None:
    driver.card(0)
    on_cards.file("jobs.yaml", f"jobs: [{{name: a, gpu_idle: 1s, run: '{WAITS}'}}]")
    with on_cards.begun("run", "jobs.yaml") as process:
        on_cards.wait_for("attempt_started")
        wait_until(lambda: attempts(on_cards)[0]["touched_gpu"] is False, 40)
        on_cards.file("go", "")
        assert process.wait(60) == 0
        assert process.stderr is not None
        shown = process.stderr.read()
    assert attempts(on_cards)[0]["touched_gpu"] is False
    told = "1 job succeeded and was never seen on a card (a): did they run on the CPU?"
    assert told in shown
    assert told in (on_cards.run / "report.html").read_text()


def test_the_energy_of_a_shared_card_is_split_among_its_jobs(
    on_cards: Launcher, driver: FakeDriver
) -> None:
    driver.card(0, energy=1_000_000, utilization=80)
    job = f"{{name: NAME, per_gpu: 2, run: '{WAITS}'}}"
    both = ", ".join(job.replace("NAME", name) for name in "ab")
    on_cards.file("jobs.yaml", f"jobs: [{both}]")
    with on_cards.begun("run", "jobs.yaml") as process:
        shares = {"a": 60, "b": 20}
        for started in on_cards.wait_for("attempt_started", 2):
            share = shares[started["job"]]
            driver.process(0, started["pid"], GIB, sm=share)
        for name in shares:
            wait_until(lambda name=name: attempts(on_cards, name)[0]["pin"] == "verified", 30)
        driver.card(0, energy=1_000_000 + 8 * 3_600_000)
        wait_until(lambda: (on_cards.status()["run"]["energy"] or 0) > 1, 30)
        freed(driver)
        on_cards.file("go", "")
        assert process.wait(60) == 0
        assert process.stderr is not None
        shown = process.stderr.read()
    one, other = (attempts(on_cards, name)[0]["energy"] for name in "ab")
    run = on_cards.status()["run"]["energy"]
    assert one + other == pytest.approx(run)
    assert run == pytest.approx(8 * 3600)
    assert one == pytest.approx(3 * other)
    assert on_cards.jobs()["a"]["energy"] == one
    assert "8.00 Wh" in shown
    assert "6.00 Wh" in on_cards("status", "a").out
    assert "8.00 Wh" in (on_cards.run / "report.html").read_text()


def test_on_pretend_cards_nothing_is_idle_and_nothing_is_drawn(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, gpu_idle: 1s, run: '{WAITS}'}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        wait_until(lambda: attempts(launcher)[0]["peak_resident"], 30)
        launcher.file("go", "")
        assert process.wait(60) == 0
    (found,) = attempts(launcher)
    assert (found["energy"], found["touched_gpu"], found["idle"]) == (None, None, None)
    assert launcher.status()["run"]["energy"] is None


def test_a_job_without_cards_has_no_such_limit_of_its_own(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, gpus: 0, gpu_idle: 30m, run: 'true'}]")
    said = launcher("check", "jobs.yaml")
    assert said.status == 2
    assert "jobs[0].gpu_idle: a job without cards (gpus: 0) holds none idle" in said.err
    launcher.file("jobs.yaml", "defaults: {gpu_idle: 30m}\njobs: [{name: a, gpus: 0, run: 'true'}]")
    assert launcher("check", "jobs.yaml", "--simulate", "1").status == 0


def test_check_shows_the_limit_and_refuses_it_on_a_cluster(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, gpu_idle: 30m, run: 'true'}]")
    plan = json.loads(launcher("check", "jobs.yaml", "--simulate", "1", "--json").out)
    assert plan["jobs"][0]["gpu_idle"] == 1800.0
    assert "gpu_idle 30 min" in launcher("check", "jobs.yaml", "--simulate", "1").out
    said = launcher("check", "jobs.yaml", "--engine", "slurm")
    assert said.status == 2
    assert "jobs[0].gpu_idle: nothing measures on a cluster's nodes" in said.err


def test_map_has_the_limit_as_an_option(launcher: Launcher) -> None:
    line = ("map", "--simulate", "1", "--dry-run", "--json", "--gpu-idle")
    plan = json.loads(launcher(*line, "30m", "true", ":::", "a").out)
    assert plan["jobs"][0]["gpu_idle"] == 1800.0
    wrong = launcher(*line, "soon", "true", ":::", "a")
    assert wrong.status == 2
    assert "--gpu-idle: " in wrong.err
