"""Owns the run's metrics.db: its schema, its one writer, its size. Nobody waits for it.

- A run's directory may be on NFS, where SQLite's write-ahead log does not work: a plain rollback
  journal, a transaction a second. Without fsync: what a power cut may cost are samples. A SIGKILL
  in the middle leaves a journal, from which the next that opens the file takes the step back.
- What cannot be written now (a full disk, a reader that holds the lock) is kept, for two minutes
  of it, and tried again with the next; then the oldest are lost. It is said once.
- A file that is not ours, or is torn, is set aside, never deleted; samples start afresh.
- The older samples are, the fewer are kept (`thin`).

The tables and the queries, by name, are in the .sql files beside this one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import asdict

from gpulaunch.base.files import regular
from gpulaunch.core.model import AttemptId
from gpulaunch.observe.metrics.model import AttemptSample, CardSample

APPLICATION = 0x67706C6D  # "gplm" in the file's header: whose database it is
VERSION = 2
_COLUMNS: Mapping[int, tuple[tuple[str, str], ...]] = {
    2: (("attempt", "energy"), ("card_now", "energy")),
}
"""By version: the columns (table, name) that it has more than the one before, each a REAL."""


def schema() -> list[str]:
    """Return the statements that make the tables."""
    lines = _text("schema.sql").splitlines()
    whole = "\n".join(line for line in lines if not line.startswith("--"))
    return [statement for statement in whole.split(";") if statement.strip()]


def upgrade(version: int) -> list[str]:
    """Return the statements that make the newest of an older version's tables."""
    return [f"ALTER TABLE {table} ADD COLUMN {name} REAL" for table, name in _lacking(version)]


def as_newest(version: int) -> list[str]:
    """Return the statements by which an older version's tables read as the newest do.

    They change no file: temporary views go before the tables whose names they have.
    """
    found: dict[str, list[str]] = {}
    for table, name in _lacking(version):
        found.setdefault(table, []).append(f"NULL AS {name}")
    return [
        f"CREATE TEMP VIEW {table} AS SELECT *, {', '.join(more)} FROM main.{table}"
        for table, more in found.items()
    ]


def _lacking(version: int) -> list[tuple[str, str]]:
    newer = range(version + 1, VERSION + 1)
    return [column for number in newer for column in _COLUMNS[number]]


@lru_cache
def queries() -> dict[str, str]:
    """Return the queries of queries.sql by name: each begins with a line `-- name: NAME`."""
    parts = re.split(r"^-- name: (\w+)\n", _text("queries.sql"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


# ── Thinning ──────────────────────────────────────────────────────────────────────────────────────

Number = TypeVar("Number", int, float)
CardRow: TypeAlias = tuple[float, float | None, int | None, float | None, int | None, str]
"""A row of `card_sample` without its card."""
AttemptRow: TypeAlias = tuple[float, int | None, float | None, int | None]
"""A row of `attempt_sample` without its attempt."""


def merge_cards(rows: Sequence[CardRow]) -> CardRow:
    """Merge samples: means of use and power, peaks of memory and temperature, all reasons."""
    at, utilization, memory, power, temperature, throttled = zip(*rows, strict=True)
    reasons = dict.fromkeys(chain.from_iterable(names.split(",") for names in throttled if names))
    return (
        math.fsum(at) / len(rows),
        _mean(utilization),
        _highest(memory),
        _mean(power),
        _highest(temperature),
        ",".join(reasons),
    )


def merge_attempts(rows: Sequence[AttemptRow]) -> AttemptRow:
    """Merge samples: peaks of memory; of the CPU seconds, which only grow, those at the end."""
    at, gpu_memory, cpu_seconds, resident = zip(*rows, strict=True)
    return (
        math.fsum(at) / len(rows),
        _highest(gpu_memory),
        _highest(cpu_seconds),
        _highest(resident),
    )


def card_sample(gpu: str, row: CardRow) -> CardSample:
    at, utilization, memory, power, temperature, throttled = row
    return CardSample(
        gpu=gpu,
        at=at,
        utilization=None if utilization is None else round(utilization),
        memory=memory,
        power=power,
        temperature=temperature,
        throttled=tuple(throttled.split(",")) if throttled else (),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _highest(values: Sequence[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


TIERS: tuple[tuple[float, float], ...] = ((600.0, 10.0), (3 * 3600.0, 60.0), (7 * 86400.0, 600.0))
"""From which age on (seconds), one sample in how many seconds."""


def thin(connection: sqlite3.Connection, now: float) -> None:
    """Thin what has come of age since the last time. Inside the caller's transaction.

        age                    one sample in      of each card or live attempt, at most
        to 10 minutes          1 s                     600
        to 3 hours             10 s                  1,020
        to 7 days              60 s                  9,900
        older                  600 s                   144 a day

    A week of 8 cards is 92,160 samples of the cards, and as many of the attempts where each card
    has one at all times: 13 MiB in all. An attempt that is over leaves what fits its length, at
    least one. Whatever happens, the file ends at MAX_STORE_BYTES.
    """
    query = queries()
    for age, step in TIERS:
        until = (now - age) // step * step
        found = connection.execute(query["thinned"], {"step": step}).fetchone()
        since = found[0] if found else 0.0
        if since > now:  # the clock has been set back: it may have been wrong all the time
            since = 0.0
        if since >= until:
            continue
        for kind, merge in (("card", merge_cards), ("attempt", merge_attempts)):
            _thin(connection, kind, merge, (since, until, step))
        connection.execute(query["set_thinned"], {"step": step, "until": until})


def _thin(
    connection: sqlite3.Connection,
    kind: str,
    merge: Callable[[Sequence[Any]], tuple[Any, ...]],
    span: tuple[float, float, float],
) -> None:
    query = queries()
    since, until, step = span
    bounds = {"since": since, "until": until}
    for (series,) in connection.execute(query[f"{kind}_series"], bounds).fetchall():
        rows = connection.execute(query[f"{kind}_old"], {**bounds, "series": series}).fetchall()
        for _, group in groupby(rows, key=lambda row: row[0] // step):
            several = list(group)
            if len(several) > 1:
                connection.executemany(query[f"{kind}_drop"], [(series, r[0]) for r in several])
                connection.execute(query[f"{kind}_put"], (series, *merge(several)))


# ── The writer ────────────────────────────────────────────────────────────────────────────────────

MAX_STORE_BYTES = 256 << 20
BACKLOG = 120
THIN_EVERY = 60.0
ASIDE = ".aside"

Step: TypeAlias = tuple[str, Mapping[str, object]]
"""A query's name and its values."""


class Store:
    """Never raises for what becomes of the file: `trouble` is told in words, once.

    `patience` in seconds is how long a write waits for a reader's lock.
    """

    def __init__(
        self,
        path: Path,
        trouble: Callable[[str], None] = lambda text: None,
        patience: float = 0.5,
    ) -> None:
        self._path = path
        self._trouble = trouble
        self._patience = patience
        self._told = False
        self._set_aside = False
        self._connection: sqlite3.Connection | None = None
        self._backlog: deque[Sequence[Step]] = deque(maxlen=BACKLOG)
        self._thin_at = 0.0

    def write(self, steps: Sequence[Step], now: float) -> bool:
        """Write all or nothing; return whether everything that was handed in so far is written."""
        if steps:
            self._backlog.append(steps)
        try:
            self._write(now)
        except sqlite3.OperationalError as error:
            self._tell(str(error))
        except sqlite3.DatabaseError as error:
            self._begin_afresh(str(error))
        except OSError as error:
            self._tell(error.strerror or str(error))
        return not self._backlog

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA journal_mode = DELETE")  # no empty file is left
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _write(self, now: float) -> None:
        connection = self._connection or self._open()
        query = queries()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for steps in self._backlog:
                for name, values in steps:
                    connection.execute(query[name], values)
            if now >= self._thin_at or now < self._thin_at - THIN_EVERY:
                thin(connection, now)
                self._thin_at = now + THIN_EVERY
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self._backlog.clear()

    def _open(self) -> sqlite3.Connection:
        """Open the database. Raises sqlite3.DatabaseError for a file that is not ours."""
        os.close(regular(self._path, os.O_WRONLY | os.O_CREAT))
        connection = sqlite3.connect(self._path, timeout=self._patience, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.execute("PRAGMA synchronous = OFF")
            (page,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count = {MAX_STORE_BYTES // page}")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:
                for statement in schema():
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION or not 1 <= version <= VERSION:
                raise sqlite3.DatabaseError("it is not a database of this gpulaunch's metrics")
            if version < VERSION:
                for statement in upgrade(version):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _begin_afresh(self, why: str) -> None:
        """Set the file aside for a new one, once: a second time the fault is not the file's."""
        self.close()
        if self._set_aside:
            self._tell(why)
            return
        self._set_aside = True
        try:
            for name in (self._path.name, self._path.name + "-journal"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(self._path.with_name(name), self._path.with_name(name + ASIDE))
        except OSError as error:
            self._tell(f"{why}; {error.strerror}")
            return
        self._tell(f"{why}: it is now {self._path.name}{ASIDE}, and a new one was begun", lost=True)

    def _tell(self, why: str, lost: bool = False) -> None:
        if not self._told:
            self._told = True
            after = "" if lost else "; samples are lost until it can be written again"
            self._trouble(f"{self._path.name}: {why}{after}")


# ── What is written ─────────────────────────────────────────────────────────────────────────────


def card_steps(sample: CardSample) -> list[Step]:
    values = {**asdict(sample), "throttled": ",".join(sample.throttled)}
    return [("know_gpu", {"gpu": sample.gpu}), ("card", values), ("card_now", values)]


def attempt_steps(sample: AttemptSample) -> list[Step]:
    values = {**asdict(sample), **_who(sample.attempt)}
    return [(name, values) for name in ("know_attempt", "attempt", "use")]


def energy_step(attempt: AttemptId, joules: float) -> Step:
    """Return the step that adds to the energy of an attempt which is known."""
    return "energy", {**_who(attempt), "joules": joules}


def pin_step(attempt: AttemptId, pin: str, why: str) -> Step:
    return "pin", {**_who(attempt), "pin": pin, "why": why}


def end_steps(
    attempt: AttemptId, gpus: int | None, seconds: float, cpu_seconds: float | None
) -> list[Step]:
    values = {**_who(attempt), "gpus": gpus, "seconds": seconds, "cpu_seconds": cpu_seconds}
    return [("end", values)]


def _who(attempt: AttemptId) -> dict[str, object]:
    return {"job": attempt.job, "number": attempt.number}
