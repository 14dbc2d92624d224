"""What measuring costs: under 1 % of one core, which the pace holds to whatever a look costs.

What a look at 8 cards costs is processor time, measured: it must be what the pace can make up for.
The pretend driver reads a text file at each call, which is slower than a driver that is well.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from msgspec.structs import astuple

from gpulaunch.base.helper_process import command
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.client import ProgramStarted, Spawner
from gpulaunch.observe.metrics.read import measured, open_metrics
from gpulaunch.observe.sampler import main as module
from gpulaunch.observe.sampler.keeper import keeper_of
from gpulaunch.observe.sampler.main import LONGEST_PERIOD, MEASURED, PERIOD, SHARE, SamplingPace
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until
from tests.process.conftest import spawner
from tests.process.support import Slot

__all__ = ["spawner"]

CARDS, PROCESSES = 8, 5
LOOKS = 3

JOB = f"""
import subprocess, time
held = [subprocess.Popen(["sleep", "1000"]) for _ in range({PROCESSES} - 1)]
time.sleep(1000)
"""


def test_looks_at_eight_cards_with_forty_processes_cost_what_the_pace_can_make_up_for(
    tmp_path: Path, spawner: Spawner
) -> None:
    fake = FakeDriver(tmp_path)
    cards = [(n, fake.card(n)) for n in range(CARDS)]
    with ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(ours)
        path = tmp_path / "metrics.db"
        with theirs:
            argv = command("gpulaunch.observe.sampler.main", str(path), json.dumps(cards))
            sampler = subprocess.Popen(argv, stdin=theirs.fileno(), env=fake.environ)
        stack.callback(sampler.wait)
        stack.callback(sampler.kill)
        for number, uuid in cards:
            (tmp_path / uuid).mkdir()
            slot = stack.enter_context(Slot(spawner, tmp_path / uuid))
            slot.launch(sys.executable, "-S", "-c", JOB)
            started = slot.expect(ProgramStarted)
            pid = started.pid
            fake.process(number, pid, 10 * GIB)
            keeper = keeper_of(pid, started.keeper)
            assert keeper is not None
            begun = {"do": "begin", "job": f"j{number}", "number": 1, "gpus": [uuid], "idle": 60.0}
            begun |= {"since": time.monotonic(), "keeper": astuple(keeper)}
            ours.send(json.dumps([begun]).encode())
        processes = [psutil.Process(sampler.pid)]
        processes += wait_until(processes[0].children)
        wait_until(lambda: len(measured(path).pins) == CARDS)
        before, looks = sum(map(cpu, processes)), {looked(path)}
        wait_until(lambda: looks.add(looked(path)) or len(looks) > LOOKS)
        cost = (sum(map(cpu, processes)) - before) / LOOKS
    print(f"{CARDS} cards, {CARDS * PROCESSES} processes: {cost * 1000:.1f} ms a look")
    use = measured(path).uses[AttemptId("j0", 1)]
    assert use.peak_gpu_memory == 10 * GIB
    assert cost < LONGEST_PERIOD * SHARE


def looked(path: Path) -> float:
    """When the newest sample of a card was taken."""
    reader = open_metrics(path)
    assert reader is not None
    with closing(reader):
        return max(sample.at for sample in reader.latest().values())


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


class Costs:
    """A process clock that goes on by as much as each look is to cost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module.time, "process_time", lambda: self.now)
        monkeypatch.setattr(module, "_cpu_of", lambda pid: 0.0)

    def looks(self, budget: SamplingPace, cost: float, count: int = MEASURED) -> float:
        for _ in range(count):
            self.now += cost
            budget.spent(1)
        return budget.period


def test_looks_that_cost_more_come_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, budget = Costs(monkeypatch), SamplingPace()
    costs.looks(budget, 5.0, 1)  # the start, which is not had again
    assert costs.looks(budget, 0.004) == PERIOD
    assert costs.looks(budget, 0.024) == pytest.approx(0.024 / SHARE)
    assert costs.looks(budget, 9.0) == LONGEST_PERIOD
    assert costs.looks(budget, 0.001) == PERIOD


def test_a_helper_that_was_started_anew_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, budget = Costs(monkeypatch), SamplingPace()
    budget.spent(1)
    costs.now += 60.0
    budget.spent(2)
    assert costs.looks(budget, 0.001, MEASURED - 1) == PERIOD
