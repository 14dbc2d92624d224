"""Reads the files of figures that jobs leave: JSON, JSON lines, CSV.

What several lines or rows say of one name, an epoch a line as a rule, counts by its last value.
Waits for nothing and reads no more than MAX_LEFT_BYTES: a job may leave anything under that name.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from gpulaunch.files import read_bytes
from gpulaunch.results.cells import (
    MAX_CELL_CHARACTERS,
    Cell,
    TooLongError,
    cell,
    encodable,
    flat,
    scalar,
)
from gpulaunch.text import several

MAX_LEFT_BYTES = 16 << 20


class LeftFileError(ValueError):
    """What is wrong with a file that a job left, in words."""


class LeftValues(Struct, frozen=True):
    """What a file says by name, nested names joined by dots.

    `too_long` are left out for that; `cut`: how many more names there were than had a place.
    """

    cells: Mapping[str, Cell]
    too_long: tuple[str, ...] = ()
    cut: int = 0


HasPlace: TypeAlias = Callable[[str], bool]
"""Tells whether there is a column for that name."""


def read_values(path: str, has_place: HasPlace = lambda name: True) -> LeftValues | None:
    """Return what the file says; None where there is none.

    Its suffix says what it is: .csv, .tsv, .jsonl, .ndjson; anything else is JSON. Raises
    LeftFileError, with the place, for what cannot be read.
    """
    try:
        data = read_bytes(path, MAX_LEFT_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise LeftFileError(getattr(error, "strerror", None) or str(error)) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LeftFileError(f"byte {error.start + 1:,} is no UTF-8") from None
    if not text.strip():
        raise LeftFileError("it is empty")
    read = _READERS.get(os.path.splitext(path)[1].lower(), _json)
    try:
        return _as_cells(*_last_values(read(text), has_place))
    except RecursionError:
        raise LeftFileError("it is nested too deeply") from None


def _last_values(
    records: Iterable[Mapping[str, Any]], has_place: HasPlace
) -> tuple[dict[str, Any], int]:
    """Return each name's last value, and how many names of one record had no place.

    Null says nothing against an earlier value.
    """
    values: dict[str, Any] = {}
    most = 0
    for record in records:
        cut = 0
        for name, value in flat(record):
            if name in values:
                values[name] = values[name] if value is None else value
            elif has_place(name):
                values[name] = value
            else:
                cut += 1
        most = max(most, cut)
    return values, most


def _as_cells(values: Mapping[str, Any], cut: int) -> LeftValues:
    cells: dict[str, Cell] = {}
    too_long = []
    for name, value in values.items():
        known = sys.intern(encodable(name))  # ten thousand files have the same names
        try:
            if len(name) > MAX_CELL_CHARACTERS:
                raise TooLongError
            cells[known] = cell(value)
        except TooLongError:
            too_long.append(known)
    return LeftValues(cells, tuple(too_long), cut)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────


def _json(text: str) -> Iterable[Mapping[str, Any]]:
    """Return the one object, or those of a list; a file of JSON lines passes by any name."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and "\n" in text.strip():
            return list(_json_lines(text))
        raise LeftFileError(_place(error, error.lineno)) from None
    except ValueError as error:
        raise LeftFileError(str(error)) from None
    return [_object(one, "") for one in (found if isinstance(found, list) else [found])]


def _json_lines(text: str) -> Iterator[Mapping[str, Any]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _object(json.loads(line), f"line {number:,}: ")
        except json.JSONDecodeError as error:
            if 1 < number == len(lines):
                return  # without a new line at its end: its job was cut off while it wrote
            raise LeftFileError(_place(error, number)) from None
        except LeftFileError:
            raise
        except ValueError as error:
            raise LeftFileError(f"line {number:,}: {error}") from None


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    found = _NAMED.get(type(value), "a number")
    raise LeftFileError(f"{place}expected an object of names and values, found {found}")


_NAMED = {str: "a text", list: "a list", bool: "true or false", type(None): "null"}


def _place(error: json.JSONDecodeError, line: int) -> str:
    return f"line {line:,}, column {error.colno:,}: {error.msg}"


# ── CSV ─────────────────────────────────────────────────────────────────────────────────────────


def _separated(text: str, by: str) -> Iterator[Mapping[str, Any]]:
    rows = csv.reader(
        io.StringIO(text.lstrip("\r\n"), newline=""), delimiter=by, skipinitialspace=True
    )
    try:
        names = [name.strip() for name in next(rows)]
        count = 0
        for row in rows:
            count += bool(row)
            if len(row) > len(names):
                raise LeftFileError(
                    f"line {rows.line_num:,}: {several(len(row), 'field')} below"
                    f" {several(len(names), 'name')}"
                )
            yield {
                name: scalar(field.strip()) if field.strip() else None
                for name, field in zip(names, row, strict=False)
                if name  # a data frame's index has none
            }
    except csv.Error as error:
        raise LeftFileError(f"line {rows.line_num:,}: {error}") from None
    if not count:
        raise LeftFileError("it has names and no row")


_READERS: Mapping[str, Callable[[str], Iterable[Mapping[str, Any]]]] = {
    ".csv": lambda text: _separated(text, ","),
    ".tsv": lambda text: _separated(text, "\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
}
