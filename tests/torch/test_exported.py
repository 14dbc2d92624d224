"""load_exported: a program of another card becomes one of this one, or it is said why not.

The programs are written as if they had been exported on cuda:1 (see bake.py), and loaded onto the
CPU, where their results can be compared, and onto meta, where everything has to have moved. The
layouts that older versions of torch write are made here, of what they are made of.
"""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpulaunch.torch import ExportedProgramError, exported, load_exported  # noqa: E402
from gpulaunch.torch.archive import Moves, moved  # noqa: E402
from gpulaunch.torch.exported import elsewhere, move_program  # noqa: E402
from gpulaunch.torch.tensors import is_card  # noqa: E402
from tests.torch.bake import baked  # noqa: E402
from tests.torch.nets import Linear  # noqa: E402

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


class Everything(torch.nn.Module):
    """A device wherever a program can have one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.tied = self.linear
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("hidden", torch.full((4,), 2.0), persistent=False)
        self.constant = torch.arange(4.0)

    def forward(self, x: Any, steps: Any) -> Any:
        y = self.tied(self.linear(x)) * self.scale + self.constant + self.hidden
        y = y + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4, device="cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = y @ y.t()

        def grow(a: Any) -> Any:
            return a + torch.ones(4, device="cpu")

        def shrink(a: Any) -> Any:
            return a - 1

        y = torch.cond(y.sum() > 0, grow, shrink, (y,))
        return y.to(torch.device("cpu")) * steps["n"], z


def inputs() -> tuple[Any, ...]:
    return torch.arange(8.0).reshape(2, 4), {"n": torch.full((4,), 3.0)}


def written(module: Any, args: Any) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(module, args), buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    return Everything()


@pytest.fixture(scope="module")
def file(model: Any) -> bytes:
    return written(model, inputs())


def cards_in(data: bytes) -> set[str]:
    """The cards that a file's records still name, in any of its members."""
    seen = Moves(None)
    moved(io.BytesIO(data), seen)
    return {device for device in seen.found if is_card(device)}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


# ── What is loaded ──────────────────────────────────────────────────────────────────────────────


def test_a_program_of_another_card_computes_the_same_here(model: Any, file: bytes) -> None:
    program = load_exported(io.BytesIO(baked(file)), "cpu")
    assert same(program.module()(*inputs()), model(*inputs()))


def test_every_record_of_the_other_card_has_moved(file: bytes) -> None:
    old = baked(file)
    assert "cuda:1" in cards_in(old)
    program = load_exported(io.BytesIO(old), "meta")
    tensors = [*program.state_dict.values(), *program.constants.values(),
               program.example_inputs[0][0], program.example_inputs[0][1]["n"]]  # fmt: skip
    assert {str(tensor.device) for tensor in tensors} == {"meta"}
    assert list(elsewhere(program, torch.device("cuda:0"))) == []
    new = moved(io.BytesIO(old), Moves("cuda:0")).read()
    assert cards_in(new) == {"cuda:0", "cuda"}


def test_a_process_that_has_exported_nothing_loads_it(file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(baked(file))
    script = (
        "import sys; from gpulaunch.torch import load_exported; "
        "print(load_exported(sys.argv[1], 'cpu').state_dict['scale'].device)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


def test_without_it_torch_cannot_load_that_file_here(file: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017  of several classes, by version
        torch.export.load(io.BytesIO(baked(file)))


def test_several_cards_become_one(model: Any, file: bytes) -> None:
    mixed = baked(baked(file, "cuda:3", keep=("inputs.pt", "inputs/model.pt")), "cuda:1")
    assert {"cuda:1", "cuda:3"} <= cards_in(mixed)
    program = load_exported(io.BytesIO(mixed), "cpu")
    assert same(program.module()(*inputs()), model(*inputs()))


def test_paths_and_open_files_are_read_and_left_as_they_are(file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    content = baked(file)
    path.write_bytes(content)
    load_exported(path, "cpu")
    load_exported(str(path), "cpu")
    with open(path, "rb") as stream:
        load_exported(stream, "cpu")
        assert not stream.closed
    assert path.read_bytes() == content


def test_a_stream_that_cannot_seek_is_read(file: bytes) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    load_exported(Pipe(baked(file)), "cpu")


def test_extra_files_come_along_untouched(model: Any) -> None:
    buffer = io.BytesIO()
    program = torch.export.export(model, inputs())
    torch.export.save(program, buffer, extra_files={"note.json": '{"type": "cuda", "index": 1}'})
    extra = {"note.json": ""}
    load_exported(
        io.BytesIO(baked(buffer.getvalue(), keep=("note.json",))), "cpu", extra_files=extra
    )
    assert extra["note.json"] == '{"type": "cuda", "index": 1}'


def test_weights_that_are_tied_stay_tied(file: bytes) -> None:
    program = load_exported(io.BytesIO(baked(file)), "cpu")
    left, right = (program.state_dict[f"{name}.weight"] for name in ("linear", "tied"))
    assert left.data_ptr() == right.data_ptr()


@pytest.mark.parametrize("how", ["whole", "after loading"])
def test_a_program_of_the_cpu_moves_as_a_whole(
    file: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "whole":  # meta stands in for a card
        monkeypatch.setattr(exported, "is_card", lambda device: str(device) != "cpu")
        program = load_exported(io.BytesIO(file), "meta")
    else:
        program = torch.export.load(io.BytesIO(file))
        move_program(program, torch.device("meta"))
    tensors = [
        *program.state_dict.values(),
        *program.constants.values(),
        *program.example_inputs[0][:1],
    ]
    assert {str(tensor.device) for tensor in tensors} == {"meta"}
    weights = [program.state_dict[f"{name}.weight"] for name in ("linear", "tied")]
    assert all(isinstance(weight, torch.nn.Parameter) for weight in weights)
    assert len({weight.untyped_storage()._cdata for weight in weights}) == 1


def test_what_was_on_the_cpu_beside_a_card_stays_there(file: bytes) -> None:
    beside = baked(file, keep=("inputs.pt", "inputs/model.pt"))
    program = load_exported(io.BytesIO(beside), "meta")
    assert program.example_inputs[0][0].device == CPU
    assert {str(one.device) for one in program.state_dict.values()} == {"meta"}


def test_a_program_exported_with_pretend_tensors_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch 2.13 warns here with a broken format string, which pytest's log handler takes amiss.
    monkeypatch.setattr(logging.getLogger("torch._export.serde.serialize"), "disabled", True)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        x = torch.ones(2, 4, device="cuda:1")
        data = written(Linear("cuda:1"), (x,))
    assert "cuda:1" in cards_in(data)
    program = load_exported(io.BytesIO(data), "cpu")
    assert {str(one.device) for one in program.state_dict.values()} == {"cpu"}
    assert program.example_inputs[0][0].device == CPU


LAYOUTS = {
    "2.6": {
        "serialized_exported_program.json": "exported_program",
        "serialized_state_dict.pt": "state_dict",
        "serialized_constants.pt": "constants",
        "serialized_example_inputs.pt": "example_inputs",
    },
    "2.8": {
        "archive/models/model.json": "exported_program",
        "archive/data/weights/model.pt": "state_dict",
        "archive/data/constants/model.pt": "constants",
        "archive/data/sample_inputs/model.pt": "example_inputs",
    },
}


def in_layout(program: Any, layout: str) -> bytes:
    """The program as that version of torch writes it, but for the version of its schema."""
    from torch._export.serde.schema import SCHEMA_VERSION
    from torch._export.serde.serialize import serialize

    artifact, out = serialize(program), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, part in LAYOUTS[layout].items():
            archive.writestr(member, getattr(artifact, part))
        if layout == "2.6":
            archive.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
        else:
            archive.writestr("archive/archive_format", "pt2")
            archive.writestr("archive/archive_version", "0")
            archive.writestr("archive/.data/version", "6\n")
    return out.getvalue()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_of_older_versions_are_read(model: Any, layout: str) -> None:
    if layout == "2.8" and not hasattr(torch.export, "pt2_archive"):
        pytest.skip("this torch is older than that layout")
    data = baked(in_layout(torch.export.export(model, inputs()), layout))
    assert "cuda:1" in cards_in(data)
    program = load_exported(io.BytesIO(data), "cpu")
    assert same(program.module()(*inputs()), model(*inputs()))


def test_while_loops_and_nested_regions_are_moved() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    class Loop(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            def more(a: Any) -> Any:
                return a.sum() < 50

            def step(a: Any) -> Any:
                return (a + torch.ones(3, device="cpu"),)

            return while_loop(more, step, (x,))[0]

    data = baked(written(Loop(), (torch.ones(3),)))
    assert "cuda:1" in cards_in(data)
    program = load_exported(io.BytesIO(data), "cpu")
    assert list(elsewhere(program, torch.device("meta"))) == []
    (ones,) = (
        node
        for part in program.graph_module.modules()
        for node in getattr(part, "graph", torch.fx.Graph()).nodes
        if "ones" in str(node.target)
    )
    assert ones.kwargs["device"] == CPU


# ── What is refused ─────────────────────────────────────────────────────────────────────────────


def test_a_card_that_is_not_here_is_said_to_be_not_here(file: bytes) -> None:
    with pytest.raises(ExportedProgramError, match=r"cuda:9\d is not here: .*own card is cuda:0"):
        load_exported(io.BytesIO(baked(file)), "cuda:99")


def test_records_that_are_left_are_named(file: bytes) -> None:
    program = torch.export.load(io.BytesIO(file))
    graph = program.graph_module.graph
    (arange,) = [node for node in graph.nodes if "arange" in str(node.target)]
    arange.update_kwarg("device", torch.device("cuda", 1))
    regions = [node for node in graph.nodes if "autocast" in str(node.target)]
    for node in regions:
        node.update_arg(0, "cuda")
    left = list(elsewhere(program, CPU))
    assert f"graph, {arange.name} = {arange.target}: the device cuda:1" in left
    assert any("the text 'cuda'" in one for one in left) == bool(regions)
    inner = next(part for name, part in program.graph_module.named_modules() if "true" in name)
    ones = next(node for node in inner.graph.nodes if "ones" in str(node.target))
    ones.update_kwarg("device", "cuda:1")
    assert any("true" in one and "the text 'cuda:1'" in one for one in elsewhere(program, CPU))


torch.library.define("gpulaunch_tests::placed", "(Tensor x, str place, str[] places) -> Tensor")


@torch.library.impl("gpulaunch_tests::placed", "CompositeExplicitAutograd")
def _(x: Any, place: str, places: list[str]) -> Any:
    return torch.empty_like(x)


class Placed(torch.nn.Module):
    def __init__(self, place: str, *places: str) -> None:
        super().__init__()
        self.place, self.places = place, list(places)

    def forward(self, x: Any) -> Any:
        return torch.ops.gpulaunch_tests.placed(x, self.place, self.places)


def test_a_card_in_an_operators_text_is_moved_and_one_out_of_reach_is_refused() -> None:
    moved_one = load_exported(io.BytesIO(written(Placed("cuda:1", "a"), (torch.ones(1),))), "cpu")
    (node,) = (node for node in moved_one.graph.nodes if "placed" in str(node.target))
    assert node.args[1:] == ("cpu", ["a"])
    with pytest.raises(ExportedProgramError) as caught:
        load_exported(io.BytesIO(written(Placed("a", "cuda:1"), (torch.ones(1),))), "cpu")
    assert "expected a program wholly on cpu, found 1 records of another card" in str(caught.value)
    assert "placed = gpulaunch_tests.placed.default: the text 'cuda:1'" in str(caught.value)


def test_what_cannot_be_loaded_names_torchs_reason(file: bytes) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if "inputs" in member:
                content = b"not what it was"
            new.writestr(member, content)
    with pytest.raises(ExportedProgramError, match=r"cannot load this program: \w+") as caught:
        load_exported(out, "cpu")
    assert torch.__version__ in str(caught.value)
    assert caught.value.__cause__ is not None


class Baked(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(2, device=torch.device("cuda:1"))


def test_torchscript_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(Baked()).save(str(path))
    with pytest.raises(ExportedProgramError) as caught:
        load_exported(path)
    text = str(caught.value)
    assert text.startswith(f"{path} is TorchScript (torch.jit.save), no torch.export program: ")
    assert 'torch.jit.load(path, map_location="cuda:0") moves all but the devices in' in text
    assert "x.device" in text


def test_checkpoints_other_archives_and_other_files_are_said_to_be_none(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "weights.pt")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a/b.txt", "")
    with zipfile.ZipFile(tmp_path / "aot.pt2", "w") as archive:
        archive.writestr("aot/data/aotinductor/model/x.so", "")
    with zipfile.ZipFile(tmp_path / "two.pt2", "w") as archive:
        archive.writestr("two/models/left.json", "{}")
        archive.writestr("two/models/right.json", "{}")
    (tmp_path / "text.pt2").write_text("hello")
    for name, said in [
        ("weights.pt", "is a checkpoint"),
        ("other.zip", r"found a/b\.txt"),
        ("aot.pt2", "device_index=0"),
        ("two.pt2", "left, right"),
        ("text.pt2", "found b'hello'"),
    ]:
        with pytest.raises(ExportedProgramError, match=said):
            load_exported(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load_exported(tmp_path / "none.pt2")
