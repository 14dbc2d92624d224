"""Whole runs on a real card: jobs that share it, one that holds it idle, a command on each card."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.lease import scope_of
from tests.cli.launcher import UNTIL_GO, Launcher
from tests.gpu.conftest import no_card
from tests.helpers import wait_until

pytestmark = pytest.mark.gpu

CONTEXT = Path(__file__).with_name("context.py")
SIZE = 512 << 20
HOLDS = f"{sys.executable} {CONTEXT} {SIZE} < <({UNTIL_GO})"


@pytest.fixture
def ours(launcher: Launcher) -> Launcher:
    if scope_of(os.environ):
        no_card("these tests run inside a job of gpulaunch")
    return launcher


def test_what_the_first_job_takes_is_what_the_next_are_promised_beside_each_other(
    ours: Launcher, free: tuple[Gpu, ...]
) -> None:
    ours.file(
        "jobs.yaml",
        f"""
        defaults: {{share: true}}
        jobs:
          - name: "j{{{{n}}}}"
            matrix: {{n: [0, 1, 2]}}
            run: "{HOLDS.replace("-e go", "-e go{{n}}")}"
        """,
    )

    def learned() -> bool:
        peak = ours.jobs()["j0"]["attempts"][-1]["peak_gpu_memory"] or 0
        return bool(peak >= SIZE)

    with ours.begun("run", "jobs.yaml", "--gpus", free[0].uuid) as process:
        ours.wait_for("attempt_started")
        wait_until(lambda: process.poll() is not None or learned())
        assert process.poll() is None, ours.log("j0")
        assert [ours.states()[name] for name in ("j1", "j2")] == ["waiting"] * 2
        ours.file("go0", "")
        ours.wait_for("attempt_started", 3)
        for name in ("go1", "go2"):
            ours.file(name, "")
        assert process.wait(120) == 0, ours.log("j1")
    told = ours.status()
    peak, *others = (job["attempts"][-1] for job in told["jobs"])
    assert not peak["promised_gpu_memory"]
    for other in others:
        assert SIZE < other["promised_gpu_memory"] < 4 * SIZE
        assert other["started"] < max(one["ended"] for one in others)
    print(f"{free[0].name}: {peak}, {told['run']['energy']} J")
    (row, *_) = json.loads(ours("results", "--json").out)["rows"]
    assert row["peak_gpu_memory"] >= SIZE
    assert row["card"] == free[0].name


def test_a_job_that_holds_its_card_and_computes_nothing_is_ended(
    ours: Launcher, free: tuple[Gpu, ...]
) -> None:
    ours.file("jobs.yaml", f'jobs: [{{name: a, gpu_idle: 3s, run: "{HOLDS}"}}]')
    result = ours("run", "jobs.yaml", "--gpus", free[0].uuid)
    assert result.status == 1, result.err
    (attempt,) = ours.jobs()["a"]["attempts"]
    assert attempt["failure"] == "gpu_idle", ours.log("a")
    assert attempt["touched_gpu"]


def test_each_starts_its_command_on_that_card(ours: Launcher, free: tuple[Gpu, ...]) -> None:
    done = ours("each", "--gpus", free[0].uuid, "--", sys.executable, CONTEXT)
    assert done.status == 0, done.err
    (name,) = ours.states()
    seen = json.loads(ours.log(name))["uuids"]
    assert [uuid in free[0].uuid for uuid in seen] == [True]
