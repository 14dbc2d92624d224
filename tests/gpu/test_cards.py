"""What only a real card can show: which card a mask gives, and when its memory is back."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.base.text import numbers_in
from gpulaunch.core.events import Occupied
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.discover import ProbeClient, looks, simulated
from gpulaunch.gpus.machine import CardReading, Machine, drained, is_free
from gpulaunch.gpus.mask import style_for, visible
from tests.gpu.context import NO_DEVICE
from tests.helpers import wait_until

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
CONTEXT = Path(__file__).with_name("context.py")
GIB = 2**30
in_a_container = os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"


def environment(mask: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with that mask alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return kept | dict(mask)


def seen_under(mask: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(CONTEXT)],
        env=environment(mask),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def plain(gpus: Sequence[Gpu]) -> list[str]:
    """Their UUIDs as CUDA tells them."""
    return [gpu.uuid.split("-", 1)[1] for gpu in gpus]


def one(client: ProbeClient, gpu: Gpu) -> CardReading:
    return looks(client, [gpu])[gpu.uuid]


# ── The mask ────────────────────────────────────────────────────────────────────────────────────


def test_a_mask_by_index_shows_that_card_alone(machine: Machine, free: tuple[Gpu, ...]) -> None:
    style, why = style_for(machine)
    if style != "index":
        pytest.skip(f"no index is safe here: {why}")
    for gpu in free:
        assert seen_under(visible([gpu], "index"))["uuids"] == plain([gpu])


def test_a_mask_by_uuid_shows_that_card_alone(free: tuple[Gpu, ...]) -> None:
    for gpu in free:
        assert seen_under(visible([gpu], "uuid"))["uuids"] == plain([gpu])


def test_several_cards_are_seen_in_the_order_of_the_mask(
    machine: Machine, free: tuple[Gpu, ...]
) -> None:
    cards = [gpu for gpu in reversed(free) if not gpu.mig]
    if len(cards) < 2:
        pytest.skip("one card alone is free here")
    style, _ = style_for(machine)
    assert seen_under(visible(cards, style))["uuids"] == plain(cards)


def test_no_cards_means_that_none_is_seen(free: tuple[Gpu, ...]) -> None:
    assert free
    assert seen_under(visible([], "index")) == {"uuids": [], "error": NO_DEVICE}


def test_a_pretend_card_is_not_a_real_one(free: tuple[Gpu, ...]) -> None:
    assert free
    for card in simulated(2, "run"):
        assert seen_under(visible([card], "index"))["uuids"] == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_sees_one_card_as_number_zero(machine: Machine, gpu: Gpu) -> None:
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0); "
        "x = torch.ones(8, device='cuda:0').sum().item(); "
        "print(json.dumps([torch.cuda.device_count(), str(getattr(p, 'uuid', '')), x]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(visible([gpu], style_for(machine)[0])),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if "not compiled with CUDA" in done.stderr or "NVIDIA driver" in done.stderr:
        pytest.skip("this torch does not fit the driver")
    assert done.returncode == 0, done.stderr
    count, uuid, total = json.loads(done.stdout.splitlines()[-1])
    assert (count, total) == (1, 8.0)
    assert not uuid or uuid.removeprefix("GPU-") == plain([gpu])[0]


# ── The driver's view of it ─────────────────────────────────────────────────────────────────────


def test_memory_and_process_are_seen_while_it_lives_and_drained_before_the_card_is_reused(
    machine: Machine, gpu: Gpu, client: ProbeClient
) -> None:
    before = one(client, gpu)
    assert before.used is not None
    with subprocess.Popen(
        [sys.executable, str(CONTEXT), str(2 * GIB)],
        env=environment(visible([gpu], style_for(machine)[0])),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["uuids"] == plain([gpu])
        during = one(client, gpu)
        program.kill()
    assert during.used is not None
    assert during.used - before.used >= 2 * GIB
    assert not drained(before, during) or during.processes
    assert isinstance(is_free(during), Occupied)
    if not in_a_container:
        assert program.pid in {process.pid for process in during.processes}
    wait_until(lambda: drained(before, one(client, gpu)), 30, "its memory is back")
    assert is_free(one(client, gpu)) is None


def test_every_field_of_a_look_is_answered_or_named_as_unanswered(
    gpu: Gpu, client: ProbeClient
) -> None:
    look = one(client, gpu)
    assert look.sick is None
    assert look.total == pytest.approx(gpu.memory, rel=0.05)
    assert look.compute_mode in ("default", "exclusive process")
    for field, name in (("utilization", "utilization"), ("temperature", "temperature")):
        assert getattr(look, field) is not None or name in look.unanswered


# ── Through gpulaunch ───────────────────────────────────────────────────────────────────────────

JOBS = """
jobs:
  - name: card-{{n}}
    matrix: {n: [1, 2]}
    run: [PYTHON, CONTEXT]
  - name: by-uuid
    visible: uuid
    run: [PYTHON, CONTEXT]
  - name: none
    gpus: 0
    run: [PYTHON, CONTEXT]
"""


def test_jobs_see_their_own_card_and_a_job_without_cards_sees_none(
    free: tuple[Gpu, ...], tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(JOBS.replace("PYTHON", sys.executable).replace("CONTEXT", str(CONTEXT)))
    run = tmp_path / "run"
    # One card: the others may be wanted by somebody else.
    uuid = free[0].uuid
    done = gpulaunch("run", str(jobs), "--run-dir", str(run), "--gpus", uuid, "--wait", "60s")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("card-1", "card-2", "by-uuid"):
        assert json.loads((run / f"logs/{name}.1.log").read_text())["uuids"] == plain(free[:1])
    assert json.loads((run / "logs/none.1.log").read_text()) == {"uuids": [], "error": NO_DEVICE}


def test_a_card_is_known_by_what_it_can_and_by_what_is_near_it(machine: Machine) -> None:
    for gpu in machine.gpus:
        assert gpu.compute >= (3, 0)
        assert gpu.uuid not in gpu.links
        assert not gpu.cpus or numbers_in(gpu.cpus)
        assert set(gpu.links) <= {other.uuid for other in machine.gpus}


def test_exec_becomes_a_command_that_sees_one_card(free: tuple[Gpu, ...]) -> None:
    done = gpulaunch("exec", "--wait", "60s", "--", sys.executable, str(CONTEXT))
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(done.stdout.splitlines()[-1])["uuids"]
    assert seen in plain(free)


def gpulaunch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpulaunch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
