"""An engine on its own, with its loop, and the events that it posted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Acquire, Event, Granted, Launch
from gpulaunch.core.model import AttemptId, Demand, Gpu, Job, LadderStep
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import EnvironmentMaker
from gpulaunch.engines.local.engine import Local
from gpulaunch.engines.pool import open_pool
from gpulaunch.engines.protocol import Engine
from gpulaunch.engines.slurm.engine import SlurmEngine
from gpulaunch.engines.slurm.rundir import SlurmDir
from gpulaunch.journal.rundir import RunDir
from tests.gpus.fake import FakeDriver, own_leases
from tests.slurm.cluster import Cluster

E = TypeVar("E")


class Bench:
    """The engine of this machine, on two cards; those of the same `pool` share them.

    `simulate`: pretend cards, whose memory is always back; None: the cards of a pretend driver,
    which this process's environment names.
    """

    engine: Engine

    def __init__(self, run: RunDir, pool: str, epoch: int = 1, simulate: int | None = 2) -> None:
        self.loop = Loop()
        self.run = run
        self.run_id = f"{pool}-{run.path.name}"
        self.events: list[Event] = []
        self.warned: list[str] = []
        environ = {**os.environ, "GPULAUNCH_SIM_POOL": pool}
        if simulate:
            environ.pop("GPULAUNCH_LEASED", None)
        self.environ = environ
        self.pool = open_pool(None, simulate, environ, self.run_id)
        self.epoch = epoch
        self.begin()

    def begin(self) -> None:
        self.engine = Local(self.context(), self.pool)

    def context(self) -> RunContext:
        return RunContext(
            run=self.run,
            run_id=self.run_id,
            epoch=self.epoch,
            environments=EnvironmentMaker(self.pool.machine, self.environ),
            loop=self.loop,
            post=self.events.append,
            warn=lambda job, text: self.warned.append(text),
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.pool.gpus

    def expect(self, kind: type[E] | tuple[type[E], ...], seconds: float = 60.0) -> E:
        """The next event of that kind; those before it are dropped."""
        late: list[bool] = []
        self.loop.call_after("late", seconds, lambda: late.append(True))
        while True:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, kind):
                    self.loop.forget("late")
                    return event
            assert not late, f"no {kind} within {seconds} s"
            self.loop.turn()

    def hold(self, *gpus: Gpu) -> None:
        for gpu in gpus:
            self.engine.carry_out(Acquire(gpu.uuid))
            self.expect(Granted)

    def launch(
        self, job: Job, *gpus: Gpu, number: int = 1, step: LadderStep | None = None
    ) -> AttemptId:
        attempt = AttemptId(job.name, number)
        job = replace(job, demand=Demand(gpus=len(gpus)))
        self.engine.carry_out(Launch(attempt, job, self.placed(gpus), step=step))
        return attempt

    def placed(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        return gpus

    def close(self) -> None:
        self.engine.close()
        self.loop.close()


class SlurmBench(Bench):
    """The engine of a Slurm cluster, which places by itself."""

    run: SlurmDir

    def __init__(self, cluster: Cluster, run: RunDir, pool: str, epoch: int = 1) -> None:
        self.cluster = cluster
        super().__init__(SlurmDir(run.path), pool, epoch)

    def begin(self) -> None:
        self.environ |= self.cluster.environ
        self.engine = SlurmEngine(self.context(), (), 0.2)

    def hold(self, *gpus: Gpu) -> None:
        """Slurm's business."""

    def placed(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        return ()


Make = Callable[..., Bench]


def on_driver(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process find two cards of the pretend driver, whose leases are nobody else's."""
    for index in range(2):
        driver.card(index)
    for name, value in own_leases(driver).items():
        monkeypatch.setenv(name, value)


def run_directory(path: Path) -> RunDir:
    for entry in ("logs", "out", "results", "ends"):
        (path / entry).mkdir(parents=True, exist_ok=True)
    return RunDir(path)


def fresh_pool() -> str:
    return uuid.uuid4().hex[:12]


def sh(script: str, name: str = "a", **fields: object) -> Job:
    return Job(name, script, **fields)  # type: ignore[arg-type]
