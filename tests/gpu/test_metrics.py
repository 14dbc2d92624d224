"""A real driver's samples, a real context's memory by PID, and whether its place can be proved."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId, Gpu, Job
from gpulaunch.engines.client import AttemptOver, ProgramStarted, Spawner
from gpulaunch.engines.local.metering import Metering
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import style_for, visible
from gpulaunch.gpus.probe import is_the_same_here, sees_all_pids
from gpulaunch.observe.metrics.read import measured
from gpulaunch.observe.sampler.driver import CardSampler
from gpulaunch.observe.sampler.tree import FOREIGN, Pin, Pins
from tests.engines.fakes import lone_context
from tests.helpers import wait_until
from tests.process.conftest import spawner
from tests.process.support import Slot

__all__ = ["spawner"]

pytestmark = pytest.mark.gpu

CONTEXT = Path(__file__).with_name("context.py")
SIZE = 1 << 30


def test_a_card_tells_its_memory_power_and_temperature(gpu: Gpu) -> None:
    driver = CardSampler([(gpu.index, gpu.uuid)])
    try:
        card = driver.look(time.time(), time.monotonic(), whole=True).cards[gpu.uuid]
    finally:
        driver.close()
    print(card)
    assert card.memory is not None
    assert card.memory < gpu.memory
    assert card.temperature is None or 5 <= card.temperature <= 110
    assert card.power is None or 1 < card.power < 2000


def test_a_context_is_seen_on_its_card_and_nowhere_else_or_it_is_unverified(
    machine: Machine, gpu: Gpu
) -> None:
    driver = CardSampler([(gpu.index, gpu.uuid)])
    before = driver.look(time.time(), time.monotonic(), whole=True).cards[gpu.uuid]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    process = subprocess.Popen(
        [sys.executable, str(CONTEXT), str(SIZE)],
        env=kept | dict(visible([gpu], style_for(machine)[0])),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline()  # it holds its memory by now
        tree = {process.pid: psutil.Process(process.pid).create_time()}
        seen = driver.look(time.time(), time.monotonic(), whole=True)
        pins = Pins(sees_all_pids(), is_the_same_here)
        pin = pins.judge(AttemptId("a", 1), frozenset({gpu.uuid}), tree, seen)
        print(f"host: {pins.host}; {pin}; {seen.pids}; {seen.silent}")
        used = seen.cards[gpu.uuid].memory
        assert used is not None
        assert before.memory is not None
        assert used - before.memory >= SIZE
        if pins.host and not seen.silent:
            assert pin == Pin("verified")
            memory = seen.pids[gpu.uuid][process.pid]
            assert memory is None or memory >= SIZE
        else:
            assert pin is not None
            assert pin in (Pin("verified"), Pin("unverified", FOREIGN)) or seen.silent
    finally:
        process.communicate()
        driver.close()


def test_a_look_costs_little(gpu: Gpu) -> None:
    driver = CardSampler([(gpu.index, gpu.uuid)])
    try:
        driver.look(time.time(), time.monotonic(), whole=True)
        assert driver.pid is not None
        helper = psutil.Process(driver.pid)
        looks, before = 100, sum(helper.cpu_times()[:2])
        began = time.perf_counter()
        for _ in range(looks):
            driver.look(time.time(), time.monotonic(), whole=False)
        wall = (time.perf_counter() - began) / looks
        cost = (sum(helper.cpu_times()[:2]) - before) / looks
    finally:
        driver.close()
    print(f"{gpu.name}: a look at one card takes {wall * 1000:.2f} ms, {cost * 1000:.2f} ms of CPU")
    assert cost < 0.01


def test_an_attempt_on_a_card_is_measured_from_its_beginning_to_its_end(
    machine: Machine, gpu: Gpu, spawner: Spawner, tmp_path: Path
) -> None:
    """The sampler as a run has it; what it costs is printed."""
    attempt, loop = AttemptId("a", 1), Loop()
    path = tmp_path / "metrics.db"
    metering = Metering(lone_context(tmp_path, loop, os.environ), [gpu], after=0.0)

    def turned(seconds: float) -> None:
        loop.call_after("test", seconds, lambda: None)
        loop.turn()

    def pinned() -> str | None:
        turned(0.1)
        return measured(path).pins.get(attempt, (None,))[0]

    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    environ = kept | dict(visible([gpu], style_for(machine)[0]))
    names = [f"{name}={value}" for name, value in environ.items()]
    holds = f"sleep 8 | exec {sys.executable} {CONTEXT} {SIZE}"
    try:
        with Slot(spawner, tmp_path) as slot:
            slot.launch("env", "-i", *names, "bash", "-c", holds)
            started = slot.expect(ProgramStarted)
            metering.begin(Launch(attempt, Job(attempt.job, ""), (gpu,)), started)
            pin = wait_until(pinned, 30.0, "a verdict")
            sampler = psutil.Process(metering.pid)
            processes = [sampler, *sampler.children()]
            before, began = [sum(p.cpu_times()[:2]) for p in processes], time.monotonic()
            slot.expect(AttemptOver)
            took = time.monotonic() - began
            cost = sum(sum(p.cpu_times()[:2]) for p in processes) - sum(before)
            metering.end(attempt)
    finally:
        metering.close()
        loop.close()
    use = measured(path).uses[attempt]
    print(f"{gpu.name}: {pin}, {use}; {cost / took * 100:.2f} % of a core over {took:.1f} s")
    assert pin in ("verified", "unverified")
    assert use.peak_card_memory is not None
    assert use.peak_card_memory >= SIZE
    assert use.peak_gpu_memory is None or SIZE <= use.peak_gpu_memory <= use.peak_card_memory
    assert use.gpu_seconds is not None
    assert 6.0 <= use.gpu_seconds <= 60.0
    assert use.cpu_seconds
