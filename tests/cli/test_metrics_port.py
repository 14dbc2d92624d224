"""`--metrics-port` from outside: scraped while a run lives, and no trouble to it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.gpus.fake import FakeDriver
from tests.helpers import held_by, wait_until
from tests.prometheus.support import Page, scrape

UNTIL_STOPPED = "'while [ ! -e stop ]; do sleep 0.05; done'"
LIVE = f"""
    jobs:
      - {{name: good, run: 'true'}}
      - {{name: bad, run: exit 3}}
      - {{name: flaky, run: '[ {{{{attempt}}}} = 2 ]', retries: 1}}
      - {{name: long, run: {UNTIL_STOPPED}}}
      - {{name: after-it, needs: [long], run: 'true'}}
"""


def address(text: str) -> str:
    found = re.search(r"^gpulaunch: metrics at (http://127\.0\.0\.1:\d+/metrics)$", text, re.M)
    assert found, text
    return found[1]


@contextmanager
def live(launcher: Launcher, *argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A run with its metrics' address, once `bad` and `flaky` have ended."""
    launcher.file("jobs.yaml", LIVE)
    with launcher.begun(*argv, "--metrics-port", "0") as process:
        where = told_address(process)
        launcher.wait_for("job_settled", 3)
        yield process, where


def told_address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    told = ""
    while "metrics at" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    return address(told)


def reachable(where: str) -> bool:
    try:
        scrape(where)
    except ConnectionError:
        return False
    return True


def port_of(where: str) -> str:
    return where.rpartition(":")[2].partition("/")[0]


def scraped(where: str, settled: int) -> Page:
    """The page that has so many settled jobs: one may be a second old."""

    def told() -> Page | None:
        page = scrape(where)
        jobs = page.by("gpulaunch_jobs", "state")
        return page if jobs.get("succeeded", 0) + jobs.get("failed", 0) == settled else None

    return wait_until(told)


def outcome(page: Page) -> tuple[dict[str, float], ...]:
    return (
        page.by("gpulaunch_jobs", "state"),
        page.by("gpulaunch_attempts_total", "outcome"),
        page.by("gpulaunch_failures_total", "failure"),
    )


def test_a_live_run_is_told_as_it_is_and_ends_with_its_metrics(launcher: Launcher) -> None:
    with live(launcher, "run", "jobs.yaml", "--simulate", "3") as (process, where):
        page = scraped(where, 3)
        assert outcome(page) == (
            {"succeeded": 2, "failed": 1, "running": 1, "waiting": 1},
            {"succeeded": 2, "failed": 2},
            {"exit": 2},
        )
        assert page.value("gpulaunch_retries_total") == 1
        assert page.value("gpulaunch_queue_length") == 1
        (who,) = page.labels("gpulaunch_run_info")
        status = launcher.status()["run"]
        assert who["run"] == status["id"]
        assert who["name"] == "jobs"
        assert who["simulated"] == "true"
        on_cards = page.by("gpulaunch_gpu_attempts_running", "uuid")
        (attempt,) = launcher.jobs()["long"]["attempts"]
        assert on_cards == {attempt["gpus"][0]["uuid"]: 1}
        assert not [name for name in page.families if "memory" in name or "utilization" in name]
        launcher.file("stop", "")
        assert process.wait(60) == 1
    assert not reachable(where)


def test_a_resumed_run_counts_on(launcher: Launcher) -> None:
    with live(launcher, "run", "jobs.yaml", "--simulate", "3") as (process, where):
        before = outcome(scraped(where, 3))
        process.kill()
        process.wait()
        wait_until(lambda: not reachable(where))
    argv = ("resume", "--metrics-port", port_of(where))
    with launcher.begun(*argv) as process:
        launcher.wait_for("run_opened", 2)
        launcher.wait_for("attempt_started", 6)

        def again() -> Page | None:
            page = scrape(where)  # the very same port; as old as a second
            there = page.value("gpulaunch_attempts_running") and outcome(page)[1]["failed"] > 2
            return page if there else None

        after = outcome(wait_until(again))
        assert before[1] == {"succeeded": 2, "failed": 2}
        assert after[1]["failed"] == 3
        assert after[1]["succeeded"] == 2
        assert after[1].get("interrupted", 0) + after[1].get("lost", 0) == 1
        launcher.file("stop", "")
        assert process.wait(60) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "jobs.yaml", "--simulate", "1"],
        ["run", "jobs.yaml", "--simulate", "1", "--detach"],
        ["map", "--simulate", "1", "echo", ":::", "a"],
    ],
    ids=["run", "detached", "map"],
)
def test_a_port_that_is_taken_is_one_line_and_no_run(launcher: Launcher, argv: list[str]) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = launcher(argv[0], "--metrics-port", str(port), *argv[1:])
    assert result.status == 2
    assert result.out == ""
    assert result.err == (
        f"gpulaunch: --metrics-port {port}: 127.0.0.1:{port} cannot be had: Address already in"
        " use; name another port, or 0 for one that is free\n"
    )
    assert not (launcher.path / "gpulaunch-runs").exists()


@pytest.mark.parametrize("command", ["resume", "retry"])
def test_a_port_that_is_taken_leaves_an_old_run_as_it_was(launcher: Launcher, command: str) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: exit 1}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    before = launcher.events()
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = launcher(command, "--metrics-port", str(other.getsockname()[1]))
    assert result.status == 2
    assert "cannot be had" in result.err
    assert launcher.events() == before


@pytest.mark.parametrize("port", ["-1", "65536", "x", "127.0.0.1:80"])
def test_what_is_no_port_is_a_usage_error(launcher: Launcher, port: str) -> None:
    result = launcher("map", "--metrics-port", port, "--simulate", "1", "true", ":::", "a")
    assert result.status == 2
    assert "--metrics-port" in result.err


def test_a_dry_run_takes_no_port(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = launcher(
            "run", "jobs.yaml", "--simulate", "1", "--dry-run", "--metrics-port", port
        )
    assert result.status == 0, result.err
    assert "metrics" not in result.err


def test_a_detached_run_prints_where_and_is_served(launcher: Launcher) -> None:
    # It is bound to no test: where nobody stops it, it ends by itself.
    launcher.file("jobs.yaml", f"jobs: [{{name: long, timeout: 5m, run: {UNTIL_STOPPED}}}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--detach", "--metrics-port", "0")
    assert result.status == 0, result.err
    where = address(result.err)
    launcher.wait_for("attempt_started", run=Path(result.out.strip()))
    assert result.out == f"{launcher.run}\n"
    launcher.wait_for("attempt_started")
    wait_until(lambda: scrape(where).value("gpulaunch_jobs", state="running") == 1)
    launcher.file("stop", "")
    assert launcher("wait").status == 0
    wait_until(lambda: not reachable(where))


def test_quiet_leaves_a_port_that_only_we_know(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    argv = ("run", "--new", "jobs.yaml", "--simulate", "1", "--quiet", "--metrics-port")
    where = address(launcher(*argv, "0").err)
    assert "metrics" not in launcher(*argv, port_of(where)).err


def test_json_on_standard_output_stays_json(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1", "--json", "--metrics-port", "0")
    assert [json.loads(line)["e"] for line in result.out.splitlines()][-1] == "run_closed"
    address(result.err)


def test_a_run_that_is_alive_keeps_the_port_it_has(launcher: Launcher) -> None:
    with live(launcher, "run", "jobs.yaml", "--simulate", "3") as (process, where):
        result = launcher("retry", "--metrics-port", "0")
        assert result.status == 0
        assert "changes nothing for a run that is alive" in result.err
        assert reachable(where)
        launcher.file("stop", "")
        assert process.wait(60) == 1


def test_a_run_that_is_alive_is_why_it_cannot_go_on_and_not_its_own_port(
    launcher: Launcher,
) -> None:
    with live(launcher, "run", "jobs.yaml", "--simulate", "3") as (process, where):
        for argv in (["run", "--continue", "jobs.yaml"], ["run", "jobs.yaml"], ["resume"]):
            result = launcher(*argv, "--simulate", "3", "--metrics-port", port_of(where))
            assert result.status == 5, result.err
            assert "alive" in result.err
        launcher.file("stop", "")
        assert process.wait(60) == 1


def test_jobs_do_not_hold_the_port(launcher: Launcher) -> None:
    with live(launcher, "run", "jobs.yaml", "--simulate", "3") as (process, where):
        pid = launcher.jobs()["long"]["attempts"][0]["pid"]
        held = held_by(pid) | held_by(process.pid)
        port = f":{int(port_of(where)):04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (inode,) = [row[9] for row in rows if row[1].endswith(port) and row[3] == "0A"]
        assert f"socket:[{inode}]" not in held
        launcher.file("stop", "")
        assert process.wait(60) == 1


def test_metrics_that_cannot_be_served_end_no_run(launcher: Launcher) -> None:
    with live(launcher, "run", "jobs.yaml", "--simulate", "3") as (process, where):
        (server,) = [
            int(pid)
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            if _command_of(pid).endswith(b"gpulaunch-metrics\0")
        ]
        os.kill(server, 9)
        wait_until(lambda: not reachable(where))
        launcher.file("stop", "")
        assert process.wait(60) == 1
    assert launcher.states()["after-it"] == "succeeded"


def test_a_cards_gauges_are_what_the_run_measured(on_cards: Launcher, driver: FakeDriver) -> None:
    uuid = driver.card(0)
    driver.card(1)
    driver.card(2)  # or `flaky`, which is to try another card, would wait for that of `long`

    def measured(where: str) -> Page | None:
        page = scrape(where)
        return page if "gpulaunch_gpu_temperature_celsius" in page.families else None

    with live(on_cards, "run", "jobs.yaml") as (process, where):
        page = wait_until(lambda: measured(where), 30)
        for name in ("utilization_ratio", "memory_used_bytes", "power_watts"):
            assert len(page.labels(f"gpulaunch_gpu_{name}")) == 3
        total = page.value("gpulaunch_gpu_memory_total_bytes", gpu="0", uuid=uuid)
        assert 0 < page.value("gpulaunch_gpu_memory_used_bytes", gpu="0", uuid=uuid) < total
        on_cards.file("stop", "")
        assert process.wait(60) == 1


def test_a_thousand_scrapes_change_nothing_in_a_run_of_five_hundred_jobs(
    launcher: Launcher,
) -> None:
    values = ", ".join(str(n) for n in range(500))
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - name: j-{{{{item}}}}
            foreach: {{values: [{values}]}}
            run: [sh, -c, 'exit $(($0 % 4))', "{{{{item}}}}"]
        """,
    )
    argv = ("run", "jobs.yaml", "--simulate", "8", "--quiet", "--breaker", "0")
    with launcher.begun(*argv, "--metrics-port", "0") as process:
        assert process.stderr is not None
        where = address(process.stderr.readline() + process.stderr.readline())
        seen, scrapes = [], 0
        while process.poll() is None and scrapes < 1000:
            try:
                page = scrape(where)
            except (OSError, HTTPException):  # the run has just ended
                wait_until(lambda: process.poll() is not None)
                break
            scrapes += 1
            seen.append(sum(page.by("gpulaunch_attempts_total", "outcome").values()))
            assert sum(page.by("gpulaunch_jobs", "state").values()) in (0, 500) or not seen[-1]
        assert process.wait(120) == 1
    assert scrapes > 10
    assert seen == sorted(seen)
    assert launcher.status()["run"]["counts"] == {
        "waiting": 0, "running": 0, "succeeded": 125, "failed": 375, "cancelled": 0, "skipped": 0,
    }  # fmt: skip
    jobs = launcher.jobs()
    assert all(job["exit_code"] == int(name[2:]) % 4 for name, job in jobs.items())
    assert all(len(job["attempts"]) == 1 for job in jobs.values())


def _command_of(pid: str) -> bytes:
    """Its command line; empty where it ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("then", ["same", "changed"])
def test_the_time_left_begins_with_what_the_same_definition_took(
    launcher: Launcher, then: str
) -> None:
    jobs = (
        f"jobs: [{{name: 'a{{{{item}}}}', foreach: {{values: [1, 2, 3]}}, run: {UNTIL_STOPPED}}}]"
    )
    launcher.file("stop", "")
    launcher.file("jobs.yaml", jobs)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    (launcher.path / "stop").unlink()
    launcher.file("jobs.yaml", jobs.replace("0.05", "0.06") if then == "changed" else jobs)
    argv = ("run", "jobs.yaml", "--new", "--simulate", "1", "--metrics-port", "0")
    with launcher.begun(*argv) as process:
        where = told_address(process)
        launcher.wait_for("attempt_started")

        def begun() -> Page | None:
            page = scrape(where)
            return page if page.value("gpulaunch_attempts_running") else None

        known = "gpulaunch_run_estimated_remaining_seconds" in wait_until(begun).families
        assert known == (then == "same")
        launcher.file("stop", "")
        assert process.wait(60) == 0
