"""Reads a run's metrics.db: while the run lives, after its end, and after a crash.

    reader = open_metrics(run.metrics)        None: nothing was measured, or it cannot be read
    reader.latest() ... reader.uses() ... reader.close()

Never raises for what is in the file: what cannot be read was not measured. Each call reads all it
returns at once and keeps no lock, so that a reader that is stopped does not hold the writer up.
`mark_last_seen` adds to a ledger the last signs of life of attempts whose end nobody recorded.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from gpulaunch.base.files import is_regular
from gpulaunch.core.model import AttemptId, PinState
from gpulaunch.observe.metrics.model import NOTHING, AttemptUse, CardSample, Measured
from gpulaunch.observe.metrics.store import (
    APPLICATION,
    VERSION,
    CardRow,
    as_newest,
    card_sample,
    merge_cards,
    queries,
)

BUSY_TIMEOUT = 2.0
UNREADABLE = (sqlite3.Error, UnicodeError, OverflowError)
"""What reading a damaged file raises: sqlite3 words its error by text that may be no UTF-8."""


def open_metrics(path: Path) -> MetricsReader | None:
    """Return a reader of the samples; None where there are none, or the file is not to be trusted.

    So it is with a torn file, one of others, and tables or values that are not written here.
    """
    reader = _opened(path)
    if reader is None or reader.has_samples:
        return reader
    reader.close()
    return None


def is_damaged(path: Path) -> bool:
    """Return True where there is a file that `open_metrics` does not trust, or cannot read."""
    reader = _opened(path)
    if reader is not None:
        reader.close()
    return reader is None and is_regular(path)


def _opened(path: Path) -> MetricsReader | None:
    if not is_regular(path):
        return None
    # A writer that was killed left a journal, which a read-only connection may not roll back. In
    # the directory of another user nothing is made or mended: SQLite follows links for its
    # journals, and as root it gives what it has made to the owner of the database.
    for mode in ("ro", "rw") if _is_own(path) else ("ro&immutable=1",):
        try:
            uri = f"file:{quote(str(path))}?mode={mode}"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
        except UNREADABLE:
            return None
        try:
            if _ours(connection):
                return MetricsReader(connection)
            connection.close()
            return None
        except UNREADABLE:
            connection.close()
    return None


def _is_own(path: Path) -> bool:
    try:
        return {os.stat(one).st_uid for one in (path, path.parent)} == {os.geteuid()}
    except OSError:
        return False


ALL = 1 << 62
"""More attempts than a run can have."""
PEAKS_READ = 20_000
"""Attempts of a run, the newest ones, whose peaks are read before another run begins."""


def peaks_of(paths: Iterable[Path]) -> dict[str, int]:
    """Return the bytes of its cards' memory that a job of each name took at most in these runs.

    `paths` are their metrics.db. An attempt counts however it ended.
    """
    peaks: dict[str, int] = {}
    for path in paths:
        reader = open_metrics(path)
        if reader is None:
            continue
        with reader:
            for use in reader.uses(PEAKS_READ).values():
                took = use.peak_gpu_memory or 0
                peaks[use.attempt.job] = max(took, peaks.get(use.attempt.job, 0))
    return peaks


def measured(path: Path) -> Measured:
    """Return what every attempt used, in one query, for a view of the whole run."""
    reader = open_metrics(path)
    if reader is None:
        return NOTHING
    with reader:
        return reader.measured()


def _ours(connection: sqlite3.Connection) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION or not 1 <= version <= VERSION:
        return False
    for view in as_newest(version):
        connection.execute(view)
    for unfit in ("unfit", "unfit_values"):
        if connection.execute(queries()[unfit]).fetchone()[0]:
            return False
    return True


class MetricsReader:
    """Made by `open_metrics`. For the thread that made it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> MetricsReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_samples(self) -> bool:
        """True once anything was measured."""
        rows = self._rows("anything")
        return bool(rows and rows[0][0])

    def latest(self) -> dict[str, CardSample]:
        """Return the newest sample of each card, by UUID; its `at` says how old it is."""
        rows = self._rows("latest", make=lambda row: (row[0], card_sample(row[0], row[1:])))
        return dict(rows)

    def counters(self) -> dict[str, tuple[float, float]]:
        """Return when (UTC) each card last told its counter of energy, and that, in joules."""
        return {gpu: (at, energy) for gpu, at, energy in self._rows("counters")}

    def measured(self) -> Measured:
        """Return what is known of all attempts."""
        energy, names = self.totals()
        return Measured(self.uses(), self.pins(), self.last_seen(), energy, names)

    def totals(self) -> tuple[float | None, bool]:
        """Return the joules of all attempts, None where none was measured; and whether the driver
        has ever named a process of any."""
        rows = self._rows("totals")
        return (rows[0][0], bool(rows[0][1])) if rows else (None, False)

    def last_seen(self) -> float | None:
        """Return when the newest sample of all was taken (UTC): the run lived then."""
        rows = self._rows("last_seen")
        return rows[0][0] if rows else None

    def cards(self, uuid: str, since: float = 0.0, most: int = 240) -> list[CardSample]:
        """Return a card's samples from `since` (UTC) on, in time order, at most about `most`.

        Neighbours are merged: their mean utilisation and power, their highest memory.
        """
        rows = cast(list[CardRow], self._rows("cards", {"gpu": uuid, "since": since}))
        return [card_sample(uuid, merge_cards(some)) for some in _chunks(rows, most)]

    def use(self, attempt: AttemptId) -> AttemptUse | None:
        """Return what the attempt used so far; None if it was not measured."""
        who = {"job": attempt.job, "number": attempt.number}
        return next(iter(self._rows("one_use", who, _use)), None)

    def uses(self, newest: int = ALL) -> dict[AttemptId, AttemptUse]:
        """Return what every measured attempt used; `newest`: of about so many, the last ones."""
        uses: list[AttemptUse] = self._rows("uses", {"newest": newest}, _use)
        return {use.attempt: use for use in uses}

    def pins(self) -> dict[AttemptId, tuple[PinState, str]]:
        """Return whether attempts' processes were proved to be on their own cards, and why.

        Not in it: those of which no process was seen on any card. "unverified": it cannot be told.
        """
        return {AttemptId(job, number): (pin, why) for job, number, pin, why in self._rows("pins")}

    def close(self) -> None:
        self._connection.close()

    def _rows(
        self,
        name: str,
        values: Mapping[str, object] | None = None,
        make: Callable[[Any], Any] = lambda row: row,
    ) -> list[Any]:
        try:
            rows = self._connection.execute(queries()[name], values or {}).fetchall()
            return [make(row) for row in rows]
        except UNREADABLE:
            return []


def _chunks(rows: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Return neighbours in at most `most` groups of nearly equal length."""
    count = min(len(rows), max(1, most))
    edges = [len(rows) * n // count for n in range(count + 1)] if count else [0]
    return [rows[a:b] for a, b in pairwise(edges)]


def _use(row: Sequence[Any]) -> AttemptUse:
    job, number, gpus, seconds, memory, memory_sum, memory_time, *rest = row
    card_memory, utilization, utilization_sum, utilization_time, cpu, resident, energy = rest
    return AttemptUse(
        attempt=AttemptId(job, number),
        peak_gpu_memory=memory,
        mean_gpu_memory=round(memory_sum / memory_time) if memory_time else None,
        peak_gpu_utilization=utilization,
        mean_gpu_utilization=utilization_sum / utilization_time if utilization_time else None,
        gpu_seconds=None if gpus is None else gpus * seconds,
        cpu_seconds=cpu,
        peak_resident=resident,
        peak_card_memory=card_memory,
        energy=energy,
        seconds=seconds,
        told=memory_time,
    )


# ── Last signs of life ────────────────────────────────────────────────────────────────────────────
