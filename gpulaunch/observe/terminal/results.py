"""Prints the table of `gpulaunch results` for people: as wide as the terminal, in their units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpulaunch.base.text import clip, clock, energy, several, size
from gpulaunch.observe.present import words
from gpulaunch.observe.results.cells import Cell
from gpulaunch.observe.results.table import ResultColumn, ResultTable
from gpulaunch.observe.terminal.terminal import UNBOUNDED, Line, LinePrinter

MAX_WIDTH = 32
"""Columns of the terminal that a column takes there at most; a job's name half as much again."""


_GAP = 2


_ALWAYS = ("name", "state")


_UNITS: Mapping[str, Callable[[float], str]] = {
    "seconds": lambda seconds: f"{seconds:.1f} s" if seconds < 10 else clock(seconds),
    "gpu_seconds": clock,
    "cpu_seconds": clock,
    "peak_gpu_memory": size,
    "peak_card_memory": size,
    "peak_resident": size,
    "mean_gpu_utilization": lambda part: f"{part:.0f} %",
    "energy": energy,
}


def print_results(printer: LinePrinter, table: ResultTable, width: int) -> list[str]:
    """Print a line for each run, and the table; return the columns that had no room.

    A column in which nothing is known is not shown. `width`: UNBOUNDED cuts nothing.
    """
    printer.print(_heads(table))
    shown, hidden = _that_fit(table, width)
    texts = [text for _, text, _ in shown]
    widths = [wide for _, _, wide in shown]
    rights = [column.kind in ("integer", "number") for column, _, _ in shown]
    printer.print([(("  ".join(_cells([t[0] for t in texts], widths, rights)).rstrip(), "dim"),)])
    for row in zip(*(text[1:] for text in texts), strict=True):
        if printer.broken:
            break
        printer.print([("  ".join(_cells(row, widths, rights)).rstrip(),)])
    return hidden


def _heads(table: ResultTable) -> Iterator[Line]:
    for run in table.runs:
        count = several(sum(run.counts.values()), "job")
        each = ", ".join(f"{words.count(number)} {state}" for state, number in run.counts.items())
        parts = [f"{count}: {each}" if each else count, "simulated cards" if run.simulated else ""]
        yield ((words.visible(run.label), "bold"), f"  {'; '.join(filter(None, parts))}")


def _that_fit(
    table: ResultTable, width: int
) -> tuple[list[tuple[ResultColumn, list[str], int]], list[str]]:
    """Return the columns that are shown, each with its texts and its width, and others' names."""
    shown: list[tuple[ResultColumn, list[str], int]] = []
    hidden: list[str] = []
    left = width
    for number, column in enumerate(table.columns):
        cells = [row[number] for row in table.rows]
        if not _is_told(column, cells, table):
            continue
        most = (MAX_WIDTH * (2 if column.name == "name" else 1)) if width < UNBOUNDED else None
        texts = [words.visible(column.name), *(_text(column, cell) for cell in cells)]
        texts = texts if most is None else [clip(text, most) for text in texts]
        wide = max(map(_width, texts))
        if width < UNBOUNDED and wide > left and column.name not in _ALWAYS:
            hidden.append(column.name)
            left = 0  # what comes after it is not shown before it
        else:
            shown.append((column, texts, wide))
            left -= wide + _GAP
    return shown, hidden


def _is_told(column: ResultColumn, cells: Iterable[Cell], table: ResultTable) -> bool:
    if column.name == "run":
        return len(table.runs) > 1
    return column.name in _ALWAYS or any(cell is not None for cell in cells)


def _text(column: ResultColumn, cell: Cell) -> str:
    if cell is None:
        return ""
    if column.source == "job" and column.name in _UNITS:
        assert isinstance(cell, int | float)
        return _UNITS[column.name](cell)
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"{cell:.6g}" if isinstance(cell, float) else words.visible(str(cell))


def _cells(row: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> Iterator[str]:
    for text, width, right in zip(row, widths, rights, strict=True):
        blank = " " * (width - _width(text))
        yield blank + text if right else text + blank


def _width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
