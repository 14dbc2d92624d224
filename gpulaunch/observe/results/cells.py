"""A table's cells: what is a number, what is text, and which type holds a whole column. Pure.

Nested objects become columns whose names are joined by dots; a list is one cell of JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from gpulaunch.base.text import in_utf8

Cell: TypeAlias = bool | int | float | str | None
Kind: TypeAlias = Literal["boolean", "integer", "number", "text"]

MAX_CELL_CHARACTERS = 4_096
"""Of a text or a list that is a cell, and of a name; what is longer is left out of the table."""

_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,18})")
_WORDS: Mapping[str, Cell] = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("nan", "NaN"), math.nan),
    **dict.fromkeys(("inf", "Infinity"), math.inf),
    **dict.fromkeys(("-inf", "-Infinity"), -math.inf),
}
_INT64 = range(-(1 << 63), 1 << 63)


class TooLongError(ValueError):
    """A value takes more than MAX_CELL_CHARACTERS."""


def scalar(text: str) -> Cell:
    """Return the number, true or false that a text is by itself; any other text as it is.

    `010`, `1_000` and `NO` are texts. So is an integer beyond 64 bits, which stays exact.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        number = int(text)
        return number if number in _INT64 else text
    if _NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return text


def flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object by name, those inside it by `a.b`.

    No value is a mapping, unless its name is too long: a long path to each of many values would
    take more memory than the file has bytes.
    """
    left = [("", iter(record.items()))]
    while left:
        path, items = left[-1]
        for key, value in items:
            name = path + key
            if isinstance(value, Mapping) and len(name) <= MAX_CELL_CHARACTERS:
                left.append((f"{name}.", iter(value.items())))
                break
            yield name, value
        else:
            left.pop()


def cell(value: Any) -> Cell:
    """Return a value of JSON, no object, as a cell. Raises TooLongError."""
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        if len(value) > MAX_CELL_CHARACTERS:
            raise TooLongError
        return encodable(value)
    return value  # type: ignore[no-any-return]


def encodable(text: str) -> str:
    """Return the text; what no file of text can hold (half a surrogate pair, NUL) is written out.

    Up to 3.10, Python's CSV writer refuses NUL.
    """
    return in_utf8(text.replace("\0", "\\x00"))


def kind_of(cells: Iterable[Cell]) -> Kind:
    """Return the type that holds all of a column's cells: text, where they are of several."""
    known = [cell for cell in cells if cell is not None]
    types = set(map(type, known))
    if types == {bool}:
        return "boolean"
    if types == {int} and all(cell in _INT64 for cell in known):
        return "integer"
    if types <= {int, float} and float in types and all(map(_exact, known)):
        return "number"
    return "text"


def _exact(cell: Cell) -> bool:
    """Tell whether the number is the same as a floating point one."""
    return isinstance(cell, float) or abs(int(cell or 0)) <= 1 << 53


def as_kind(cells: Sequence[Cell], kind: Kind) -> list[Cell]:
    """Return a column's cells as that type, which `kind_of` gave for them."""
    if kind == "number":
        return [None if cell is None else float(cell) for cell in cells]
    if kind == "text":
        return [cell if cell is None or isinstance(cell, str) else spelled(cell) for cell in cells]
    return list(cells)


def from_texts(texts: Sequence[str | None]) -> list[Cell]:
    """Return a column of texts as they were typed: numbers, or true and false, where all are."""
    read = [None if text is None else scalar(text) for text in texts]
    if kind_of(read) == "text":
        return [None if text is None else encodable(text) for text in texts]
    return read


def spelled(cell: Cell) -> str:
    """Return a cell as CSV has it, so that pandas and polars read it back: true, 0.001, NaN."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else "inf" if cell > 0 else "-inf"
    return repr(cell)
