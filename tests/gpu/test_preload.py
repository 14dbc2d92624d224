"""A real driver behind a preload server: only loaded it may be forked, begun it may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.engines.local.preload_client import PreloadUnavailable
from gpulaunch.gpus.mask import visible
from tests.process.test_preload import Bench

pytestmark = pytest.mark.gpu

CONTEXT = Path(__file__).with_name("context.py")


@pytest.fixture
def bench(tmp_path: Path, gpu: Gpu) -> Bench:
    bench = Bench(tmp_path)
    bench.env |= visible((gpu,), "uuid")
    bench.script(CONTEXT.read_text())
    return bench


def test_a_forked_job_begins_the_driver_under_its_own_mask(bench: Bench, gpu: Gpu) -> None:
    bench.library("loads", "import ctypes\nctypes.CDLL('libcuda.so.1')")
    masks = [visible((gpu,), "uuid"), visible((), "uuid"), visible((gpu,), "uuid")]
    with bench.slot("loads") as slot:
        for mask in masks:
            bench.env |= mask
            bench.run(slot, *(["1000000"] if mask["CUDA_VISIBLE_DEVICES"] else []))
            seen = json.loads(slot.log.read_text())["uuids"]
            assert [uuid in gpu.uuid for uuid in seen] == [True] * bool(mask is not masks[1])


def test_an_import_that_begins_the_driver_is_refused(bench: Bench) -> None:
    text = "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"
    news = bench.news(bench.library("begins", text))
    assert isinstance(news, PreloadUnavailable)
    assert "it uses the card" in news.why or "initialised CUDA" in news.why
