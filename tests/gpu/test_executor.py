"""GpuExecutor on a real card: its workers compute there, alone, and give it back empty."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from gpulaunch import GpuExecutor
from gpulaunch.core.model import Gpu
from gpulaunch.executor import WorkerDiedError
from gpulaunch.gpus.discover import ProbeClient, looks
from tests.executor import on_card
from tests.gpu.conftest import no_card

pytestmark = pytest.mark.gpu

GIB = 2**30


@pytest.fixture(scope="module")
def executor(free: tuple[Gpu, ...]) -> Iterator[GpuExecutor]:
    """One worker on one card, with weights on it."""
    if importlib.util.find_spec("torch") is None:
        no_card("torch is not installed in this interpreter")
    with GpuExecutor([free[0].uuid], initializer=on_card.load, initargs=(500,), wait=240) as made:
        error = made.submit(on_card.product, 1).exception(280)
        if error is not None and ("CUDA enabled" in str(error.__cause__) or "driver" in str(error)):
            no_card(f"torch cannot use it: {error.__cause__}")
        yield made


def test_a_worker_computes_on_its_own_card_as_cuda_0(
    executor: GpuExecutor, free: tuple[Gpu, ...]
) -> None:
    for seed in range(3):
        future = executor.submit(on_card.product, seed)
        there, here, count, device, uuid = future.result(120)
        assert there == pytest.approx(here, rel=1e-6, abs=1e-6)
        assert (count, device) == (1, "cuda:0")
        assert future.gpu == free[0]
        assert free[0].mig or uuid in free[0].uuid


def test_arrays_come_back(executor: GpuExecutor) -> None:
    pytest.importorskip("numpy")
    found = executor.submit(on_card.array, 10_000_000).result(120)
    assert (found.shape, found[-1]) == ((10_000_000,), 3.0)


def test_a_dead_workers_memory_is_back_before_the_next_one_starts(
    executor: GpuExecutor, free: tuple[Gpu, ...], client: ProbeClient
) -> None:
    with pytest.raises(WorkerDiedError):
        executor.submit(on_card.die_with_memory, 2 * GIB).result(120)
    assert executor.submit(on_card.product, 1).result(280)[2] == 1
    used = looks(client, free[:1])[free[0].uuid].used
    assert used is None or used < 2 * GIB


def test_another_executor_has_the_card_when_the_first_is_shut_down(
    executor: GpuExecutor, free: tuple[Gpu, ...]
) -> None:
    executor.shutdown()
    with GpuExecutor([free[0].uuid], initializer=on_card.load, initargs=(50,), wait=120) as other:
        assert other.submit(on_card.product, 1).result(280)[2] == 1
