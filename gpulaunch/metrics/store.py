"""Writes the run's metrics.db. One writer, many readers, and nothing that others wait for.

- A run's directory may be on NFS, where SQLite's write-ahead log does not work: a plain rollback
  journal, a transaction a second. Without fsync: what a power cut may cost are samples. A SIGKILL
  in the middle leaves a journal, from which the next that opens the file takes the step back.
- What cannot be written now (a full disk, a reader that holds the lock) is kept, for two minutes
  of it, and tried again with the next; then the oldest are lost. It is said once.
- A file that is not ours, or is torn, is set aside, never deleted; samples start afresh.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import asdict

from gpulaunch.core.model import AttemptId
from gpulaunch.files import regular
from gpulaunch.metrics.model import AttemptSample, CardSample
from gpulaunch.metrics.sql import APPLICATION, VERSION, queries, schema, upgrade
from gpulaunch.metrics.thin import thin

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
