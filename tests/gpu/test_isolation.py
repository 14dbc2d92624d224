"""Strict isolation on real cards: what CUDA sees of a machine whose other cards have no nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.engines import isolation
from tests.gpu.test_cards import CONTEXT, ROOT, plain

pytestmark = pytest.mark.gpu

ORDINARY = ROOT / "tests" / "process" / "ordinary.py"
SIZE = 256 * 2**20
Run = Callable[..., dict[str, str]]

UNSET = f"env -u CUDA_VISIBLE_DEVICES -u CUDA_DEVICE_ORDER {sys.executable} {CONTEXT}"
JOBS = f"""
jobs:
  - name: one
    isolation: strict
    run: {UNSET} {SIZE}
  - name: none
    gpus: 0
    isolation: strict
    run: {UNSET}
  - name: names
    isolation: strict
    run: ls /dev | grep -E '^nvidia[0-9]+$'
  - name: open
    run: ls /dev | grep -E '^nvidia[0-9]+$'
  - name: masked
    isolation: strict
    run: {sys.executable} {CONTEXT}
  - name: smi
    isolation: strict
    run: nvidia-smi -L || true
"""


@pytest.fixture(params=["us", "ordinary"])
def run(request: pytest.FixtureRequest, free: tuple[Gpu, ...], tmp_path: Path) -> Run:
    """Runs jobs on cards, as whoever runs the tests or as an ordinary user: each job's log."""
    if why := isolation.refusal(free):
        pytest.skip(why)
    command = [sys.executable, "-m", "gpulaunch"]
    if request.param == "ordinary":
        command = [sys.executable, str(ORDINARY), "--", *command]

    def run(jobs: str, gpus: Sequence[Gpu]) -> dict[str, str]:
        file = tmp_path / "jobs.yaml"
        file.write_text(jobs)
        wanted = json.dumps([gpu.uuid for gpu in gpus])
        done = subprocess.run(
            [*command, "run", str(file), "--run-dir", str(tmp_path / "run"), "--wait", "60s",
             "--gpus", wanted],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        logs = (tmp_path / "run" / "logs").iterdir()
        return {log.name.removesuffix(".1.log"): log.read_text() for log in logs}

    return run


def seen(log: str) -> Any:
    return json.loads(log)["uuids"]


def test_a_job_that_unsets_its_mask_gains_nothing(run: Run, free: tuple[Gpu, ...]) -> None:
    card = free[0]
    logs = run(JOBS, [card])
    # It computes as well: the driver's shared nodes are there.
    assert seen(logs["one"]) == plain([card])
    assert seen(logs["masked"]) == plain([card])
    assert logs["names"] == f"nvidia{card.minor}\n"
    every = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    assert sorted(logs["open"].split()) == sorted(every)
    assert seen(logs["none"]) == []
    assert json.loads(logs["none"])["error"]
    if shutil.which("nvidia-smi"):
        assert logs["smi"].count("GPU ") == 1
        assert card.mig or card.uuid in logs["smi"]


def test_several_cards_come_in_the_masks_order_and_alone(run: Run, free: tuple[Gpu, ...]) -> None:
    cards = [gpu for gpu in free if not gpu.mig][-2:]
    if len(cards) < 2:
        pytest.skip("one card alone is free here")
    jobs = f"""
jobs:
  - {{name: masked, gpus: 2, isolation: strict, run: {sys.executable} {CONTEXT}}}
  - {{name: unset, gpus: 2, isolation: strict, run: {UNSET}}}
"""
    logs = run(jobs, cards)
    assert sorted(seen(logs["masked"])) == sorted(plain(cards))
    assert sorted(seen(logs["unset"])) == sorted(plain(cards))
