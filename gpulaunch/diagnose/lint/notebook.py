"""A notebook's code cells as one Python text, and where each of its lines stands in the file.

Magics become what they do: `%env A=B` an assignment, `!cmd` a call of a shell.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from gpulaunch.diagnose.lint.tree import parse

_ENV = re.compile(r"%(?:set_)?env\s+(\w+)\s*[= ]\s*(.*)")
_MISSES = 50
_MAGIC = re.compile(r"\s*[%!?]|\s*\w+\s*=\s*[!%]|[^#'\"]*\?\s*$")
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script bash)\b")
_PYTHON_CELL = re.compile(r"%%(?:time|timeit|capture|prun)\b")


@dataclass(frozen=True, slots=True)
class Notebook:
    """`text` is Python; of each line: its number in the file (from 0), the column there, as typed.

    `file` are the file's lines. `cells` says where it is for a person in Jupyter: `cell 3, line 2`.
    """

    text: str
    lines: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[str, ...]
    typed: tuple[str, ...]
    file: tuple[str, ...]

    def place(self, line: int, column: int) -> tuple[int, int, str]:
        """Line and column in the file, and that line, of a place in the text; all from 0."""
        row, start = self.lines[line], self.columns[line]
        magic = bool(_MAGIC.match(self.typed[line]))  # what it became stands elsewhere
        before = json.dumps("" if magic else self.typed[line][:column], ensure_ascii=False)
        return row, start + len(before) - 2 if start else 0, self.file[row]


def read(file: str) -> Notebook | None:
    """None where it is no notebook."""
    try:
        cells = json.loads(file)["cells"]
        sources = [_source(cell) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    python: list[str] = []
    typed: list[str] = []
    names: list[str] = []
    for number, source in enumerate(sources, 1):
        lines = source.split("\n")
        code = _plain(lines)
        if parse("\n".join(code)) is None:
            code = [""] * len(lines)  # the other cells run nevertheless
        for at, (line, plain) in enumerate(zip(lines, code, strict=True), 1):
            python.append(plain)
            typed.append(line)
            names.append(f"cell {number}, line {at}")
    places = _places(file, typed)
    return Notebook(
        "\n".join(python),
        tuple(line for line, _ in places),
        tuple(column for _, column in places),
        tuple(names),
        tuple(typed),
        tuple(file.split("\n")),
    )


def _source(cell: dict[str, object]) -> str:
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _plain(lines: list[str]) -> list[str]:
    """The cell's lines as Python, line for line."""
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


def _places(file: str, typed: list[str]) -> list[tuple[int, int]]:
    """Where each line stands in the file: looked for in order, by how JSON spells it."""
    found: list[tuple[int, int]] = []
    at = row = misses = 0
    for line in typed:
        place = _find(file, line, at) if line.strip() and misses < _MISSES else -1
        if place >= 0:
            row += file.count("\n", at, place)
            at = place
            found.append((row, place - file.rfind("\n", 0, place)))
        else:
            misses += bool(line.strip())
            found.append((row, 0))
    return found


def _find(file: str, line: str, start: int) -> int:
    spelt = (json.dumps(line, ensure_ascii=ascii)[:-1] for ascii in (False, True))
    return next((at for text in spelt if (at := file.find(text, start)) >= 0), -1)
