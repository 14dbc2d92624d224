"""Whole runs with `memory:`: reserved everywhere, and kept to by the kernel where it lets us."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from gpulaunch.base.cgroups import Unlimited, find, memory_of_machine, place_of
from gpulaunch.engines.local.memory_limits import opened_for
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.helpers import wait_until

EATS = f"{sys.executable} -c 'x = bytearray(1 << 30); print(len(x))'"
WIDE = f"""
jobs:
  - {{name: wide, memory: 200MB, run: "{EATS}"}}
  - {{name: child, memory: 200MB, gpus: 0, run: "{EATS} || exit 3"}}
  - {{name: fine, memory: 200MB, gpus: 0, run: "echo fine"}}
  - {{name: free, gpus: 0, run: "{EATS}"}}
"""


@pytest.fixture
def limited() -> Path:
    """Where cgroups are made; skipped where this user may make none."""
    place = place_of(find())
    opened = place if isinstance(place, Unlimited) else opened_for(f"exec-{os.getpid()}")
    if isinstance(opened, Unlimited):
        pytest.skip(opened.why)
    opened.close()
    assert isinstance(place, Path)
    return place


def of(launcher: Launcher, place: Path) -> Path:
    return place / f"gpulaunch-{launcher.status()['run']['id']}"


def test_a_job_that_takes_more_is_killed_alone_and_its_limit_is_named(
    launcher: Launcher, limited: Path
) -> None:
    launcher.file("jobs.yaml", WIDE)
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    assert result.status == 1, result.err
    jobs = launcher.jobs()
    states = {name: (job["state"], job["failure"]) for name, job in jobs.items()}
    assert states == {
        "wide": ("failed", "host_oom"),
        "child": ("failed", "host_oom"),
        "fine": ("succeeded", None),
        "free": ("succeeded", None),
    }
    assert "out of the 191 MiB that memory: gave it; peak" in jobs["wide"]["reason"]
    assert "Raise memory:" in result.err
    assert not of(launcher, limited).exists()


def test_a_worker_is_limited_for_its_whole_life(launcher: Launcher, limited: Path) -> None:
    launcher.file(
        "fold.py",
        """
        def fold(item):
            if item["item"] == "2":
                x = bytearray(1 << 30)
                print(len(x))
        """,
    )
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: "f{{item}}", foreach: {values: [1, 2, 3]}, worker: "fold.py:fold", memory: 300MB}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    failures = {name: job["failure"] for name, job in launcher.jobs().items()}
    assert failures == {"f1": None, "f2": "host_oom", "f3": None}
    assert not of(launcher, limited).exists()


def test_what_a_killed_launcher_left_is_removed_by_the_next_run(
    launcher: Launcher, limited: Path
) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, memory: 100MB, run: '{UNTIL_GO}'}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        left = of(launcher, limited)
        assert (left / "job-a.1" / "cgroup.procs").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not (left / "job-a.1" / "cgroup.procs").read_text(), 30)
    launcher.file("other.yaml", "jobs: [{name: b, memory: 100MB, run: 'true'}]")
    assert launcher("run", "other.yaml", "--simulate", "1").status == 0
    assert not left.exists()


def test_jobs_that_do_not_fit_together_run_one_after_the_other(launcher: Launcher) -> None:
    memory = (memory_of_machine() or 0) * 2 // 3 >> 20
    launcher.file(
        "jobs.yaml",
        f"""
        defaults: {{memory: {memory}MiB, gpus: 0}}
        jobs: [{{name: "h{{{{item}}}}", foreach: {{values: [1, 2, 3]}}, run: sh alone.sh}}]
        """,
    )
    launcher.file("alone.sh", "mkdir busy && sleep 0.2 && rmdir busy\n")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0


@pytest.mark.parametrize("command", ["check", "run"])
def test_more_than_the_machine_has_is_a_mistake_of_the_file(
    launcher: Launcher, command: str
) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, memory: 900TB, run: 'true'}]")
    result = launcher(command, "jobs.yaml", "--simulate", "1")
    assert result.status == 2
    assert (
        "jobs.yaml:1:26: jobs[0].memory: reserves 838190.3 GiB of the host's memory" in result.err
    )


def test_check_compares_with_what_the_last_run_took(launcher: Launcher) -> None:
    launcher.file(
        "take.py",
        """
        import os, time
        held = b"x" * (96 << 20)
        while not os.path.exists("go"):
            time.sleep(0.02)
        """,
    )
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: [{sys.executable}, take.py]}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        wait_until(lambda: launcher.jobs()["a"]["attempts"][0]["peak_resident"], 30)
        launcher.file("go", "")
        assert process.wait(60) == 0
    for memory, words in (("64MiB", "and took up to"), ("4GiB", "and took no more than")):
        told = f"jobs: [{{name: a, memory: {memory}, run: [{sys.executable}, take.py]}}]"
        launcher.file("jobs.yaml", told)
        assert words in launcher("check", "jobs.yaml", "--simulate", "1").err


def test_map_and_add_reserve_memory_too(launcher: Launcher) -> None:
    options = ["--memory", "2GiB", "--dry-run", "--json", "--simulate", "1"]
    plan = launcher("map", *options, "echo", ":::", "a")
    assert [job["memory"] for job in json.loads(plan.out)["jobs"]] == [2 << 30]
    launcher.file("jobs.yaml", f"jobs: [{{name: a, run: '{UNTIL_GO}'}}]")
    with launcher.begun("run", "jobs.yaml", "--simulate", "1") as process:
        launcher.wait_for("attempt_started")
        assert launcher("add", "--memory", "1GiB", "--name", "b", "--", "true").status == 0
        assert launcher("set", "b", "memory=2GiB").status == 0
        refused = launcher("add", "--memory", "900TB", "--", "true")
        assert (refused.status, "reserves 838190.3 GiB" in refused.err) == (2, True), refused.err
        launcher.file("go", "")
        assert process.wait(60) == 0
    assert launcher.jobs()["b"]["state"] == "succeeded"


def test_a_strict_job_is_limited_too(launcher: Launcher, limited: Path) -> None:
    job = f'{{name: a, memory: 200MB, isolation: strict, run: "{EATS}"}}'
    launcher.file("jobs.yaml", f"jobs: [{job}]")
    result = launcher("run", "jobs.yaml", "--simulate", "1")
    if result.status == 2:
        pytest.skip(result.err)
    assert launcher.jobs()["a"]["failure"] == "host_oom"


def test_doctor_says_whether_memory_is_a_limit_here(launcher: Launcher) -> None:
    found = json.loads(launcher("doctor", "--json").out)["findings"]
    (told,) = [one for one in found if "memory: " in one["what"]]
    if told["level"] == "ok":
        assert told["what"].startswith("jobs are limited to their memory: by cgroups below /")
    else:
        assert told["what"].startswith("memory: of jobs is reserved and measured, and is no limit:")
        assert told["advice"]


def test_exec_is_limited_and_refuses_more_than_there_is(launcher: Launcher, limited: Path) -> None:
    limits = ["exec", "--simulate", "1", "--memory"]
    done = launcher(*limits, "200MB", "--", "bash", "-c", f"echo $$; exec {EATS}")
    assert done.status == -signal.SIGKILL
    left = limited / f"gpulaunch-exec-{done.out.strip()}"
    assert left.exists()
    launcher("doctor")
    assert not left.exists()
    result = launcher(*limits, "900TB", "--", "true")
    assert result.status == 125
    assert "reserves 838190.3 GiB of memory" in result.err
