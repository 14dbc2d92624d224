"""The table as CSV, and the JSON of `gpulaunch results --json`."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING

from gpulaunch.contracts import SCHEMA
from gpulaunch.results.cells import Cell, spelled
from gpulaunch.results.table import ResultTable

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import ResultsDocument


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
