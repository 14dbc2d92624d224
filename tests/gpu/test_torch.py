"""The torch helpers on a real card: torch's own checks, real memory, a program moved onto it.

Each runs in a process of its own, which sees the leased card alone, as a job does.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.machine import Machine
from gpulaunch.gpus.mask import style_for, visible
from tests.gpu.conftest import no_card

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
Script = Callable[[str], str]
HEAD = """
import io, torch
from gpulaunch.torch import *
from tests.torch.bake import baked
from tests.torch.nets import Net

def caught(call):
    try:
        call()
    except RuntimeError as error:
        return error
    raise AssertionError("it did not fail")
"""


@pytest.fixture
def script(machine: Machine, gpu: Gpu) -> Script:
    """Runs a text where only the leased card is seen, and gives what it printed."""
    if importlib.util.find_spec("torch") is None:
        no_card("torch is not installed in this interpreter")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    environ = kept | dict(visible([gpu], style_for(machine)[0]))

    def run(text: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(text)],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        if "not compiled with CUDA" in done.stderr or "NVIDIA driver" in done.stderr:
            no_card("this torch does not fit the driver")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_tensors_left_on_the_cpu_are_named_before_the_call(script: Script) -> None:
    out = script("""
        model = Net("cpu").to("cuda")
        error = caught(lambda: check_devices(model, {"x": torch.ones(2, 4)}))
        print(error)
        model.layers[0].mask = model.layers[0].mask.cuda()
        model.layers[1].mask = model.layers[1].mask.cuda()
        print(check_devices(model, {"x": torch.ones(2, 4).cuda()}, torch.tensor(1.0)))
    """)
    assert "Expected all tensors to be on the same device, cuda:0" in out
    for path in ("model.layers[0].mask", "model.layers[1].mask", "inputs[0]['x']"):
        assert path in out
    assert out.splitlines()[-1] == "cuda:0"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("attribute", "other  cpu     (4) float32: self.mask; made "),
        ("factory", "made by aten.arange.default at "),
        ("attention", "scaled_dot_product_attention(y.unsqueeze(1), keys, keys)"),
    ],
)
def test_the_first_mixed_operation_is_told_of_torchs_own_refusal(
    script: Script, how: str, said: str
) -> None:
    out = script(f"""
        model = Net("cuda:0")
        def call():
            with first_mixed_device():
                model(torch.ones(2, 4, device="cuda:0"), {how!r})
        error = caught(call)
        assert isinstance(error, DeviceMismatchError), repr(error)
        assert isinstance(error.__cause__, RuntimeError)
        print(error)
    """)
    assert "in module model.layers[0]" in out
    assert "gpulaunch explain: " in out
    assert said in out


def test_convolution_embedding_and_indexing_refusals_are_recognised(script: Script) -> None:
    script("""
        F, here = torch.nn.functional, dict(device="cuda:0")
        ids, x = torch.zeros(2, dtype=torch.long), torch.ones(4, 4)
        cases = [
            lambda: F.conv1d(torch.ones(1, 4, 4), torch.ones(2, 4, 1, **here)),
            lambda: F.conv1d(torch.ones(1, 4, 4, **here), torch.ones(2, 4, 1)),
            lambda: F.embedding(ids, torch.ones(4, 4, **here)),
            lambda: F.embedding(ids.cuda(), torch.ones(4, 4)),
            lambda: x @ torch.ones(4, 4, **here),
            lambda: torch.ones(4, 4, **here) @ x,
            lambda: torch.bmm(x[None], torch.ones(1, 4, 4, **here)),
            lambda: torch.cat([x, x.cuda()]),
            lambda: torch.where(x > 0, x.cuda(), x.cuda()),
            lambda: x.cuda().gather(0, ids[None]),
            lambda: x.cuda().index_select(0, ids),
            lambda: x[ids.cuda()],
            lambda: x.cuda().masked_fill(x > 0, 0.0),
            lambda: F.layer_norm(x.cuda(), (4,), torch.ones(4)),
            lambda: F.batch_norm(x.cuda(), torch.ones(4), torch.ones(4)),
            lambda: F.cross_entropy(x.cuda(), torch.zeros(4, dtype=torch.long)),
            lambda: torch.nn.LSTM(4, 4)(x.cuda()),
            lambda: torch.nn.Linear(4, 4)(x.cuda()),
            lambda: torch.nn.MultiheadAttention(4, 1)(x.cuda(), x.cuda(), x.cuda()),
        ]
        for number, case in enumerate(cases):
            plain = caught(case)
            def call():
                with first_mixed_device():
                    case()
            error = caught(call)
            assert isinstance(error, DeviceMismatchError), (number, plain, error)
            assert "cpu" in str(error) and "cuda:0" in str(error), (number, error)
            assert explain(plain), (number, plain)
    """)


def test_what_may_join_devices_passes_and_memory_is_what_it_was(script: Script) -> None:
    script("""
        x = torch.ones(1000, 1000, device="cuda:0")
        def work():
            y = x[torch.tensor([0, 1])] * torch.tensor(2.0) + x.to("cpu").to("cuda:0")[:2]
            x[torch.tensor([3])] = torch.tensor(1.0)
            for _ in range(50):
                y = (y @ x).relu()
            model = torch.nn.Linear(1000, 1000).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            model(y).sum().backward()
            optimizer.step()
            return y.isfinite().sum().item()
        plain = work()
        torch.cuda.reset_peak_memory_stats()
        work()
        before = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with first_mixed_device():
            assert work() == plain
        assert torch.cuda.max_memory_allocated() <= before * 1.01
    """)


def test_a_mix_in_the_backward_pass_has_the_line_that_began_it(script: Script) -> None:
    out = script("""
        class Odd(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x * 2
            @staticmethod
            def backward(context, gradient):
                return gradient + torch.ones(2)
        x = torch.ones(2, device="cuda:0", requires_grad=True)
        def call():
            with first_mixed_device():
                Odd.apply(x).sum().backward()
        print(caught(call))
    """)
    assert "in Odd.backward" in out or "in backward" in out
    assert "made by aten.ones.default" in out


def test_a_program_exported_on_a_second_card_runs_on_the_only_one(script: Script) -> None:
    out = script("""
        from tests.torch.test_exported import Everything, inputs, written
        torch.manual_seed(3)
        model, args = Everything(), inputs()
        for file in (baked(written(model, args)), written(model, args)):
            program = load_exported(io.BytesIO(file), "cuda:0")
            there = torch.utils._pytree.tree_map(lambda x: x.cuda(), args)
            got, product = program.module()(*there)
            want, _ = model(*args)
            assert got.device.type == product.device.type == "cuda"
            torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3)
            print({str(one.device) for one in program.state_dict.values()})
            print(check_devices(program.module(), *there))
    """)
    assert out.splitlines() == ["{'cuda:0'}", "cuda:0"] * 2


def test_a_program_exported_on_this_card_comes_back_to_it(script: Script) -> None:
    script("""
        from tests.torch.test_exported import written
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).cuda()
        x = torch.ones(2, 4, device="cuda:0")
        file = written(model, (x,))
        assert torch.equal(load_exported(io.BytesIO(file)).module()(x), model(x))
        cpu = load_exported(io.BytesIO(file), "cpu")
        torch.testing.assert_close(cpu.module()(x.cpu()), model(x).cpu())
        error = caught(lambda: load_exported(io.BytesIO(file), "cuda:1"))
        assert "cuda:1 is not here" in str(error), error
    """)
