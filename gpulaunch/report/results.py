"""The page's table of results: which columns and rows of it a page can hold, as JSON. Pure.

The script draws the table and a plot of two of its columns. Numbers have six digits, memory is in
MiB; each text of a column is said once, and then meant by its number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpulaunch.digest import words
from gpulaunch.report.fold import Period, cut_off
from gpulaunch.report.model import ResultsOfRun
from gpulaunch.results.cells import Cell
from gpulaunch.results.gathering import Gathered, JobValues
from gpulaunch.results.table import JOB, PARAMS, ResultColumn, ResultTable, table_of
from gpulaunch.text import clip, several

MAX_ROWS = 10_000
MAX_COLUMNS = 40
"""Of parameters and files together; gpulaunch's own come on top."""
MAX_TEXT = 120
"""Characters of a text in a cell."""
MIB = 1 << 20

SHOWN_OWN = (
    "seconds",
    "attempts",
    "peak_gpu_memory",
    "mean_gpu_utilization",
    "peak_resident",
    "energy",
)
"""gpulaunch's own columns that are in the page, beside the job and its state."""


def results_of(gathered: Gathered, when: Period) -> ResultsOfRun | None:
    """Return a run's results for its page; None where its jobs have no values of their own."""
    rows = [_as_it_ended(row, when) for row in gathered.rows]
    table = table_of([], rows)
    theirs = [number for number, head in enumerate(table.columns) if head.source != JOB]
    if not theirs:
        return None
    own = [number for number, head in enumerate(table.columns) if _is_shown(table, number, head)]
    state = [head.name for head in table.columns].index("state")
    chosen = [state, *theirs[:MAX_COLUMNS], *own]
    left_out = len(theirs[MAX_COLUMNS:]) + gathered.cut
    picked = replace(
        table,
        columns=tuple(table.columns[number] for number in chosen),
        rows=tuple(tuple(row[number] for number in chosen) for row in table.rows),
    )
    names = tuple(row.job.name for row in rows)
    return ResultsOfRun(picked, names, tuple(_notes(gathered, left_out)))


def _as_it_ended(row: JobValues, when: Period) -> JobValues:
    last = row.job.attempts[-1] if row.job.attempts else None
    if row.job.state != "running" or last is None or not cut_off(last, when):
        return row
    return replace(row, own={**row.own, "state": "cut off"})


def _is_shown(table: ResultTable, number: int, head: ResultColumn) -> bool:
    known = (row[number] is not None for row in table.rows)
    return head.source == JOB and head.name in SHOWN_OWN and any(known)


def _notes(gathered: Gathered, columns: int) -> list[str]:
    """Return what the table lacks, a sentence each."""
    rows, more = several(len(gathered.rows), "job"), gathered.more
    unlooked, unread = gathered.unlooked, len(gathered.unread)
    said = {
        f"The first {rows}; {words.count(more)} more have no row here.": more > 0,
        f"{several(columns, 'more column')} had no room here.": columns > 0,
        f"{several(unread, 'file')} could not be read.": unread > 0,
        f"Of {several(unlooked, 'job')} no file was looked for: it took too long.": unlooked > 0,
    }
    return [sentence for sentence, holds in said.items() if holds]


def drawn(results: ResultsOfRun, number_of: Mapping[str, int]) -> dict[str, Any]:
    """Return the table as the script has it. `number_of`: jobs' numbers in the page, by name."""
    columns = list(zip(*results.table.rows, strict=True)) or [()] * len(results.table.columns)
    return {
        "jobs": [number_of[name] for name in results.names],
        "columns": [
            _column(head, cells) for head, cells in zip(results.table.columns, columns, strict=True)
        ],
    }


def _column(head: ResultColumn, cells: Sequence[Cell]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": words.visible(head.name),
        "own": head.source == JOB,
        "param": head.source == PARAMS,
        "kind": head.kind,
    }
    if head.kind == "text":
        texts: dict[str, int] = {}
        told["cells"] = [_numbered(cell, texts) for cell in cells]
        told["texts"] = list(texts)
    elif head.source == JOB and head.name.startswith("peak_"):
        told["cells"] = [None if cell is None else round(float(cell) / MIB) for cell in cells]
    else:
        told["cells"] = [_short(cell) for cell in cells]
    return told


def _numbered(cell: Cell, texts: dict[str, int]) -> int | None:
    if cell is None:
        return None
    return texts.setdefault(clip(words.visible(str(cell)), MAX_TEXT), len(texts))


def _short(cell: Cell) -> Cell:
    """Return a number to six digits; what JSON has not, as a text."""
    if not isinstance(cell, float):
        return cell
    if not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else "∞" if cell > 0 else "−∞"
    short = float(f"{cell:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
