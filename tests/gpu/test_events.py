"""What a real driver reports of a card: which events it offers, and a program's own Xid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpulaunch.core.events import GpuEvent
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import style_for, visible
from gpulaunch.gpus.xid import hearing
from tests.gpu.fault import ILLEGAL_ADDRESS
from tests.gpus.listening import Client

pytestmark = pytest.mark.gpu

FAULT = Path(__file__).with_name("fault.py")


def listening(gpu: Gpu) -> Client:
    """A client that hears this card; the test is skipped where the driver does not offer it."""
    client = Client([gpu], os.environ)
    end = time.monotonic() + 60
    while not client.coverage and not client.ended:
        assert time.monotonic() < end, "no answer"
        client.turn(end - time.monotonic())
    if not isinstance(client.coverage.get(gpu.uuid), tuple):
        client.close()
        pytest.skip(f"no events here: {client.coverage}")
    return client


def heard(client: Client, seconds: float) -> list[GpuEvent]:
    """What comes within so many seconds, or until a moment after the first."""
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        client.turn(rest)
        end = min(end, time.monotonic() + 2.0) if client.events else end
    return client.taken()


def break_on(machine: Machine, gpu: Gpu) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    done = subprocess.run(
        [sys.executable, str(FAULT)],
        env=kept | dict(visible([gpu], style_for(machine)[0])),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        pytest.skip(f"the broken kernel cannot be tried here: {done.stderr}")
    assert json.loads(done.stdout) == {"launch": 0, "sync": ILLEGAL_ADDRESS}


def test_what_the_driver_offers_is_heard_or_refused_with_a_reason(gpu: Gpu) -> None:
    told = hearing([gpu], os.environ, timeout=60.0)
    print(f"{gpu.name}: {told[gpu.uuid]}")
    if isinstance(told[gpu.uuid], tuple):
        assert "xid" in told[gpu.uuid]
    else:
        assert told[gpu.uuid]


def test_a_card_at_rest_reports_nothing(gpu: Gpu) -> None:
    with closing(listening(gpu)) as client:
        client.turn(3.0)
        assert not client.events


def test_a_kernel_that_writes_where_nothing_is_is_reported_and_blamed_on_the_program(
    machine: Machine, gpu: Gpu
) -> None:
    with closing(listening(gpu)) as client:
        break_on(machine, gpu)
        found = heard(client, 20.0)
    if not found and gpu.mig:
        pytest.skip("events of one instance are for privileged users")
    assert {event.gpu for event in found} == {gpu.uuid}
    assert {event.code for event in found} & {13, 31}, found
    assert {event.verdict for event in found} == {"app"}, found
