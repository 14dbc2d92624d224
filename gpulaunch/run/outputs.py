"""Results: what the jobs of one run or several came to, and what they left, as one table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from gpulaunch.base.errors import UsageError
from gpulaunch.base.text import clip, listing, several
from gpulaunch.core.ledger import JobRecord
from gpulaunch.core.model import JobState
from gpulaunch.journal.find import typed
from gpulaunch.observe.metrics.read import measured
from gpulaunch.observe.present import words
from gpulaunch.observe.results.cells import encodable
from gpulaunch.observe.results.gathering import DEFAULT_FILE, Gathered, gather
from gpulaunch.observe.results.table import JOB, PARAMS, ResultRun, ResultTable, table_of
from gpulaunch.run import lookup
from gpulaunch.run.lookup import FoundRun
from gpulaunch.run.options import NOBODY, Observer

MAX_UNREAD_TOLD = 10
"""Files that cannot be read which are named one by one."""
MAX_NAME_TOLD = 60
"""Characters of a column's name in a line."""


def results(
    runs: Sequence[str | os.PathLike[str]] = (),
    files: Sequence[str] | None = None,
    observer: Observer = NOBODY,
    *,
    states: Sequence[JobState] = (),
    only: Sequence[str] = (),
    sort: str | None = None,
    first: int | None = None,
) -> ResultTable:
    """Return a row for each job of these runs: its values, what it left, what it took.

    `runs` as for `status`, none is the newest one; one that is named twice counts once. `files`:
    the files whose values are columns, as paths in each job's `{{out}}`; None is metrics.json, if
    there is any. `states` and `only` (names and patterns) pick jobs. `sort`: the column by which
    the rows are sorted, falling with a `-` before it; else they stand in the order of the file.
    `first`: so many of them.

    The observer is told of what is missing or broken. Raises UsageError.
    """
    looked = checked_files(files)
    found = _found(runs, observer, only)
    gathered = Gathered()
    labels = _labels(found)
    tabled = [
        _gather(gathered, one, label, looked, states, only)
        for one, label in zip(found, labels, strict=True)
    ]
    if only and not states and not gathered.rows:
        raise UsageError(f"no job is called {', '.join(only)}")
    table = table_of(tabled, gathered.rows)
    for line in told(gathered, looked, files is not None):
        observer.note(line)
    return (table if sort is None else table.sorted_by(sort)).first(first)


def checked_files(files: Sequence[str] | None) -> list[str]:
    """Return the files to look for. Raises UsageError for what is no path inside `{{out}}`."""
    for file in files or ():
        if os.path.isabs(file) or ".." in file.split("/") or not os.path.basename(file):
            raise UsageError(
                f"--file {file}: expected a file's path inside each job's {{{{out}}}}, such as"
                f" {DEFAULT_FILE} or eval/scores.csv"
            )
    paths = map(os.path.normpath, files or (DEFAULT_FILE,))
    # Columns are told by their source: a file may be called as one of the others is.
    return list(dict.fromkeys(f"./{one}" if one in (JOB, PARAMS) else one for one in paths))


def _found(
    runs: Sequence[str | os.PathLike[str]], observer: Observer, jobs: Sequence[str]
) -> list[FoundRun]:
    """Return the runs, each once: gpulaunch-runs/* has the newest one as `latest` as well."""
    found: dict[Path, FoundRun] = {}
    for run in runs or (None,):
        directory = lookup.directory(run, observer, jobs)
        before = found.pop(directory.path, None)
        found[directory.path] = before or FoundRun(directory, observer)
    return list(found.values())


def _labels(found: Sequence[FoundRun]) -> list[str]:
    paths = [encodable(os.fspath(one.run.path)) for one in found]
    names = [os.path.basename(path) for path in paths]
    count = Counter(names)
    return [p if count[n] > 1 else n for p, n in zip(paths, names, strict=True)]


def _gather(
    into: Gathered,
    one: FoundRun,
    label: str,
    files: Sequence[str],
    states: Sequence[JobState],
    only: Sequence[str],
) -> ResultRun:
    """Add the run's jobs; return what the run is."""
    before = len(into.rows)

    def wanted(job: JobRecord) -> bool:
        return (not states or job.state in states) and (
            not only or any(job.name == each or fnmatchcase(job.name, each) for each in only)
        )

    used = measured(one.run.metrics)
    gather(into, one.run, one.ledger, used, files, label, wanted)
    counts = Counter(row.job.state for row in into.rows[before:])
    opening, path = one.ledger.opening, os.fspath(one.run.path)
    return ResultRun(
        label, opening.run, opening.name, path, one.state, opening.simulated, dict(counts)
    )


def told(gathered: Gathered, files: Sequence[str], asked: bool) -> list[str]:
    """Return lines on what is broken, missing or left out. `asked`: a person named the files."""
    lines = [f"{typed(Path(one.path))}: {one.why}" for one in gathered.unread[:MAX_UNREAD_TOLD]]
    more = len(gathered.unread) - MAX_UNREAD_TOLD
    if more > 0:
        lines.append(f"and {several(more, 'more such file')}")
    lines += [line for file in files if (line := _missing(gathered, file, asked))]
    if gathered.too_long:
        names = listing([clip(name, MAX_NAME_TOLD) for name in gathered.too_long])
        lines.append(f"left out, as texts or lists too long for a table: {names}")
    if gathered.cut:
        cut, first = several(gathered.cut, "column"), words.count(gathered.max_columns)
        lines.append(f"left out: {cut} or more beyond the first {first} of files")
    return list(map(words.visible, lines))


def _missing(gathered: Gathered, file: str, asked: bool) -> str:
    """Return a line on a file that jobs which succeeded did not leave; empty if all did."""
    absent, found = gathered.absent[file], gathered.found[file]
    if not absent:
        return ""
    if not found and not asked:
        return f"no job left a {file} in its {{{{out}}}}: --file names the one that they leave"
    of = several(absent + found, "job")
    line = f"{file}: {words.count(absent)} of {of} that succeeded left none"
    return line if found else f"{line}{_instead(gathered)}"


def _instead(gathered: Gathered) -> str:
    """Return what the first job that left anything did leave, for the end of a line."""
    for row in gathered.rows:
        with suppress(OSError):
            if row.job.state == "succeeded" and (names := os.listdir(str(row.own["out"]))):
                return f"; {row.job.name} left {listing(sorted(names))}"
    return ""
