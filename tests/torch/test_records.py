"""Device records in bytes: what is moved, what is not, and that nothing is unpickled for it."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpulaunch.torch.archive import Moves, json_document, pickled  # noqa: E402

FIRST = "cuda:0"


def document(value: Any, to: str = FIRST, cpu_too: bool = False) -> Any:
    return json.loads(json_document(json.dumps(value).encode(), Moves(to, cpu_too)))


@pytest.mark.parametrize(
    ("old", "to", "new"),
    [
        ({"type": "cuda", "index": 1}, FIRST, {"type": "cuda", "index": 0}),
        ({"type": "cuda", "index": None}, FIRST, {"type": "cuda", "index": 0}),
        ({"type": "cuda"}, FIRST, {"type": "cuda", "index": 0}),
        ({"type": "xpu", "index": 3}, FIRST, {"type": "cuda", "index": 0}),
        ({"type": "cuda", "index": 1}, "cpu", {"type": "cpu", "index": None}),
        ({"type": "cpu", "index": None}, FIRST, {"type": "cpu", "index": None}),
        ({"type": "meta"}, FIRST, {"type": "meta"}),
        ({"type": "cuda", "index": 1, "more": 1}, FIRST, {"type": "cuda", "index": 1, "more": 1}),
    ],
)
def test_a_device_of_a_document_is_moved_wherever_it_is(old: Any, to: str, new: Any) -> None:
    assert document({"a": [{"device": old}]}, to) == {"a": [{"device": new}]}


def test_the_cpu_is_moved_where_it_is_asked_for() -> None:
    assert document({"type": "cpu"}, cpu_too=True) == {"type": "cuda", "index": 0}


def test_string_arguments_that_are_devices_are_moved_and_words_are_not() -> None:
    assert document({"as_string": "cuda:1"}) == {"as_string": "cuda:0"}
    for text in ("cuda", "cuda:1 or cuda:2", "my_cuda:1"):
        assert document({"as_string": text}, "cpu") == {"as_string": text}
    assert document({"stack_trace": 'x.to("cuda:1")'}) == {"stack_trace": 'x.to("cuda:1")'}


def test_the_kind_in_an_autocast_region_follows() -> None:
    node = {"target": "torch.ops.higher_order.wrap_with_autocast",
            "inputs": [{"name": "d", "arg": {"as_string": "cuda"}}]}  # fmt: skip
    (argument,) = document(node, "cpu")["inputs"]
    assert argument["arg"] == {"as_string": "cpu"}


def test_what_needs_no_change_keeps_its_very_bytes() -> None:
    text = b'{ "a" : {"type": "cuda", "index": 0} }'
    assert json_document(text, Moves(FIRST)) is text
    data = pickle.dumps(["cuda:0", "cpu"])
    assert pickled(data, Moves(FIRST)) is data


def test_devices_are_counted_and_stay_where_nowhere_is_given() -> None:
    seen = Moves(None)
    text = b'[{"type": "cuda", "index": 1}, {"type": "cpu"}]'
    assert json_document(text, seen) is text
    assert seen.found == {"cuda:1", "cpu"}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("to", ["cuda:0", "cpu", "cuda:11"])
def test_strings_and_device_objects_of_a_pickle_are_moved(protocol: int, to: str) -> None:
    moves = Moves(to)
    old = torch.device("cuda", 1)
    value = {
        "places": ["cuda:1", "cuda:12", "cuda:1"],
        "devices": (old, old, torch.device("cuda", 2), torch.device("cpu")),
        "kinds": ["cuda", "cpu"],
        "text": "not cuda:1",
        "numbers": [("cuda", 1), 1],
        "cuda:1": 1,
    }
    new = pickle.loads(pickled(pickle.dumps(value, protocol), moves))
    want = torch.device(to)
    assert new == {
        "places": [to, to, to],
        "devices": (want, want, want, torch.device("cpu")),
        "kinds": ["cuda", "cpu"],
        "text": "not cuda:1",
        "numbers": [("cuda", 1), 1],
        to: 1,
    }
    assert moves.found >= {"cuda:1", "cuda:2", "cuda:12"}


def test_a_saved_tensor_goes_to_the_new_place() -> None:
    def locations(data: bytes) -> set[str]:
        return {arg for _, arg, _ in pickletools.genops(data)
                if isinstance(arg, str) and arg.startswith(("cuda", "cpu", "meta"))}  # fmt: skip

    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    from tests.torch.bake import CPU

    data = buffer.getvalue()
    assert CPU in data
    start = data.index(b"\x80\x02")
    baked = data[start:].split(b"PK")[0].replace(CPU, b"X\x06\x00\x00\x00cuda:1")
    baked = baked[: baked.rindex(b".") + 1]
    assert locations(baked) == {"cuda:1"}
    assert locations(pickled(baked, Moves(FIRST))) == {"cuda:0"}


def test_fake_tensors_metadata_is_a_document_inside_the_pickle() -> None:
    text = json.dumps({"dtype": 7, "device": {"type": "cuda", "index": 1}})
    for protocol in (2, 4):
        data = pickle.dumps([text.encode(), text], protocol)
        for found in pickle.loads(pickled(data, Moves(FIRST))):
            assert json.loads(found)["device"] == {"type": "cuda", "index": 0}


def test_what_is_no_pickle_is_an_error() -> None:
    with pytest.raises(ValueError, match="opcode"):
        pickled(b"\x00\x01 hello", Moves(FIRST))


def test_nothing_is_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was unpickled",)

    data = pickle.dumps([Trap(), "cuda:1"])
    assert b"cuda:0" in pickled(data, Moves(FIRST))
