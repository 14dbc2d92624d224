"""What files of figures say, in the forms in which jobs leave them; what is wrong with others."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.observe.results.cells import MAX_CELL_CHARACTERS
from gpulaunch.observe.results.gathering import (
    MAX_LEFT_BYTES,
    HasPlace,
    LeftFileError,
    LeftValues,
    read_values,
)


def values_of(tmp_path: Path, left: object, has_place: HasPlace = lambda name: True) -> LeftValues:
    (tmp_path / "m.json").write_text(json.dumps(left))
    values = read_values(str(tmp_path / "m.json"), has_place)
    assert values is not None
    return values


READ: list[tuple[str, str, dict[str, Any]]] = [
    ("m.json", '{"a": 1, "b": {"c": 0.5, "d": {"e": true}}}', {"a": 1, "b.c": 0.5, "b.d.e": True}),
    ("m.json", '\ufeff{"ü": "süß", "n": null}', {"ü": "süß", "n": None}),
    ("m.json", '{"a": 1, "a": 2}', {"a": 2}),
    ("m.json", '{"a.b": 1, "a": {"b": 2}}', {"a.b": 2}),
    ("m.json", '{"l": [1, {"x": "ü"}], "none": {}}', {"l": '[1, {"x": "ü"}]'}),
    ("m.json", '{"up": Infinity, "down": -Infinity}', {"up": math.inf, "down": -math.inf}),
    ("m.json", '{"seed": 18446744073709551615}', {"seed": 18446744073709551615}),
    ("m.json", r'{"half": "\ud800", "nul": "\u0000"}', {"half": "\\ud800", "nul": "\\x00"}),
    ("m.json", '[{"epoch": 1, "acc": 0.5}, {"epoch": 2}]', {"epoch": 2, "acc": 0.5}),
    ("m.json", '{"epoch": 1}\n{"epoch": 2}\n', {"epoch": 2}),
    ("m.dat", '{"a": 1}', {"a": 1}),
    ("m.jsonl", '{"a": 1, "b": 1}\n\n{"a": 2, "b": null}\n', {"a": 2, "b": 1}),
    ("m.ndjson", '{"a": 1}\n{"a": 2}\n{"a": 3', {"a": 2}),
    ("m.csv", "acc,note,ok\n0.91,fine,true\n", {"acc": 0.91, "note": "fine", "ok": True}),
    ("m.csv", "\nepoch, loss\n 1, 0.5\n 2, nan\n", {"epoch": 2, "loss": math.nan}),
    ("m.csv", "step,train,val\n1,0.5,\n1,,0.7\n", {"step": 1, "train": 0.5, "val": 0.7}),
    ("m.CSV", 'id,v\n010,"1,5"\n', {"id": "010", "v": "1,5"}),
    ("m.csv", ",acc,best\n0,0.5,True\n", {"acc": 0.5, "best": True}),
    ("m.tsv", "a\tb\n1e-3\t-inf\n", {"a": 0.001, "b": -math.inf}),
]


@pytest.mark.parametrize(("name", "text", "values"), READ, ids=[each[1][:30] for each in READ])
def test_a_file_s_values(name: str, text: str, values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    left = read_values(str(tmp_path / name))
    assert left is not None
    assert left.too_long == ()
    assert repr(left.cells) == repr(values)  # NaN is not equal to itself; true is not 1


BROKEN: list[tuple[str, bytes, str]] = [
    ("m.json", b"", "it is empty"),
    ("m.json", b' {"a": 1,\n  b}', "line 2, column 3: Expecting property name"),
    ("m.json", b'{"a": 1} x', "line 1, column 10: Extra data"),
    ("m.json", b'{"a": "\xff"}', "byte 8 is no UTF-8"),
    ("m.json", b"0.5", "expected an object of names and values, found a number"),
    ("m.json", b"[1, 2]", "expected an object of names and values, found a number"),
    ("m.json", b"[" * 200_000, "it is nested too deeply"),
    ("m.json", b'{"a": ' * 200_000, "it is nested too deeply"),
    ("m.json", b'{"a": %s}' % (b"1" * 5000), "limit"),
    ("m.jsonl", b'{"a": 1}\n{"a" 2}\n', "line 2, column 6: Expecting ':'"),
    ("m.jsonl", b'{"a": 1}\n[2]\n', "line 2: expected an object"),
    ("m.csv", b"a,b\n", "it has names and no row"),
    ("m.csv", b"a,b\n1,2\n1,2,3\n", "line 3: 3 fields below 2 names"),
    ("m.csv", b"a,b\n1," + b"x" * 200_000, "line 2: field larger than"),
]


@pytest.mark.parametrize(("name", "data", "why"), BROKEN, ids=[each[2] for each in BROKEN])
def test_what_is_wrong_with_a_file(name: str, data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LeftFileError) as raised:
        read_values(str(tmp_path / name))
    assert why in str(raised.value)


def test_what_is_deep_and_can_be_read_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"a": ' * 400 + "1" + "}" * 400)
    left = read_values(str(tmp_path / "m.json"))
    assert left is not None
    assert list(left.cells) == [".".join("a" * 400)]


def test_a_huge_file_is_not_read_and_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    with open(huge, "wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "dir.json").mkdir()
    for name, why in (
        ("huge.json", f"more than {MAX_LEFT_BYTES >> 20} MiB"),
        ("fifo.json", "no regular file"),
        ("dir.json", "no regular file"),
        ("bad\0name", "null byte"),
    ):
        with pytest.raises(LeftFileError, match=why):
            read_values(str(tmp_path / name))


def test_a_file_that_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_values(str(tmp_path / "m.json")) is None
    assert read_values(str(tmp_path / "file" / "m.json")) is None


def test_texts_and_lists_too_long_for_a_cell_are_named(tmp_path: Path) -> None:
    longest = "x" * MAX_CELL_CHARACTERS
    values = {"fits": longest, "text": longest + "x", "log": {"losses": [0.125] * 5000}, "acc": 1}
    (tmp_path / "m.json").write_text(json.dumps(values))
    left = read_values(str(tmp_path / "m.json"))
    assert left is not None
    assert left.cells == {"fits": longest, "acc": 1}
    assert left.too_long == ("text", "log.losses")


def test_a_long_path_to_many_values_takes_no_room_for_each(tmp_path: Path) -> None:
    path = "x" * 50_000
    left = values_of(tmp_path, {path: {str(n): {"deep": n} for n in range(10_000)}, "acc": 1})
    assert left.cells == {"acc": 1}
    assert left.too_long == (path,)


def test_names_that_have_no_place_are_counted_once_a_record(tmp_path: Path) -> None:
    lines = [{"acc": 1, "p": {"a": 1, "b": 2}}, {"acc": 2, "p": {"a": 1, "b": 2, "c": 3}}]
    left = values_of(tmp_path, lines, lambda name: name == "acc")
    assert (left.cells, left.cut) == ({"acc": 2}, 3)
