"""The table: rows of several runs under one head, each column of one type; CSV, JSON, Parquet.

Columns stand in the order in which one reads them: which job, what was varied, what came out, what
it took. A name that is taken gets its source before it: `metrics.lr` beside the parameter `lr`.
Pure: writes no file. Alone imports pyarrow, which is an extra.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.base.text import listing
from gpulaunch.core.model import JobState, RunState
from gpulaunch.observe.results.cells import (
    Cell,
    Kind,
    as_kind,
    encodable,
    from_texts,
    kind_of,
    spelled,
)
from gpulaunch.observe.results.gathering import JobValues

if TYPE_CHECKING:
    from gpulaunch.base.documents import ResultsDocument


FIRST: Mapping[str, Kind] = {"run": "text", "name": "text", "state": "text"}
LAST: Mapping[str, Kind] = {
    "seconds": "number",
    "attempts": "integer",
    "left_behind": "integer",
    "failure": "text",
    "card": "text",
    "peak_gpu_memory": "integer",
    "peak_card_memory": "integer",
    "mean_gpu_utilization": "number",
    "gpu_seconds": "number",
    "cpu_seconds": "number",
    "peak_resident": "integer",
    "energy": "number",
    "out": "text",
}
OWN: Mapping[str, Kind] = {**FIRST, **LAST}
"""gpulaunch's own columns: before those of params and files, and after them."""

JOB, PARAMS = "job", "params"
"""The sources of columns beside files, which are called by their names."""

Key: TypeAlias = tuple[str, str]
"""A source, and the name there."""


class ResultRun(Struct, frozen=True):
    """A run that is in the table: `label` is what its rows call it, `directory` its path.

    `counts`: of its jobs that were asked for, shown or not, how many there are in each state.
    """

    label: str
    id: str
    name: str
    directory: str
    state: RunState
    simulated: bool
    counts: Mapping[JobState, int] = {}


class ResultColumn(Struct, frozen=True):
    """A column: its name, where its values are from (JOB, PARAMS or a file), its type."""

    name: str
    source: str
    kind: Kind


class ResultTable(Struct, frozen=True):
    """A row a job, its cells in the order of the columns."""

    runs: tuple[ResultRun, ...]
    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def column(self, name: str) -> list[Cell]:
        """Return a column's cells. Raises UsageError where there is no such column."""
        number = self._number(name)
        return [row[number] for row in self.rows]

    def sorted_by(self, name: str) -> ResultTable:
        """Return the rows by a column's values, rising; falling for `-name`. None comes last.

        Raises UsageError where there is no such column.
        """
        falling = name.startswith("-") and not any(one.name == name for one in self.columns)
        number = self._number(name[1:] if falling else name)
        known = [row for row in self.rows if not _is_missing(row[number])]
        known.sort(key=lambda row: _order(row[number]), reverse=falling)
        rest = [row for row in self.rows if _is_missing(row[number])]
        return replace(self, rows=(*known, *rest))

    def first(self, count: int | None) -> ResultTable:
        """Return the first rows; all for None."""
        return self if count is None else replace(self, rows=self.rows[:count])

    def _number(self, name: str) -> int:
        names = [one.name for one in self.columns]
        if name in names:
            return names.index(name)
        near = get_close_matches(name, names, 1)
        told = f"did you mean {near[0]}?" if near else f"there are {listing(names, 40)}"
        raise UsageError(f"no column is called {name}; {told}")


def _is_missing(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _order(cell: Cell) -> tuple[object, ...]:
    """Return a key: texts by the numbers in them, so that fold-2 comes before fold-10."""
    if not isinstance(cell, str):
        return (cell,)
    parts = re.split(r"0*([0-9]+)", cell)  # by length, then digits: Python bounds those of an int
    return tuple((len(part), part) if n % 2 else part for n, part in enumerate(parts))


def table_of(runs: Sequence[ResultRun], jobs: Sequence[JobValues]) -> ResultTable:
    """Return the table of these jobs, in their order."""
    cells = [_by_source(job) for job in jobs]
    found: dict[str, dict[str, None]] = {PARAMS: {}}
    for one in cells:
        for source, values in one.items():
            if source != JOB:
                found.setdefault(source, {}).update(dict.fromkeys(values))
    order = [(JOB, name) for name in FIRST]
    order += ((source, name) for source, names in found.items() for name in names)
    order += ((JOB, name) for name in LAST)
    named = _names(order)
    heads, columns = [], []
    for source, name in order:
        kind, column = _typed((source, name), [one.get(source, {}).get(name) for one in cells])
        heads.append(ResultColumn(named[source, name], source, kind))
        columns.append(column)
    return ResultTable(tuple(runs), tuple(heads), tuple(zip(*columns, strict=True)))


def _by_source(job: JobValues) -> dict[str, Mapping[str, Cell]]:
    params = {encodable(name): text for name, text in job.job.definition.params.items()}
    return {JOB: job.own, PARAMS: params, **{file: left.cells for file, left in job.left}}


def _typed(key: Key, cells: Sequence[Cell]) -> tuple[Kind, list[Cell]]:
    source, name = key
    if source == JOB:
        return OWN[name], as_kind(cells, OWN[name])
    if source == PARAMS:
        cells = from_texts([None if cell is None else str(cell) for cell in cells])
    kind = kind_of(cells)
    return kind, as_kind(cells, kind)


def _names(order: Sequence[Key]) -> dict[Key, str]:
    """Return each column's name: its own, with its source before it where that is taken."""
    names: dict[Key, str] = {(JOB, name): name for name in OWN}
    taken = set(OWN)
    sources = dict.fromkeys(source for source, _ in order if source != JOB)
    for source in sources:
        theirs = [name for other, name in order if other == source]
        # All that are free first: a name that is made up must not take that of another column.
        free = [name for name in theirs if name not in taken]
        names.update({(source, name): name for name in free})
        taken.update(free)
        for name in theirs:
            if (source, name) not in names:
                names[source, name] = _prefixed(source, name, taken)
                taken.add(names[source, name])
    return names


def _prefixed(source: str, name: str, taken: set[str]) -> str:
    file = source.rpartition("/")[2]
    stem = file.rpartition(".")[0] or file
    made = f"{stem}.{name}"
    while made in taken:
        made = f"{stem}.{made}"
    return made


# ── CSV, and the JSON of `gpulaunch results --json` ───────────────────────────────────────────────


def results_json(table: ResultTable) -> ResultsDocument:
    """Return what `results --json` prints."""
    names = [column.name for column in table.columns]
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "run": run.label,
                "id": run.id,
                "name": run.name,
                "dir": run.directory,
                "state": run.state,
                "simulated": run.simulated,
            }
            for run in table.runs
        ],
        "columns": [
            {"name": column.name, "source": column.source, "type": column.kind}
            for column in table.columns
        ],
        "rows": [dict(zip(names, map(finite, row), strict=True)) for row in table.rows],
    }


def finite(cell: Cell) -> Cell:
    """Return the cell as JSON can have it: None for NaN and infinity."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def results_csv(table: ResultTable) -> bytes:
    """Return the table as CSV, UTF-8, with a line of names. What is not known is empty."""
    text = io.StringIO()
    # Up to 3.12, what holds a carriage return is quoted only where that ends lines, too.
    writer = csv.writer(_UnixLines(text), lineterminator="\r\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([spelled(cell) for cell in row] for row in table.rows)
    return text.getvalue().encode()


class _UnixLines:
    """Ends each line that the CSV writer writes by a new line alone."""

    def __init__(self, text: io.StringIO) -> None:
        self._text = text

    def write(self, line: str) -> int:
        return self._text.write(f"{line[:-2]}\n")


# ── Parquet ───────────────────────────────────────────────────────────────────────────────────────


def results_parquet(table: ResultTable) -> bytes:
    """Return the table as a Parquet file: each column with its type, null for what is not known."""
    import pyarrow
    from pyarrow import parquet

    types = {
        "boolean": pyarrow.bool_(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "text": pyarrow.string(),
    }
    heads = table.columns
    columns = list(zip(*table.rows, strict=True)) or [()] * len(heads)
    arrays = [
        pyarrow.array(cells, types[head.kind]) for head, cells in zip(heads, columns, strict=True)
    ]
    schema = pyarrow.schema([(head.name, types[head.kind]) for head in heads])
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), sink)
    return bytes(sink.getvalue())
