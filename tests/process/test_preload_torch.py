"""The real torch behind a preload server. Runs where tests/explain/test_real.py does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.explain.test_real import TORCH
from tests.process.preloaded import Twice, twice

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TORCH is None, reason="no interpreter with torch"),
]

COMPUTES = """
import torch, numpy as np
from torch.utils.data import DataLoader, TensorDataset

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)

    def forward(self, x):
        return self.layer(x).relu().sum()

if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(1)
    np.random.seed(2)
    a = torch.rand(300, 300)
    print(round(float((a @ a).double().sum()), 3), np.random.rand())
    net, data = Net(), TensorDataset(torch.arange(8.0).repeat(256, 1).T)
    for batch, in DataLoader(data, batch_size=4, num_workers=2):
        loss = net(batch)
        loss.backward()
        print(round(loss.item(), 3), round(net.layer.weight.grad.norm().item(), 3))
    context = torch.multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print(pool.apply(torch.add, (torch.ones(1), 1)))
    print(torch.cuda.is_initialized(), torch.initial_seed(), torch.__version__)
    torch.ones(2, 3) @ torch.ones(2)
"""
DRAWS = """
import time
import torch, numpy as np
print(time.process_time(), torch.rand(1).item(), np.random.rand(), torch.initial_seed())
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twice]:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "computes.py").write_text(COMPUTES)
    (folder / "draws.py").write_text(DRAWS)
    with twice(folder / "bench", None) as bench:
        yield bench


def test_a_forked_job_computes_as_a_cold_one(bench: Twice) -> None:
    assert TORCH is not None
    argv, cwd = (TORCH, "computes.py"), Path(bench.folder.parent)
    cold, forked = bench.cold(argv, cwd), bench.forked(argv, cwd)
    assert forked.log == cold.log
    assert forked.outcome == cold.outcome
    assert "RuntimeError" in cold.log


def test_two_jobs_draw_different_numbers_a_tenth_of_the_work_later(bench: Twice) -> None:
    assert TORCH is not None
    argv, cwd = (TORCH, "draws.py"), Path(bench.folder.parent)
    cold = bench.cold(argv, cwd).log.split()
    jobs = [bench.forked(argv, cwd).log.split() for _ in range(2)]
    for drawn in zip(cold[1:], *(job[1:] for job in jobs), strict=True):
        assert len(set(drawn)) == 3
    # Of the processor's time, which a busy machine does not stretch as it does the clock's.
    assert max(float(job[0]) for job in jobs) * 10 < float(cold[0])
