"""Executors on the pretend driver: the real NVML path, whose cards' leases are the machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulaunch import GpuExecutor
from gpulaunch.executor import NoCardsForExecutorError, WorkerDiedError
from tests.executor import work
from tests.gpus.fake import GIB, FakeDriver
from tests.helpers import wait_until


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver(tmp_path)
    for name in set(os.environ) - set(made.environ):
        monkeypatch.delenv(name)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    # A lease scope of this test's own: others on this machine may use the same pretend PCI ids.
    monkeypatch.setenv("GPULAUNCH_LEASED", f"test/{os.getpid()}")
    return made


def test_a_worker_finds_its_card_by_index_in_the_bus_order(driver: FakeDriver) -> None:
    driver.card(0)
    uuid = driver.card(1)
    with GpuExecutor(uuid[:12]) as executor:
        names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPULAUNCH_GPU_UUID")
        assert [*executor.map(work.environment, names)] == ["1", "PCI_BUS_ID", uuid]


def test_another_worker_starts_when_the_last_ones_memory_is_back(driver: FakeDriver) -> None:
    uuid = driver.card(0)
    with GpuExecutor() as executor:
        executor.submit(work.double, 1).result(60)
        driver.card(0, used=30 * GIB)
        assert isinstance(executor.submit(work.leave, 1).exception(60), WorkerDiedError)
        future = executor.submit(work.double, 4)
        gpus = executor._manager._crew._run.ledger.gpus
        wait_until(lambda: gpus[uuid].state == "draining")
        assert not future.done()
        assert executor.gpus == ()
        driver.card(0, used=0)
        assert future.result(60) == 8


def test_a_card_that_is_lost_leaves_the_others_in_use(driver: FakeDriver) -> None:
    driver.card(0)
    driver.card(1)
    with GpuExecutor() as executor:
        driver.card(0, error_memory=15)
        futures = [executor.submit(work.environment, "GPULAUNCH_GPU_INDEX") for _ in range(3)]
        assert [future.result(60) for future in futures] == ["1"] * 3


def test_no_card_that_can_serve_breaks_the_executor(driver: FakeDriver) -> None:
    driver.card(0)
    with GpuExecutor() as executor:
        driver.card(0, error_memory=15)
        error = executor.submit(work.double, 1).exception(60)
    assert isinstance(error, NoCardsForExecutorError)
    assert "never started" in str(error)
