"""A notebook's code cells as one Python text, and where each of its lines stands in the file.

Magics become what they do: `%env A=B` an assignment, `!cmd` a call of a shell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from gpulaunch.diagnose.lint.tree import parse

_ENV = re.compile(r"%(?:set_)?env\s+(\w+)\s*[= ]\s*(.*)")
_MISSES = 50
_MAGIC = re.compile(r"\s*[%!?]|\s*\w+\s*=\s*[!%]|[^#'\"]*\?\s*$")
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script bash)\b")
_PYTHON_CELL = re.compile(r"%%(?:time|timeit|capture|prun)\b")


class CellLine(NamedTuple):
    """A line as Python and as `typed`, its `row` and `column` in the file, from 0, and its `cell`
    as Jupyter shows it: `cell 3, line 2`.
    """

    python: str
    typed: str
    cell: str
    row: int = 0
    column: int = 0


class Notebook(Struct, frozen=True):
    """The lines of all code cells, and those of the file."""

    lines: tuple[CellLine, ...]
    file: tuple[str, ...]

    @property
    def text(self) -> str:
        """The cells as one Python text."""
        return "\n".join(line.python for line in self.lines)

    def place(self, line: int, column: int) -> tuple[int, int, str]:
        """Line and column in the file, and that line, of a place in the text; all from 0."""
        found = self.lines[line]
        magic = bool(_MAGIC.match(found.typed))  # what it became stands elsewhere
        before = json.dumps("" if magic else found.typed[:column], ensure_ascii=False)
        shown = found.column + len(before) - 2 if found.column else 0
        return found.row, shown, self.file[found.row]


def read(file: str) -> Notebook | None:
    """None where it is no notebook."""
    try:
        cells = json.loads(file)["cells"]
        sources = [_source(cell) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    found: list[CellLine] = []
    for number, source in enumerate(sources, 1):
        lines = source.split("\n")
        code = _plain(lines)
        if parse("\n".join(code)) is None:
            code = [""] * len(lines)  # the other cells run nevertheless
        for at, (line, plain) in enumerate(zip(lines, code, strict=True), 1):
            found.append(CellLine(plain, line, f"cell {number}, line {at}"))
    return Notebook(tuple(_placed(file, found)), tuple(file.split("\n")))


def _source(cell: dict[str, object]) -> str:
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _plain(lines: list[str]) -> list[str]:
    """Return the cell's lines as Python, line for line."""
    if lines and lines[0].startswith("%%"):
        if _SHELL_CELL.match(lines[0]):
            script = "\n".join(["", *lines[1:]])
            # One call in the first line; the others stay empty, for the count's sake.
            return [f"import os; os.system({script!r})", *[""] * (len(lines) - 1)]
        if not _PYTHON_CELL.match(lines[0]):
            return [""] * len(lines)
    return [_magic(line) if _MAGIC.match(line) else line for line in lines]


def _magic(line: str) -> str:
    indent, body = line[: len(line) - len(line.lstrip())], line.strip()
    if match := _ENV.fullmatch(body):
        return f"{indent}import os; os.environ[{match.group(1)!r}] = {match.group(2)!r}"
    if body.startswith("!"):
        return f"{indent}import os; os.system({body[1:]!r})"
    return f"{indent}pass"


def _placed(file: str, lines: list[CellLine]) -> Iterator[CellLine]:
    """Place the lines in the file: looked for in order, by how JSON spells them."""
    at = row = misses = 0
    for line in lines:
        blank = not line.typed.strip()
        place = -1 if blank or misses >= _MISSES else _find(file, line.typed, at)
        if place < 0:
            misses += not blank
            yield line._replace(row=row)
            continue
        row += file.count("\n", at, place)
        at = place
        yield line._replace(row=row, column=place - file.rfind("\n", 0, place))


def _find(file: str, line: str, start: int) -> int:
    spelt = (json.dumps(line, ensure_ascii=ascii)[:-1] for ascii in (False, True))
    return next((at for text in spelt if (at := file.find(text, start)) >= 0), -1)
