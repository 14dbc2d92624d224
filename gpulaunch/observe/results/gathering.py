"""Gathers what a run knows of its jobs and what these left: the values of a row each.

Of a job it is the last attempt that counts. Its file (JSON, JSON lines, CSV) is looked for in that
attempt's `{{out}}`, then in the job's `{{keep}}`. What several lines or rows say of one name, an
epoch a line as a rule, counts by its last value. Waits for nothing and reads no more than
MAX_LEFT_BYTES of a file: a job may leave anything under that name.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct, field

from gpulaunch.base.files import read_bytes
from gpulaunch.base.text import several
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import SETTLED_STATES, AttemptId
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.model import AttemptUse, Measured
from gpulaunch.observe.present.usage import energy_of
from gpulaunch.observe.results.cells import (
    MAX_CELL_CHARACTERS,
    Cell,
    TooLongError,
    cell,
    encodable,
    flat,
    scalar,
)

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


# ── A row of values ───────────────────────────────────────────────────────────────────────────────

DEFAULT_FILE = "metrics.json"
MAX_FILE_COLUMNS = 1_000
"""Columns of files that a table has. A file with a name for each sample, or with other names in
each job, has more: only what is shown is kept of it, for what all jobs left has no bound."""
_UNMEASURED = AttemptUse(AttemptId("", 0))


class JobValues(Struct, frozen=True):
    """What is known of one job, by source: its own, its params, then those of each file."""

    job: JobRecord
    own: dict[str, Cell]
    left: tuple[tuple[str, LeftValues], ...] = ()


class UnreadFile(Struct, frozen=True):
    """A file that a job left and that cannot be read: where it is, and why, in words."""

    path: str
    why: str


class Gathered(Struct):
    """What was gathered, of one run or several.

    `found` and `absent`: by file, how many jobs that succeeded left it and did not. `too_long`: by
    name, in how many files its value takes too much room. `unlooked`: jobs whose files were not
    looked for any more, for want of time. `columns`: the names that files may have values for, by
    file, `max_columns` at most; `cut`: how many more one file had. `more`: jobs beyond `max_rows`.
    """

    rows: list[JobValues] = field(default_factory=list)
    unread: list[UnreadFile] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    absent: Counter[str] = field(default_factory=Counter)
    too_long: Counter[str] = field(default_factory=Counter)
    unlooked: int = 0
    max_rows: int | None = None
    more: int = 0
    max_columns: int = MAX_FILE_COLUMNS
    columns: set[tuple[str, str]] = field(default_factory=set)
    cut: int = 0

    def has_place(self, file: str, name: str) -> bool:
        """Tell whether the values of that name are kept; the first names are."""
        if (file, name) in self.columns:
            return True
        if len(self.columns) >= self.max_columns:
            return False
        self.columns.add((file, name))
        return True


def gather(
    into: Gathered,
    run: RunDir,
    ledger: Ledger,
    measured: Measured,
    files: Sequence[str],
    label: str = "",
    wanted: Callable[[JobRecord], bool] = lambda job: True,
    in_time: Callable[[], bool] = lambda: True,
) -> None:
    """Add a row for each job of a ledger that is wanted and not gone from its job file.

    `label`: the run, as its rows call it. `in_time`: whether there is time to look into files.
    """
    for job in ledger.jobs.values():
        if job.gone or not wanted(job):
            continue
        if into.max_rows is not None and len(into.rows) >= into.max_rows:
            into.more += 1
            continue
        last = _last(job)
        left: tuple[tuple[str, LeftValues], ...] = ()
        if in_time():
            left = tuple(_left(into, run, job, last, files))
        else:
            into.unlooked += 1
        own = _own(run, ledger, job, last, measured)
        into.rows.append(JobValues(job, {"run": label, **own}, left))


def _last(job: JobRecord) -> AttemptRecord | None:
    """Return the last attempt whose turn has come."""
    return next((one for one in reversed(job.attempts) if not one.unbegun), None)


def _own(
    run: RunDir, ledger: Ledger, job: JobRecord, last: AttemptRecord | None, measured: Measured
) -> dict[str, Cell]:
    """Return what gpulaunch knows, in the units of `status --json`. OWN has the columns."""
    use = (measured.uses.get(last.id) if last else None) or _UNMEASURED
    over = last is not None and bool(last.ended or last.seen)
    return {
        "name": encodable(job.name),
        "state": job.state,
        "seconds": round(last.seconds, 3) if last and over else None,
        "attempts": sum(not one.unbegun for one in job.attempts),
        "left_behind": (last.left if last else 0) or None,
        "failure": last.failure if last else None,
        "card": _cards(ledger, last),
        "peak_gpu_memory": use.peak_gpu_memory,
        "peak_card_memory": use.peak_card_memory,
        "mean_gpu_utilization": _rounded(use.mean_gpu_utilization),
        "gpu_seconds": _rounded(use.gpu_seconds),
        "cpu_seconds": _rounded(use.cpu_seconds),
        "peak_resident": use.peak_resident,
        "energy": _rounded(energy_of(job.attempts, measured)),
        "out": _out(run, last),
    }


def _cards(ledger: Ledger, last: AttemptRecord | None) -> str | None:
    known = (ledger.gpus.get(uuid) for uuid in last.gpus) if last else ()
    names = dict.fromkeys(record.gpu.name for record in known if record and record.gpu.name)
    return encodable(", ".join(names)) or None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _out(run: RunDir, last: AttemptRecord | None) -> str | None:
    try:
        path = run.out_dir(last.id) if last else ""
    except ValueError:  # the name is no file's: the journal was forged
        return None
    return encodable(path) if path and os.path.isdir(path) else None


# ── The files that jobs left ────────────────────────────────────────────────────────────────────


def _left(
    into: Gathered, run: RunDir, job: JobRecord, last: AttemptRecord | None, files: Sequence[str]
) -> Iterable[tuple[str, LeftValues]]:
    """Yield what each file of the job says; `into` learns of those that are not there or broken."""
    for file in files if last is not None else ():
        try:
            places = _places(run, job, last, file)
            values = _values(into, file, places, job.state in SETTLED_STATES)
        except ValueError:
            continue
        if job.state == "succeeded":
            (into.absent if values is None else into.found)[file] += 1
        if values is not None:
            into.too_long.update(values.too_long)
            into.cut = max(into.cut, values.cut)
            yield file, values


def _places(run: RunDir, job: JobRecord, last: AttemptRecord | None, file: str) -> list[str]:
    """Return the paths at which the file may be. Raises ValueError for a name that is no file's."""
    assert last is not None
    return [f"{run.out_dir(last.id)}/{file}", f"{run.keep_dir(job.name)}/{file}"]


def _values(into: Gathered, file: str, places: Iterable[str], settled: bool) -> LeftValues | None:
    """Return what the first file that is there says. Of a job that runs it may be half written."""
    for path in places:
        try:
            values = read_values(path, partial(into.has_place, file))
        except LeftFileError as error:
            if settled:
                into.unread.append(UnreadFile(path, str(error)))
            return LeftValues({}) if settled else None
        if values is not None:
            return values
    return None
