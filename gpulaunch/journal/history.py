"""The files of archived jobs: a run's `history/`, with what its journal holds no more.

    0001-3fa9c1.jsonl.gz   a journal of its own: the openings of the run, the facts of these jobs
    0001-3fa9c1.jobs       a line per job: its name and state, in the order of their ends

The journal names the files that count (`Ledger.history`): one that it does not name is the remains
of a compaction that came to nothing. A job lies in exactly one of them. Nothing changes a file that
counts.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpulaunch.core.facts import AttemptFact, Fact, GpuReported, JobFact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.errors import UsageError
from gpulaunch.files import regular
from gpulaunch.journal import codec
from gpulaunch.journal.read import fold
from gpulaunch.journal.rundir import RunDir

FACTS, NAMES = ".jsonl.gz", ".jobs"
_OPENED = b'"e":"run_opened"'


def new_stem(number: int) -> str:
    """Return what a new pair of files is called: the `number`-th of its run."""
    return f"{number:04}-{os.urandom(3).hex()}"


def facts_in(run: RunDir, stem: str, job: str | None = None) -> Iterator[tuple[Fact, Instant]]:
    """Yield the facts of one file; with `job`, those of that job and what may speak of it.

    Raises UsageError where it cannot be read as it was written.
    """
    named = None if job is None else (_OPENED, *_marks(job))
    path = run.history / f"{stem}{FACTS}"
    try:
        with open(path, "rb", opener=regular) as raw, gzip.open(raw) as file:
            for line in file:
                if named is not None and not any(mark in line for mark in named):
                    continue
                read = codec.decode(line[:-1])
                if job is None or _job_of(read.fact) in (None, job):
                    yield read.fact, read.at
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{path} is not what was written: {error}") from None


def ledger_of(run: RunDir, stem: str, job: str | None = None) -> Ledger:
    """Return what one file says of its jobs, or of that one. Raises as `facts_in` does."""
    ledger = Ledger()
    for fact, at in facts_in(run, stem, job):
        if job is not None and isinstance(fact, GpuReported):
            fact = replace(fact, attempts=tuple(a for a in fact.attempts if a.job == job))
        fold(ledger, fact, at, f"{run.history / stem}{FACTS}")
    return ledger


def _marks(job: str) -> tuple[bytes, bytes]:
    """Return what lines that speak of the job have: its name, and that as JSON inside JSON."""
    name = codec.to_json(job)
    return name, codec.to_json(name.decode())[1:-1]


def _job_of(fact: Fact) -> str | None:
    if isinstance(fact, JobFact):
        return fact.name
    return fact.attempt.job if isinstance(fact, AttemptFact) else None


def names_in(run: RunDir, stem: str) -> list[str]:
    """Return the names of the jobs of one file. Raises UsageError where it cannot be read."""
    return [name for name, _ in _rows(_text(run, stem))]


def stem_of(run: RunDir, stems: Sequence[str], name: str) -> str | None:
    """Return the newest file that holds the job of this name; None for none.

    Raises UsageError where one cannot be read.
    """
    wanted = b"\n" + _row_begins(name)
    return next((s for s in reversed(stems) if wanted in b"\n" + _text(run, s)), None)


def row(name: str, state: str) -> bytes:
    """Return the line of one job, with its newline."""
    return _row_begins(name) + codec.to_json(state) + b"]\n"


def _row_begins(name: str) -> bytes:
    return b"[" + codec.to_json(name) + b","


def _rows(text: bytes) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, state = json.loads(line.decode())
        yield name, state


def _text(run: RunDir, stem: str) -> bytes:
    path: Path = run.history / f"{stem}{NAMES}"
    try:
        with open(path, "rb", opener=regular) as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
