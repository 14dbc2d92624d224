"""The report names what was where, the odd one, and the line to change; and touches nothing."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpulaunch.diagnose.explain.report.messages import kind_of
from gpulaunch.diagnose.explain.report.tensors import LINES, WIDTH
from gpulaunch.diagnose.explain.report.verdict import chains
from gpulaunch.diagnose.explain.report.words import report
from tests.explain.support import FAKE

Explain = Callable[[str], str]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch", FAKE / "torch" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "torch", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: ModuleType) -> Explain:
    """Runs a program that fails and returns the report, in which it is `p.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")

    def explained(source: str) -> str:
        text = textwrap.dedent(source)
        (tmp_path / "p.py").write_text("import torch\nfrom torch import nn\n" + text)
        with pytest.raises(BaseException) as caught:
            runpy.run_path("p.py", run_name="__main__")
        found = report(caught.type, caught.value, caught.tb)
        assert torch.TOUCHED == []
        return found

    return explained


def mends(text: str) -> list[str]:
    return re.findall(
        r"^    (.*)$", text.partition("  to change:\n")[2].partition("\n  every")[0], re.M
    )


def odd(text: str) -> set[str]:
    where = text.partition("on that line:\n")[2].partition("to change:")[0]
    return {line.split()[0] for line in where.splitlines() if line.endswith("<-- odd")}


EXPORTED = """
    import zipfile
    exported = {"__name__": "torch.export"}
    exec('''def load(f):
        raise RuntimeError("We ran into an error when deserializing the saved file. "
                           "Please check the warnings above for possible errors. ")''', exported)
    with zipfile.ZipFile("trunk.pt2", "w") as archive:
        archive.writestr("trunk/models/model.json", '{"device": {"type": "cuda", "index": INDEX}}')
    exported["load"]("trunk.pt2")
"""


def test_a_program_that_was_exported_on_a_card_that_is_not_here(explain: Explain) -> None:
    assert mends(explain(EXPORTED.replace("INDEX", "1"))) == [
        "trunk.pt2 was exported on cuda:1; this job sees one card, cuda:0",
        "p.py:11: gpulaunch.torch.load_exported(path, device='cuda:0')",
    ]


def test_a_program_that_cannot_be_loaded_for_another_reason_is_no_device_error(
    explain: Explain,
) -> None:
    assert explain(EXPORTED.replace("INDEX", "0")) == ""
    assert explain(EXPORTED.replace("trunk/models/model.json", "version")) == ""


# ── Which errors ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mixed", "Expected all tensors to be on the same device, but found at least two devices, "
                  "cuda:0 and cpu! (when checking argument for argument mat1 in method addmm)"),
        ("mixed", "Expected all tensors to be on the same device, but got index is on cpu, "
                  "different from other tensors on cuda:0 (when checking argument in method x)"),
        ("mixed", "Tensor for argument #2 'mat1' is on CPU, but expected it to be on GPU (while "
                  "checking arguments for addmm)"),
        ("mixed", "Tensor for 'out' is on CPU, Tensor for argument #1 'self' is on CPU, but "
                  "expected them to be on GPU (while checking arguments for addmm)"),
        ("mixed", "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should "
                  "be the same"),
        ("mixed", "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should "
                  "be the same or input should be a MKLDNN tensor and weight is a dense tensor"),
        ("mixed", "Expected a 'cuda' device type for generator but found 'cpu'"),
        ("mixed", "indices should be either on cpu or on the same device as the indexed tensor "
                  "(cpu)"),
        ("mixed", "Input and parameter tensors are not at the same device, found input tensor at "
                  "cuda:0 and parameter tensor at cpu"),
        ("mixed", "Input and hidden tensors are not at the same device, found input tensor at cpu "
                  "and hidden tensor at cuda:0"),
        ("mixed", "expected self and mask to be on the same device, but got mask on cpu and self "
                  "on cuda:0"),
        ("mixed", "Expected condition, x and y to be on the same device, but condition is on cpu "
                  "and x and y are on cuda:0 and cuda:0 respectively"),
        ("mixed", "Unhandled FakeTensor Device Propagation for aten.add.Tensor, found two "
                  "different devices cuda:0, cpu"),
        ("mixed", "module must have its parameters and buffers on device cuda:0 (device_ids[0]) "
                  "but found one of them on device: cpu"),
        ("mixed", "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                  "tensor to host memory first."),
        ("mixed", "Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)"),
        ("mixed", "No backend type associated with device type cpu"),
        ("mixed", "Tensors must be CUDA and dense"),
        ("mixed", "Expected object of device type cuda but got device type cpu for argument #1"),
        ("mixed", "Cannot copy out of meta tensor; no data!"),
        ("mixed", "grid_sampler(): expected input and grid to be on same device, but input is on"),
        ("mixed", "torch.gradient expected each tensor to be on the same device, but got devices"),
        ("mixed", "multinomial arguments must have the same device"),
        ("ordinal", "CUDA error: invalid device ordinal\nCUDA kernel errors might be reported"),
        ("ordinal", "Invalid device id"),
        ("loaded", "Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count()"
                   " is 1. Please use torch.load with map_location to map your storages"),
        ("loaded", "Attempting to deserialize object on a CUDA device but torch.cuda.is_available()"
                   " is False. If you are running on a CPU-only machine"),
        ("no_gpu", "Torch not compiled with CUDA enabled"),
        ("no_gpu", "No CUDA GPUs are available"),
        ("no_gpu", "PyTorch is not linked with support for cuda devices"),
        ("no_gpu", "Found no NVIDIA driver on your system. Please check that you have an NVIDIA"),
        ("same_card", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"),
        ("memory", "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity"),
        ("kernel", "CUDA error: device-side assert triggered"),
        (None, "Input type (float) and bias type (c10::Half) should be the same"),
        (None, "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        (None, "tensors used as indices must be long, int, byte or bool tensors"),
        (None, "No such device: /dev/sdz"),
        (None, "[Errno 19] No such device"),
        (None, "expected scalar type Half but found Float"),
        (None, "CUDA extension is not installed"),
        (None, ""),
    ],
)  # fmt: skip
def test_messages_are_told_apart(kind: str | None, text: str) -> None:
    assert kind_of(text) == kind


def test_other_errors_have_no_report(explain: Explain) -> None:
    assert explain("1 / 0") == ""
    assert explain("raise SystemExit(3)") == ""
    assert report(None, None, None) == ""


# ── The odd one, and the line to change ─────────────────────────────────────────────────────────


def test_an_input_left_on_the_cpu_is_named_where_it_was_made(explain: Explain) -> None:
    text = explain(
        """
        model = nn.Linear(4, 4).to("cuda:0")

        def predict(batch):
            return model(batch["x"])

        x = torch.ones(2, 4)
        predict({"x": x})
        """
    )
    assert odd(text) == {"batch['x']"}
    assert mends(text) == [
        "p.py:9: x is made on the CPU: torch.ones(2, 4, device='cuda:0')",
        "  or p.py:10: x = x.to('cuda:0') (in p.py:7: batch['x'])",
    ]


def test_a_module_that_was_never_moved_is_named_as_a_whole(explain: Explain) -> None:
    text = explain(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4).to("cuda:0")
                self.head = nn.Linear(4, 4)
            def forward(self, x):
                h = self.body(x)
                return self.head(h)
        Net()(torch.ones(2, 4, device="cuda:0"))
        """
    )
    assert odd(text) == {"self.head.weight", "self.head.bias"}
    assert "p.py:8: self.head = nn.Linear(4, 4).to('cuda:0')" in text


def test_a_plain_attribute_is_what_to_passes_by(explain: Explain) -> None:
    text = explain(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(10, 4)
                self.scale = torch.ones(4)
            def forward(self, x):
                return self.embed(x) * self.scale
        net = Net().to("cuda:0")
        net(torch.ones(2, 4, device="cuda:0"))
        """
    )
    assert "self.scale" in odd(text)
    assert "    p.py:8: self.scale is a plain attribute, which .to() passes by:" in text
    assert "self.register_buffer('scale', torch.ones(4), persistent=False)" in text


def test_a_module_in_a_plain_list_is_told_to_be_in_a_module_list(explain: Explain) -> None:
    text = explain(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(4, 4)]
            def forward(self, x):
                return x + self.layers[0].weight
        net = Net().to("cuda:0")
        net(torch.ones(2, 4, device="cuda:0"))
        """
    )
    assert "self.layers[0] is a module that its parent does not know of" in text
    assert "nn.ModuleList" in text


def test_a_buffer_is_named_as_one(explain: Explain) -> None:
    text = explain(
        """
        net = nn.Linear(4, 4).to("cuda:0")
        net.register_buffer("mask", torch.ones(4))
        net.weight + net.mask
        """
    )
    assert odd(text) == {"net.mask"}
    assert "net.mask is a buffer and was made or set after .to()" in text


def test_a_tensor_that_the_line_makes_is_given_a_device(explain: Explain) -> None:
    text = explain(
        """
        def f(x):
            return x + torch.ones(3)
        f(torch.ones(3, device="cuda:0"))
        """
    )
    assert mends(text)[0] == (
        "p.py:5: torch.ones(3) is made on the CPU: torch.ones(3, device=x.device)"
    )
    assert "one of the operands has no name there: (3) on cpu, other in" in mends(text)[1]


def test_a_zero_dim_cpu_tensor_is_no_mismatch(explain: Explain) -> None:
    text = explain(
        """
        def f(x, eps, y):
            return torch.together(x, eps, y)
        f(torch.ones(2, device="cuda:0"), torch.ones(), torch.ones(2))
        """
    )
    assert odd(text) == {"y"}


def test_a_generator_counts_as_what_is_on_a_device(explain: Explain) -> None:
    text = explain(
        """
        def sample(shape, x, gen):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        def go():
            x = torch.ones(3, device="cuda:0")
            gen = torch.Generator()
            return sample(3, x, gen)
        go()
        """
    )
    assert "gen  cpu" in text
    assert "torch.Generator(device=x.device)" in text


def test_two_cards_of_which_the_job_has_one(explain: Explain) -> None:
    text = explain("a = torch.ones(9, device='cuda:1')\nb = torch.ones(1, device='cuda:0')\na + b")
    assert odd(text) == {"a"}


def test_the_message_says_which_device_is_home(explain: Explain, torch: ModuleType) -> None:
    text = explain(
        """
        def f(index, a):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but got index is on cuda:0, "
                "different from other tensors on cuda:3 (when checking argument in method wrapper)"
            )
        index, a = torch.ones(9, device="cuda:0"), torch.ones(5, device="cuda:3")
        f(index, a)
        """
    )
    assert "index  cuda:0  (9) float32   <-- odd" in text


def test_the_cpu_is_not_home_because_torch_met_its_tensor_first(
    explain: Explain, torch: ModuleType
) -> None:
    text = explain(
        """
        def f(past, keys):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but got tensors is on cuda:0, "
                "different from other tensors on cpu (when checking argument in method wrapper)"
            )
        f(torch.ones(5), torch.ones(1, device="cuda:0"))
        """
    )
    assert "past  cpu     (5) float32   <-- odd" in text


def test_nested_inputs_are_walked_to_the_tensor(explain: Explain) -> None:
    text = explain(
        """
        from collections import UserDict, deque, namedtuple
        from dataclasses import dataclass
        from functools import partial
        @dataclass
        class Output:
            logits: object
        class Slotted:
            __slots__ = ("inside",)
        class Encoding(UserDict):
            pass
        Pair = namedtuple("Pair", "left right")
        def f(on_card, **things):
            raise RuntimeError("Expected all tensors to be on the same device, but found cpu")
        slotted = Slotted()
        slotted.inside = [torch.ones(5)]
        f(
            torch.ones(1, device="cuda:0"),
            a=Output(torch.ones(1)), b=slotted, c=Encoding(ids=torch.ones(2)),
            d=Pair(1, (torch.ones(3),)), e=deque([torch.ones(4)]), f={1: {"x y": torch.ones(6)}},
            g=partial(print, torch.ones(7)), h={torch.ones(8)}
        )
        """
    )
    for path in (
        "things['a'].logits", "things['b'].inside[0]", "things['c']['ids']",
        "things['d'].right[0]", "things['e'][0]", "things['f'][1]['x y']", "things['g'].args[0]",
        "things['h']{0}",
    ):  # fmt: skip
        assert f"      {path} " in text


def test_the_users_frame_is_shown_when_a_library_fails(
    explain: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib/site-packages/libby.py"
    library.parent.mkdir(parents=True)
    library.write_text("def run(model, x):\n    hidden = x\n    return model(hidden)\n")
    monkeypatch.syspath_prepend(str(library.parent))
    monkeypatch.delitem(sys.modules, "libby", raising=False)
    text = explain(
        """
        import libby
        net = nn.Linear(4, 4).to("cuda:0")
        libby.run(net, torch.ones(2, 4))
        """
    )
    assert "  where: p.py:6, in <module>" in text
    assert "  inside: libby.py:3, in run" in text
    assert "hidden" in text


def test_a_console_entry_points_program_is_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: ModuleType
) -> None:
    packages = tmp_path / "lib/site-packages"
    for name, text in {
        "typer/main.py": "def call(f, x):\n    return f(x)\n",
        "fold/main.py": "from ops.join import join\ndef main(x):\n    return join(x, 3)\n",
        "ops/join.py": "import torch\ndef join(x, n):\n    return x + torch.ones(n)\n",
    }.items():
        (packages / name).parent.mkdir(parents=True)
        (packages / name).write_text(text)
        for module in (name.partition("/")[0], name.removesuffix(".py").replace("/", ".")):
            monkeypatch.delitem(sys.modules, module, raising=False)
    script = tmp_path / "bin/fold"
    script.parent.mkdir()
    script.write_text(
        "import torch\nfrom typer.main import call\nfrom fold.main import main\n"
        "call(main, torch.ones(3, device='cuda:0'))\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    with pytest.raises(RuntimeError) as caught:
        runpy.run_path(str(script), run_name="__main__")
    for module in ("typer", "typer.main", "fold", "fold.main", "ops", "ops.join"):
        sys.modules.pop(module, None)
    tb = caught.tb.tb_next  # Without the test's own frame.
    text = report(caught.type, caught.value, tb)
    assert "where: fold/main.py:3, in main" in text
    assert "inside: ops/join.py:3, in join" in text


def test_what_is_indexed_or_called_on_a_line_is_looked_into() -> None:
    line = ast.parse("f(a, b)[0].w[i].T + c.d['k'](e, lambda z: z, [g for h in hs])", mode="eval")
    found = [ast.unparse(chain) for chain in chains(line.body)]
    assert found == ["f", "a", "b", "i", "c.d['k']", "e", "g", "h", "hs"]


def test_files_below_the_programs_directory_are_its_own(
    explain: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lib/site-packages/mine/core.py"
    package.parent.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    package.write_text("import torch\ndef main(x):\n    return x + torch.ones(3)\n")
    monkeypatch.syspath_prepend(str(package.parent.parent))
    for name in ("mine", "mine.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(RuntimeError) as caught:
        runpy.run_module("mine.core", run_name="mine.core")["main"](
            sys.modules["torch"].ones(3, device="cuda:0")
        )
    found = report(caught.type, caught.value, caught.tb, program=str(package.parent))
    assert "where: mine/core.py:3, in main" in found


# ── Chains ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wrapped",
    [
        "raise ValueError('the fold failed') from error",
        "raise ValueError('the fold failed')",
        "raise ValueError(f'the fold failed: {error}') from error",
        "import sys; sys.exit(1)",
    ],
)
def test_the_error_is_found_behind_what_was_made_of_it(explain: Explain, wrapped: str) -> None:
    text = explain(
        f"""
        def fold(x, y):
            return x + y
        def main(a):
            try:
                fold(a, torch.ones(3))
            except RuntimeError as error:
                {wrapped}
        def top(b):
            main(b)
        top(torch.ones(3, device="cuda:0"))
        """
    )
    assert text.startswith("gpulaunch explain: RuntimeError: Expected all tensors")
    assert "p.py:12, in top" in text
    assert "where: p.py:5, in fold" in text
    assert "p.py:8, in main" in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are Python 3.11's")
def test_the_error_is_found_in_a_group(explain: Explain) -> None:
    text = explain(
        """
        def work():
            torch.ones(3) + torch.ones(3, device="cuda:0")
        try:
            work()
        except Exception as error:
            found = error
        raise ExceptionGroup("two tasks", [ValueError(1), found])
        """
    )
    assert "in work" in text


def test_a_circle_of_causes_ends(torch: ModuleType) -> None:
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    assert report(ValueError, first, None) == ""


def test_a_traceback_that_came_as_text_gives_its_own_line(torch: ModuleType) -> None:
    text = (
        "Caught RuntimeError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/torch/utils/data/worker.py", line 9, in loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/data/set.py", line 6, in __getitem__\n'
        "    return self.table.cuda()[i]\n"
        "RuntimeError: No CUDA GPUs are available\n"
    )
    found = report(RuntimeError, RuntimeError(text), None)
    assert found.startswith("gpulaunch explain: RuntimeError: No CUDA GPUs are available\n")
    assert "    /data/set.py:6, in __getitem__: return self.table.cuda()[i]" in found


# ── Devices by name and number ──────────────────────────────────────────────────────────────────


def test_a_device_that_is_not_there_is_named_where_it_is_set(
    explain: Explain, torch: ModuleType
) -> None:
    torch.CARDS = 1
    text = explain(
        """
        def run(local_rank):
            device = f"cuda:{local_rank}"
            return torch.ones(3).to(device)
        run(3)
        """
    )
    assert "this job sees one card, cuda:0: ask for 'cuda:0'" in text
    assert "p.py:5: device = 'cuda:3' is none of them" in text
    assert "local_rank = 3 is none of them" in text


def test_a_file_from_another_card_is_loaded_with_map_location(explain: Explain) -> None:
    assert "p.py:3: torch.load(..., map_location='cuda:0')" in explain("torch.load('weights.pt')")


def test_no_card_says_what_hides_it(
    explain: Explain, torch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "raise AssertionError('Torch not compiled with CUDA enabled')"
    torch.version.cuda = None
    assert f"torch 2.13.0+fake here is a build without CUDA: {sys.prefix}" in explain(fails)
    torch.version.cuda = "12.8"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = explain("raise RuntimeError('No CUDA GPUs are available')")
    assert "without CUDA" not in text
    assert "was given no card (gpus: 0)" in text


def test_out_of_memory_lists_the_largest(explain: Explain) -> None:
    text = explain(
        """
        def step(small, big):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        step(torch.ones(3, device="cuda:0"), torch.ones(1 << 15, 1 << 15, device="cuda:0"))
        """
    )
    assert mends(text)[:2] == [
        "the tensors in sight hold 4.00 GiB; the rest is activations, caches and other processes",
        "  4.00 GiB  big  cuda:0  (32768, 32768) float32",
    ]


# ── It stays within bounds, and out of the way ──────────────────────────────────────────────────


def test_large_things_are_counted_and_bounded(explain: Explain) -> None:
    started = time.process_time()
    text = explain(
        """
        class Big(nn.Module):
            def __init__(self):
                super().__init__()
                for n in range(200):
                    setattr(self, f"layer{n}", nn.Linear(2, 2).to("cuda:0"))
                self.late = torch.ones(2)
        def deep(n, x, big, many, loop):
            if n:
                return deep(n - 1, x, big, many, loop)
            return x + torch.ones(3)
        loop = []
        loop.append(loop)
        nest = torch.ones(1)
        for _ in range(1000):
            nest = [nest]
        many = [torch.ones(1) for _ in range(100_000)]
        deep(100, torch.ones(3, device="cuda:0"), Big(), many, {"loop": loop, "nest": nest})
        """
    )
    assert time.process_time() - started < 10
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert lines[-1] == "gpulaunch explain: end of the report"
    assert "big: 400 tensors on cuda:0, 1 tensor on cpu" in text
    assert "      big.late" in text
    assert "not everything was looked at" in text
    assert "frames more" in text
    assert "[0]" * 20 not in text


def test_what_lies_very_deep_is_not_reached(explain: Explain) -> None:
    text = explain(
        """
        def f(x, nest):
            return x + nest
        nest = torch.ones(1)
        for _ in range(100):
            nest = [nest]
        f(torch.ones(1, device="cuda:0"), torch.ones(2))
        """
    )
    assert "nest  cpu" in text
    assert "[0]" not in text


def test_many_frames_of_many_tensors_are_cut_and_the_end_still_stands(explain: Explain) -> None:
    names = [f"tensor{n}" for n in range(15)]
    text = explain(
        f"""
        def deep(n, {", ".join(names)}):
            if n:
                return deep(n - 1, {", ".join(f"torch.ones({n + 1})" for n in range(15))})
            return tensor0 + torch.ones(3, device="cuda:0")
        deep(50, {", ".join(["torch.ones(2)"] * 15)})
        """
    )
    lines = text.splitlines()
    assert len(lines) == LINES
    assert re.fullmatch(r"  \.\.\. \d+ lines left out", lines[-2])
    assert lines[-1] == "gpulaunch explain: end of the report"


HOSTILE = """
called = []
class Meta(type):
    def __getattribute__(cls, name):
        called.append(("meta", name))
        return type.__getattribute__(cls, name)
    def __instancecheck__(cls, other):
        called.append("instancecheck")
        return True
class Hostile(metaclass=Meta):
    def __getattribute__(self, name):
        called.append(name)
        raise KeyError(name)
    def __getattr__(self, name):
        called.append(name)
        return self
    @property
    def __class__(self):
        called.append("class")
        return torch.Tensor
    @property
    def weight(self):
        called.append("weight")
    def __repr__(self):
        called.append("repr")
        raise SystemExit(5)
    __eq__ = __bool__ = __len__ = __iter__ = __str__ = __call__ = __repr__
    def __hash__(self):
        return 1
class Greedy(dict):
    def items(self):
        called.append("items")
        return self
    __iter__ = __getitem__ = __contains__ = keys = get = items
class Net(nn.Module):
    @property
    def scale(self):
        called.append("scale")
        return torch.ones(1)
    def forward(self, x, odd, greedy):
        return x + torch.ones(3), self.scale, odd.weight, greedy["k"]
class Array:
    __module__ = "jaxlib.xla_extension"
    def __init__(self):
        self.inside = torch.ones(1)
    @property
    def shape(self):
        called.append("shape")
called.clear()
Net()(torch.ones(3, device="cuda:0"), Hostile(), Greedy(k=Array()))
"""


def test_nothing_of_the_programs_own_is_run(
    explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = explain(HOSTILE + "\n")
    assert "no report" not in text
    assert "x  cuda:0" in text
    assert "inside" not in text


def test_hostile_objects_are_not_asked_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: ModuleType
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.py").write_text(f"import torch\nfrom torch import nn\n{HOSTILE}")
    with pytest.raises(RuntimeError) as caught:
        runpy.run_path("p.py")
    frame = next(f for f in _frames(caught.tb) if f.f_code.co_name == "<module>")
    called = frame.f_globals["called"]
    called.clear()
    assert report(caught.type, caught.value, caught.tb)
    assert called == []


def _frames(tb: Any) -> Any:
    while tb is not None:
        yield tb.tb_frame
        tb = tb.tb_next


def test_an_error_that_cannot_be_asked_has_no_report() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert report(Mute, Mute(), None) == ""


def test_a_report_that_cannot_be_made_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulaunch.diagnose.explain.report.words.DeviceErrorEvidence", None)
    error = RuntimeError("No CUDA GPUs are available")
    assert report(RuntimeError, error, None) == (
        "gpulaunch explain: no report: TypeError while it was made\n"
    )


def test_code_without_a_file_is_explained_by_its_variables(torch: ModuleType) -> None:
    with pytest.raises(RuntimeError) as caught:
        exec("x = ones(3)\ny = ones(3, device='cuda:0')\nx + y", {"ones": torch.ones})
    text = report(caught.type, caught.value, caught.tb)
    assert "cuda:0" in text
    assert "<-- odd" in text
