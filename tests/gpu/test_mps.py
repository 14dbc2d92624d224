"""A real MPS on a real card: its life, its clients, their limit, and what NVML says of them.

Skipped where the control program is not, and inside containers whose PIDs are not the driver's.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.mps.system import PROGRAM
from gpulaunch.gpus.discover import ProbeClient, looks
from gpulaunch.gpus.lease import scope_of, take
from gpulaunch.gpus.machine import MIB
from gpulaunch.gpus.socket_locks import NameHeldError
from tests.cli.launcher import Launcher
from tests.gpu.conftest import no_card
from tests.helpers import wait_until

pytestmark = pytest.mark.gpu

CONTEXT = Path(__file__).with_name("context.py")
SIZE = 256 * MIB


@pytest.fixture
def card(free: tuple[Gpu, ...], client: ProbeClient) -> Gpu:
    """A free card, not leased: the launcher takes it itself."""
    if shutil.which(PROGRAM) is None:
        no_card(f"there is no {PROGRAM}")
    whole = [gpu for gpu in free if not gpu.mig]
    if not whole:
        no_card("no whole card is free")
    return whole[0]


@pytest.fixture
def ours(launcher: Launcher, card: Gpu) -> Launcher:
    if scope_of(os.environ):
        no_card("these tests run inside a job of gpulaunch")
    launcher.environ["GPULAUNCH_TEST_CARD"] = str(card.index)
    return launcher


def started(launcher: Launcher, card: Gpu, seconds: str, more: str = "") -> tuple[str, ...]:
    launcher.file(
        "jobs.yaml",
        f"""
        per_gpu: 2
        jobs:
          - name: "j{{{{n}}}}"
            matrix: {{n: [0, 1]}}
            mps: true
            run: "env | grep ^CUDA_; {sys.executable} {CONTEXT} {seconds}"
            {more}
        """,
    )
    return ("run", "jobs.yaml", "--gpus", f"{card.index},")


def holding(size: int) -> str:
    """A command that holds so much memory until `go` is there."""
    return f"{size} < <(until [ -e go ]; do sleep 0.1; done)"


def test_two_jobs_are_clients_of_one_server_and_the_card_is_clean_afterwards(
    ours: Launcher, card: Gpu, client: ProbeClient
) -> None:
    before = looks(client, [card])[card.uuid]
    with ours.begun(*started(ours, card, holding(SIZE))) as process:
        ours.wait_for("attempt_started", 2)

        def clients() -> list[int]:
            seen = looks(client, [card])[card.uuid]
            print(
                [(entry.kind, entry.pid, entry.memory, entry.command) for entry in seen.processes]
            )
            return [entry.pid for entry in seen.processes if entry.kind == "M"]

        wait_until(lambda: process.poll() is not None or len(clients()) >= 2)
        assert process.poll() is None, ours.log("j0")
        ours.file("go", "")
        assert process.wait(120) == 0, ours.log("j0")
    (logs,) = (ours.run / "mps").iterdir()
    for name in ("daemon.log", "control.log", "server.log"):
        path = logs / name
        print(name, path.read_text() if path.exists() else "is not there")
    after = looks(client, [card])[card.uuid]
    assert not [entry for entry in after.processes if entry.kind != "G"]
    assert (after.used or 0) <= (before.used or 0) + 64 * MIB


def test_a_client_gets_no_more_memory_than_its_limit(ours: Launcher, card: Gpu) -> None:
    argv = started(ours, card, f"{2048 * MIB} < /dev/null", "gpu_memory: 1GiB")
    with ours.begun(*argv) as process:
        assert process.wait(120) == 1, json.dumps(ours.jobs(), indent=1)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M" in ours.log("j0")
    print(ours.log("j0"))


def test_a_killed_launcher_leaves_no_server_and_no_lease(
    ours: Launcher, card: Gpu, client: ProbeClient
) -> None:
    with ours.begun(*started(ours, card, holding(SIZE))) as process:
        ours.wait_for("attempt_started", 2)
        wait_until(lambda: any(e.kind != "G" for e in looks(client, [card])[card.uuid].processes))
        process.kill()

    def free_again() -> bool:
        try:
            lease = take(card.key, scope_of(os.environ))
        except NameHeldError:
            return False
        with lease:
            return all(e.kind == "G" for e in looks(client, [card])[card.uuid].processes)

    wait_until(free_again)
