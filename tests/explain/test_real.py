"""The real torch, on pretend cards (FakeTensorMode has its messages): what the report makes of it.

Runs where an interpreter with torch is: GPULAUNCH_TEST_TORCH names one; with GPULAUNCH_TEST_REAL=1
that of the examples; or this one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from gpulaunch.diagnose.explain import INJECT
from tests.explain.support import Done, Place

EXAMPLES = Path(__file__).parents[2] / "examples/antibodies/.env/bin/python"


def interpreter() -> str | None:
    if named := os.environ.get("GPULAUNCH_TEST_TORCH"):
        return named
    if os.environ.get("GPULAUNCH_TEST_REAL") == "1" and EXAMPLES.exists():
        return str(EXAMPLES)
    return sys.executable if importlib.util.find_spec("torch") else None


TORCH = interpreter()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TORCH is None, reason="no interpreter with torch"),
]
CARDS = """
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

def on(module, device):
    # A CPU build has fake tensors on cards, but does not move parameters there.
    for part in module.modules():
        for name, value in part._parameters.items():
            value = torch.empty(value.shape, device=device)
            part._parameters[name] = nn.Parameter(value, requires_grad=False)
    return module
"""
BEGIN = "with torch.no_grad(), FakeTensorMode():\n    main()\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def explained(place: Place, program: str, *argv: str) -> Done:
    assert TORCH is not None
    place.file("cards.py", CARDS)
    place.file("p.py", program)
    return place.run([TORCH, *(argv or ("p.py",))], (INJECT,), {"CUDA_VISIBLE_DEVICES": "0"})


def test_a_mixed_line_is_taken_apart(place: Place) -> None:
    done = explained(
        place,
        f"""\
from cards import *
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = on(nn.Embedding(100, 8), "cuda:0")
        self.deep = on(nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)]), "cuda:0")
        self.scale = torch.ones(8, 8)
    def forward(self, batch):
        h = self.deep(self.embed(batch["input_ids"]))
        return h * self.scale + batch["mask"]
def main():
    model = Net()
    mask = torch.ones(8, 8)
    ids = torch.ones(8, dtype=torch.int64, device="cuda")
    model({{"input_ids": ids, "mask": mask}})
{BEGIN}
""",
    )
    (report,) = done.reports
    assert "where: p.py:10, in forward" in report
    assert "self.scale  cpu     (8, 8) float32  plain attribute   <-- odd" in report
    assert "p.py:7: self.scale is a plain attribute" in report
    assert "not on cuda:0 either: batch['mask']" in report
    assert "self: 41 tensors on cuda:0, 1 tensor on cpu" in report
    assert "p.py:15, in main" in report


def test_an_input_and_a_module_that_stayed_behind(place: Place) -> None:
    for inside, outside, mend in (
        ("cuda", "cpu", "p.py:4: x is made on the CPU: torch.ones(4, 8, device='cuda:0')"),
        ("cpu", "cuda", "model = on(nn.Sequential(nn.Linear(8, 8)), 'cpu').to('cuda:0')"),
    ):
        made = "torch.ones(4, 8" + (")" if outside == "cpu" else ", device='cuda')")
        done = explained(
            place,
            "from cards import *\n"
            "def main():\n"
            f"    model = on(nn.Sequential(nn.Linear(8, 8)), {inside!r})\n"
            f"    x = {made}\n"
            f"    model(x)\n{BEGIN}",
        )
        (report,) = done.reports
        assert mend in report


def test_a_build_without_cuda_says_so(place: Place) -> None:
    done = explained(place, "import torch\nx = torch.ones(3).cuda()\n")
    if done.status == 0:
        pytest.skip("there is a card here")
    (report,) = done.reports
    assert "p.py:2, in <module>" in report


def test_children_of_torch_are_reported_once_each(place: Place) -> None:
    done = explained(
        place,
        """
        import torch, torch.multiprocessing as mp
        def work(rank):
            raise RuntimeError("CUDA error: invalid device ordinal")
        if __name__ == "__main__":
            mp.spawn(work, nprocs=1)
        """,
    )
    (report,) = done.reports
    assert "in work" in report
    assert "ProcessRaisedException" in done.err


def test_a_data_loaders_worker_is_told_of_by_its_text(place: Place) -> None:
    done = explained(
        place,
        """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Data(Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, index):
                raise RuntimeError("No CUDA GPUs are available")
        if __name__ == "__main__":
            for batch in DataLoader(Data(), num_workers=1):
                pass
        """,
    )
    (report,) = done.reports
    assert "p.py:8, in __getitem__: raise RuntimeError" in report
    assert "where: p.py:10, in <module>" in report


def test_ranks_of_torchrun_are_reported_once_each(place: Place) -> None:
    done = explained(
        place,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        raise RuntimeError("CUDA error: invalid device ordinal")
        """,
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "p.py",
    )  # fmt: skip
    heads = [line for line in done.err.splitlines() if "gpulaunch explain: RuntimeError" in line]
    assert sorted(heads) == [
        f"[rank{rank}]: gpulaunch explain: RuntimeError: CUDA error: invalid device ordinal"
        for rank in (0, 1)
    ]


def test_a_compiled_function_is_followed_to_its_own_line(place: Place) -> None:
    done = explained(
        place,
        """
        import torch
        @torch.compile(backend="eager")
        def product(x, y):
            return x @ y
        product(torch.ones(3, 3), torch.ones(3, 3, device="meta"))
        """,
    )
    (report,) = done.reports
    assert "torch.compile was at:\n    " in report
    assert "p.py:5, in product: return x @ y" in report
