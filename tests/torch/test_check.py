"""check_devices: what is on another device is named, what may be there is not."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, deque, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpulaunch.torch import DeviceMismatchError, check_devices  # noqa: E402


class Layer(torch.nn.Module):
    """A weight, a buffer, and a tensor that .to() misses, each where it is told."""

    def __init__(self, weight: str = "cpu", buffer: str = "cpu", mask: str = "cpu") -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3, device=weight))
        self.register_buffer("scale", torch.ones(3, device=buffer))
        self.mask = torch.ones(4, device=mask)


class Net(torch.nn.Module):
    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)


def odd(*args: Any, **kwargs: Any) -> dict[str, str]:
    """The path and device of each tensor that check_devices names; {} where it names none."""
    try:
        check_devices(*args, **kwargs)
    except DeviceMismatchError as error:
        return {one.path: one.device for one in error.odd}
    return {}


@pytest.fixture
def cards() -> Any:
    """Tensors on cards, without one: nothing is computed."""
    with FakeTensorMode(), torch.no_grad():
        yield


# ── Modules ─────────────────────────────────────────────────────────────────────────────────────


def test_one_device_is_returned() -> None:
    assert check_devices(Net(Layer()), torch.ones(2)) == torch.device("cpu")


def test_nothing_to_look_at_is_no_device() -> None:
    assert check_devices(None) is None
    assert check_devices(torch.nn.Module(), [], {}, "text", 1) is None


def test_parameters_buffers_and_plain_attributes_are_named_by_their_paths() -> None:
    model = Net(Layer(), Layer(weight="meta"), Layer(buffer="meta"), Layer(mask="meta"))
    assert odd(model) == {
        "model.layers[1].weight": "meta",
        "model.layers[2].scale": "meta",
        "model.layers[3].mask": "meta",
    }


def test_a_report_has_kind_shape_dtype_device_and_what_to_call(cards: None) -> None:
    model = Net(Layer("cuda:0", "cuda:0", "cpu"), Layer("cuda:0", "cuda:1", "cuda:0"))
    with pytest.raises(DeviceMismatchError) as caught:
        check_devices(model, {"ids": torch.zeros(1, 8, dtype=torch.int64)}, device="cuda:0")
    assert str(caught.value) == (
        "Expected all tensors to be on the same device, cuda:0; found 3 of 7 elsewhere:\n"
        "  model.layers[1].scale  cuda:1  (3) float32  buffer\n"
        '    -> model.to("cuda:0")\n'
        "  model.layers[0].mask  cpu     (4) float32  plain attribute\n"
        '    -> in its class, self.register_buffer("mask", ..., persistent=False) instead of a '
        'plain attribute; or model.layers[0].mask = model.layers[0].mask.to("cuda:0")\n'
        "  inputs[0]['ids']  cpu     (1, 8) int64\n"
        "    -> inputs[0]['ids'].to(\"cuda:0\") where it is made"
    )
    assert isinstance(caught.value, RuntimeError)


def test_the_call_that_is_advised_mends_it() -> None:
    model = Net(Layer())
    with pytest.raises(DeviceMismatchError, match=r'model\.to\("meta"\)'):
        check_devices(model, device="meta")
    model.to("meta")
    assert odd(model, device="meta") == {"model.layers[0].mask": "cpu"}
    model.layers[0].mask = model.layers[0].mask.to("meta")
    assert odd(model, device="meta") == {}


def test_the_expected_device_is_the_card_with_most_of_the_model(cards: None) -> None:
    on_the_card = Net(Layer("cuda:0", "cuda:0", "cpu"), Layer("cpu", "cpu", "cpu"))
    assert set(odd(on_the_card)) == {
        "model.layers[0].mask",
        "model.layers[1].weight",
        "model.layers[1].scale",
        "model.layers[1].mask",
    }
    model, batch = Net(Layer()), torch.ones(2, device="cuda:0")
    assert "inputs[0]" not in odd(model, batch)  # the model was never moved
    assert len(odd(model, batch)) == 3


def test_a_device_without_an_index_is_the_current_one(cards: None) -> None:
    assert odd(Net(Layer("cuda:0", "cuda:0", "cuda:0")), device="cuda") == {}
    assert len(odd(Net(Layer("cuda:1", "cuda:1", "cuda:1")), device="cuda")) == 3


def test_a_cpu_tensor_without_dimensions_may_stay_and_one_of_a_card_may_not(cards: None) -> None:
    model = Net(Layer("cuda:0", "cuda:0", "cuda:0"))
    model.register_buffer("steps", torch.tensor(3))
    assert odd(model, torch.tensor(1.0)) == {}
    assert odd(model, torch.ones((), device="cuda:1")) == {"inputs[0]": "cuda:1"}
    assert odd(model, torch.ones(1)) == {"inputs[0]": "cpu"}


def test_a_tied_weight_is_named_once() -> None:
    first, second = Layer("meta"), Layer()
    second.weight = first.weight
    assert odd(Net(first, second), device="cpu") == {"model.layers[0].weight": "meta"}


def test_a_list_of_parameters_is_no_plain_attribute() -> None:
    model = torch.nn.LSTM(2, 3, device="meta")  # has its weights in a list as well
    model.optimised = list(model.parameters())
    model.optimizer = torch.optim.SGD(model.parameters())
    assert odd(model, device="meta") == {}
    with pytest.raises(DeviceMismatchError) as caught:
        check_devices(model, device="cpu")
    named = [f"model.{name}" for name, _ in model.named_parameters()]
    assert [one.path for one in caught.value.odd] == named
    assert {one.role for one in caught.value.odd} == {"parameter"}


def test_a_module_in_a_plain_list_is_missed_by_to_and_named() -> None:
    model = Net()
    model.experts = [torch.nn.Linear(1, 2), {"deep": torch.nn.Linear(1, 2)}]
    model.to("meta")
    with pytest.raises(DeviceMismatchError, match=r"nn\.ModuleList"):
        check_devices(model, device="meta")
    assert set(odd(model, device="meta")) == {
        "model.experts[0].weight",
        "model.experts[0].bias",
        "model.experts[1]['deep'].weight",
        "model.experts[1]['deep'].bias",
    }


def test_plain_attributes_are_found_in_containers_and_one_object_deep() -> None:
    model = Net()
    model.tables = {"sin": [torch.ones(1, device="meta")]}
    model.cache = SimpleNamespace(keys=torch.ones(1, device="meta"))
    model.trainer = SimpleNamespace(data=SimpleNamespace(batch=torch.ones(1, device="meta")))
    model.weight = torch.nn.Parameter(torch.ones(1))
    assert set(odd(model)) == {"model.tables['sin'][0]", "model.cache.keys"}
    model.data = model.trainer.data
    assert "model.data.batch" in odd(model)


def test_cycles_end() -> None:
    model = Net(Layer())
    model.me, model.layers[0].parent = [model], [model]
    loop: list[Any] = [torch.ones(1)]
    loop.append({"loop": loop})
    assert odd(model, loop, model) == {}


def test_meta_tensors_are_to_be_loaded_not_moved() -> None:
    with pytest.raises(DeviceMismatchError, match=r"no data to move: load the weights first"):
        check_devices(Layer(weight="meta"))
    with pytest.raises(DeviceMismatchError, match=r'no data to move: make it with device="cpu"'):
        check_devices(Layer(), torch.ones(1, device="meta"))


def test_lazy_and_scripted_and_compiled_modules_are_looked_at() -> None:
    lazy = torch.nn.LazyLinear(3, device="meta")
    with pytest.raises(DeviceMismatchError, match=r"model\.weight  meta    \(\?\) float32"):
        check_devices(lazy, device="cpu")
    scripted = torch.jit.script(torch.nn.Linear(1, 2))
    assert check_devices(scripted) == torch.device("cpu")
    assert set(odd(scripted, device="meta")) == {"model.weight", "model.bias"}
    compiled = torch.compile(torch.nn.Linear(1, 2, device="meta"))
    assert set(odd(compiled, device="cpu")) == {"model._orig_mod.weight", "model._orig_mod.bias"}


def test_weights_that_accelerate_brings_for_each_call_are_where_they_should_be() -> None:
    model = Net(Layer("meta", "cpu"), Layer())
    model.layers[0]._hf_hook = SimpleNamespace(offload=True)
    assert odd(model, device="cpu") == {}
    model._hf_hook = SimpleNamespace(execution_device="cpu", offload=False)
    assert odd(model, torch.ones(1, device="meta"), device="cpu") == {}


def test_a_model_that_accelerate_spread_over_cards_is_right_unless_one_is_asked_for(
    cards: None,
) -> None:
    model = Net(Layer("cuda:0", "cuda:0", "cuda:0"), Layer("cuda:1", "cuda:1", "cpu"))
    model.hf_device_map = {"layers.0": 0, "layers.1": "cuda:1", "head": "disk"}
    assert odd(model) == {"model.layers[1].mask": "cpu"}
    assert set(odd(model, device="cuda:0")) == {
        "model.layers[1].weight",
        "model.layers[1].scale",
        "model.layers[1].mask",
    }


def test_a_long_report_is_cut_and_the_error_has_all() -> None:
    model = Net(*(Layer("meta", "meta", "meta") for _ in range(50)))
    with pytest.raises(DeviceMismatchError, match=r"and 110 more") as caught:
        check_devices(model, device="cpu")
    assert len(caught.value.odd) == 150


# ── Inputs ──────────────────────────────────────────────────────────────────────────────────────

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    ids: Any
    mask: Any = None


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class Encoding(UserDict):  # type: ignore[type-arg]
    """Like a Hugging Face BatchEncoding: a mapping that is one leaf to pytree, with a .to()."""

    def to(self, device: str) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """Like a Hugging Face ModelOutput: a mapping and a dataclass."""

    logits: Any = None

    def __post_init__(self) -> None:
        self["logits"] = self.logits


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda t: t, "inputs[0]"),
        (lambda t: [1, (t,)], "inputs[0][1][0]"),
        (lambda t: {"a": {2: t}}, "inputs[0]['a'][2]"),
        (lambda t: deque(["x", t]), "inputs[0][1]"),
        (lambda t: {t}, "inputs[0]{0}"),
        (lambda t: Pair(None, t), "inputs[0].right"),
        (lambda t: Batch(ids=t), "inputs[0].ids"),
        (lambda t: Slotted([t]), "inputs[0].hidden[0]"),
        (lambda t: SimpleNamespace(x=SimpleNamespace(y=t)), "inputs[0].x.y"),
        (lambda t: Encoding(ids=t), "inputs[0]['ids']"),
        (lambda t: Output(logits=t), "inputs[0]['logits']"),
        (lambda t: torch.distributions.Normal(t, t, validate_args=False), "inputs[0].loc"),
        (lambda t: torch.nn.ParameterList([torch.nn.Parameter(t)]), "inputs[0][0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_input_is_found_however_it_is_nested(wrap: Any, path: str) -> None:
    model = Layer()
    assert list(odd(model, wrap(torch.ones(2, device="meta"))))[:1] == [path]
    assert odd(model, wrap(torch.ones(2))) == {}


def test_keyword_inputs_go_by_their_names() -> None:
    found = odd(None, module=torch.ones(1), x=[torch.ones(1, device="meta")], device="cpu")
    assert found == {"x[0]": "meta"}


def test_what_has_a_to_of_its_own_is_moved_by_it(cards: None) -> None:
    batch = {"text": Encoding(ids=torch.ones(2), mask=torch.ones(2))}
    with pytest.raises(DeviceMismatchError) as caught:
        check_devices(Layer("cuda:0", "cuda:0", "cuda:0"), batch)
    assert str(caught.value).endswith(
        "\n    -> inputs[0]['text'] = inputs[0]['text'].to(\"cuda:0\")"
    )
    assert str(caught.value).count("->") == 1


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_cpu(cards: None) -> None:
    data = torch.ones(3, 2, device="cuda:0")
    packed = torch.nn.utils.rnn.PackedSequence(data, torch.tensor([2, 1]))
    assert odd(None, packed) == {}
    wrong = torch.nn.utils.rnn.PackedSequence(data, torch.tensor([2, 1]), torch.tensor([0, 1]))
    assert odd(None, wrong)["inputs[0].sorted_indices"] == "cpu"


def test_sparse_nested_quantised_and_subclassed_tensors_are_tensors() -> None:
    class Mine(torch.Tensor):
        pass

    inputs = [
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(2, 2)], layout=torch.jagged),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        torch.ones(2).as_subclass(Mine),
    ]
    assert odd(Layer(), *inputs) == {}
    assert set(odd(Layer(), *inputs, device="meta")) >= {f"inputs[{n}]" for n in range(6)}


def test_nothing_of_the_inputs_is_run_or_used_up() -> None:
    class Lazy:
        @property
        def weights(self) -> None:
            raise AssertionError("a property was read")

    class Broken(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise OSError("gone")

    class Unbound:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("outside of a request")

    batches = iter([torch.ones(1)])
    assert odd(None, Lazy(), Broken(), Unbound(), batches, torch.ones) == {}
    assert len(list(batches)) == 1


def test_deep_nesting_is_no_recursion() -> None:
    deep: Any = torch.ones(1, device="meta")
    for _ in range(5_000):
        deep = [deep]
    assert len(odd(Layer(), deep)) == 1
