"""first_mixed_device: the first operation that mixes devices is told in full, nothing else changes.

Pretend cards: FakeTensorMode refuses what torch refuses, with torch's own words. A meta tensor
beside a CPU one where values or gradients are computed.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpulaunch.diagnose.explain.report.search import short  # noqa: E402
from gpulaunch.torch import DeviceMismatchError, first_mixed_device  # noqa: E402
from gpulaunch.torch.tensors import storage_of  # noqa: E402
from tests.torch.nets import Net  # noqa: E402


@pytest.fixture
def cards() -> Iterator[None]:
    with FakeTensorMode(), torch.no_grad():
        yield


def modes() -> int:
    return int(torch._C._len_torch_dispatch_stack())


def line_of(text: str, file: str) -> int:
    """The number of the only line of a file that has this text in it."""
    with open(file) as source:
        (number,) = [n for n, line in enumerate(source, 1) if text in line]
    return number


def told(model: Any, *args: Any) -> list[str]:
    """What is said about that call."""
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        model(*args)
    assert modes() <= 1
    assert isinstance(caught.value.__cause__, RuntimeError)
    return str(caught.value).splitlines()


# ── What is told ────────────────────────────────────────────────────────────────────────────────


def test_a_plain_attribute_is_told_with_module_line_and_origin(cards: None) -> None:
    model = Net("cuda:0")
    nets = Net.__init__.__code__.co_filename
    at = line_of("return y + self.mask", nets)
    made = line_of("return torch.nn.functional.linear", nets)
    lines = told(model, torch.ones(2, 4, device="cuda:0"), "attribute")
    nets = short(nets)
    assert lines[:4] == [
        "first operation that mixes devices: aten.add.Tensor",
        "  in module model.layers[0]",
        f"  self  cuda:0  (2, 4) float32: y; made by aten.mm.default at {nets}:{made}",
        "  other  cpu     (4) float32: self.mask; made before this began, or where it cannot see",
    ]
    assert lines[4].startswith("gpulaunch explain: ")
    assert "cuda:0" in lines[4]
    assert "cpu" in lines[4]
    assert lines[5:7] == [f"  where: {nets}:{at}, in forward", "      return y + self.mask"]
    assert "      self.mask  cpu     (4) float32  plain attribute   <-- odd" in lines
    assert "      self.register_buffer('mask', torch.ones(4), persistent=False)" in lines
    assert lines[-1] == "gpulaunch explain: end of the report"


def test_a_tensor_made_without_a_device_is_told_with_the_line_that_made_it(cards: None) -> None:
    model = Net("cuda:0")
    text = told(model, torch.ones(2, 4, device="cuda:0"), "factory")
    nets = Net.__init__.__code__.co_filename
    made = f"{short(nets)}:{line_of('places = torch.arange(4)', nets)}"
    assert f"  other  cpu     (4) int64: places; made by aten.arange.default at {made}" in text
    assert f"    {made}: places is made on the CPU: torch.arange(4, device='cuda:0')" in text


def test_an_input_is_told_by_the_callers_name(cards: None) -> None:
    network, batch = Net("cuda:0"), {"ids": [torch.ones(2, 4)]}
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        network(batch["ids"][0])
    text = str(caught.value)
    assert "in module network.layers[0].projection\n" in text
    assert "  mat2  cuda:0  (4, 4) float32: self.weight; made before" in text
    assert "batch['ids'][0] = batch['ids'][0].to('cuda:0') (in " in text
    (one,) = caught.value.odd
    assert (one.device, one.dtype, one.shape, one.owner) == ("cpu", "float32", "(2, 4)", None)


def test_a_weight_on_another_card_is_told_with_the_call_that_moves_it(cards: None) -> None:
    model = Net("cuda:0")
    model.layers[1].bias = model.layers[1].bias.new_ones(4, device="cuda:1")
    text = "\n".join(told(model, torch.ones(2, 4, device="cuda:0")))
    assert "in module model.layers[1]\n" in text
    assert "  other  cuda:1  (4) float32: self.bias; made" in text
    assert (
        "      model.layers[1].bias               cuda:1  (4) float32  buffer   <-- odd\n" in text
    )
    assert "      self.to('cuda:0'), once, where it is made\n" in text


def test_a_check_that_comes_before_any_operation_is_told_too(cards: None) -> None:
    text = "\n".join(told(Net("cuda:0"), torch.ones(2, 4, device="cuda:0"), "attention"))
    assert "same device type" in text
    assert "scaled_dot_product_attention(y.unsqueeze(1), keys, keys)" in text
    assert "  keys  cpu     (2, 1, 4) float32: made by aten.ones.default at " in text


def test_a_model_held_by_an_object_goes_by_the_objects_attribute(cards: None) -> None:
    class Runner:
        def __init__(self) -> None:
            self.network = Net("cuda:0")

        def run(self) -> None:
            self.network(torch.ones(2, 4))

    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        Runner().run()
    assert "in module self.network.layers[0].projection\n" in str(caught.value)


def test_a_model_that_no_variable_holds_goes_by_its_class(cards: None) -> None:
    model, x = [Net("cuda:0")], torch.ones(2, 4, device="cuda:0")
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        model.pop()(x, "attention")
    assert "in module Net.layers[0]\n" in str(caught.value)


def test_a_class_that_fails_when_looked_at_hides_no_mismatch(cards: None) -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise OSError("gone")

    def run(self: Any, left: Any, right: Any) -> None:
        left + right

    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        run(Hostile(), torch.ones(2, device="cuda:0"), torch.ones(2))
    assert "  other  cpu     (2) float32: right; made by " in str(caught.value)


def test_tensors_in_a_list_are_told_one_by_one(cards: None) -> None:
    left, right = torch.ones(2, device="cuda:0"), torch.ones(2)
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        torch.cat([left, right])
    assert "  tensors[1]  cpu     (2) float32: right; made " in str(caught.value)
    assert "made before this began, or where it cannot see" in str(caught.value)


def test_weights_that_were_never_loaded_are_told_where_torch_lets_them_pass() -> None:
    model, x = Net("meta"), torch.ones(2, 4)
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        model(x)
    assert "self is on meta, without data: load its weights first" in str(caught.value)


def test_the_backward_pass_is_watched_with_its_own_line() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient + torch.ones(2, device="meta")

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device():
        Odd.apply(x).sum().backward()
    assert "return gradient + torch.ones" in str(caught.value)
    assert x.grad is None


def test_the_first_is_told_and_the_program_may_go_on(cards: None) -> None:
    left, right = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    with first_mixed_device():
        with pytest.raises(RuntimeError, match="first operation that mixes"):
            left + right
        assert (left + left).device == torch.device("cuda:0")


# ── What is no mismatch ─────────────────────────────────────────────────────────────────────────


def test_scalars_indices_and_copies_may_join_devices(cards: None) -> None:
    x = torch.ones(2, 4, device="cuda:0")
    with first_mixed_device():
        assert (x * torch.tensor(2.0)).device == x.device
        assert torch.empty_like(x, device="cpu").device == torch.device("cpu")
        assert x.to("cpu").device == torch.device("cpu")
    meta = torch.ones(3, 4, device="meta")
    with first_mixed_device():
        assert meta[torch.tensor([0, 2])].shape == (2, 4)
        assert meta.copy_(torch.ones(3, 4)) is meta


def test_other_errors_are_left_as_they_are(cards: None) -> None:
    own = RuntimeError("expected all tensors to be on the same device, found two devices")
    x, on_cpu = torch.ones(2, 4, device="cuda:0"), torch.ones(1)

    def fails() -> None:
        assert on_cpu.device != x.device
        raise own

    with pytest.raises(RuntimeError) as caught, first_mixed_device():
        fails()
    assert caught.value is own
    assert caught.value.__cause__ is None
    with pytest.raises(RuntimeError, match=r"(?i)shape|size") as caught, first_mixed_device():
        Net("cuda:0")(x, "wrong shape")
    assert not isinstance(caught.value, DeviceMismatchError)
    with pytest.raises(KeyError), first_mixed_device():
        {}["x"]
    with pytest.raises(SystemExit), first_mixed_device():
        raise SystemExit(3)


# ── What it leaves alone ────────────────────────────────────────────────────────────────────────


def test_results_hooks_and_gradients_are_what_they_are_without_it() -> None:
    def step() -> list[Any]:
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2),
            torch.nn.TransformerEncoderLayer(8, 2, batch_first=True),
        )  # fmt: skip
        seen: list[Any] = []
        model[0].register_forward_hook(lambda m, i, o: seen.append("hook") or o * 2)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = model(torch.randn(3, 4)).float().sum()
            y.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return [*seen, y.detach(), *(p.detach() for p in model.parameters())]

    hooks = torch.nn.modules.module._global_forward_hooks.copy()
    plain = step()
    with first_mixed_device():
        watched = step()
    assert len(plain) == len(watched)
    for one, other in zip(plain, watched, strict=True):
        assert one is other if isinstance(one, str) else torch.equal(one, other)
    assert torch.nn.modules.module._global_forward_hooks == hooks


def test_everything_is_put_back_after_an_error_when_nested_and_when_used_again() -> None:
    watch, x = first_mixed_device(), torch.ones(2)
    with watch, watch, first_mixed_device():
        assert modes() == 3
        assert torch.equal(x + 1, torch.full((2,), 2.0))
    with pytest.raises(ZeroDivisionError), watch, first_mixed_device():
        1 / 0  # noqa: B018
    assert modes() == 0
    with watch:
        assert modes() == 1
    assert modes() == 0


def test_an_inner_watchs_finding_passes_the_outer_one_unchanged(cards: None) -> None:
    left, right = torch.ones(2, device="cuda:0"), torch.ones(2)
    with pytest.raises(DeviceMismatchError) as caught, first_mixed_device(), first_mixed_device():
        left + right
    assert str(caught.value).count("first operation that mixes devices") == 1


def test_other_threads_are_not_watched() -> None:
    seen = []
    with first_mixed_device():
        thread = threading.Thread(target=lambda: seen.append(modes()))
        thread.start()
        thread.join()
        assert modes() == 1
    assert seen == [0]


def test_no_tensor_and_no_module_lives_longer() -> None:
    with first_mixed_device():
        layer = torch.nn.Linear(3, 3)
        out = layer(torch.ones(2, 3))
        gone = [weakref.ref(layer), weakref.ref(out), weakref.ref(layer.weight)]
        del layer, out
        gc.collect()
        assert [one() for one in gone] == [None, None, None]


def test_storages_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpulaunch.torch import mixed

    monkeypatch.setattr(mixed, "_SWEEP", 50)
    kept = mixed.Origins()
    survivor = torch.ones(1)
    kept.note("first", (), survivor)
    for n in range(500):
        kept.note(f"maker {n}", (), torch.ones(1))
    assert len(kept.made) < 200
    key = storage_of(survivor)
    assert key is not None
    assert kept.made[key].operation == "first"


def test_compiled_and_higher_order_code_gives_the_same() -> None:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a - 1, (x,))

    x = torch.ones(3)
    compiled = torch.compile(lambda a: a.cos() * 2, backend="eager", fullgraph=True)
    with first_mixed_device():
        assert torch.equal(function(x), x.sin() + 1)
        assert torch.equal(compiled(x), x.cos() * 2)
    assert torch.equal(compiled(x), x.cos() * 2)


def test_odd_layouts_and_subclasses_pass() -> None:
    sparse = torch.eye(3).to_sparse()
    jagged = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged)
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    with first_mixed_device():
        assert (sparse @ torch.ones(3, 3)).sum() == 9
        assert (jagged * 2).is_nested
        assert quantised.dequantize().shape == (2,)
