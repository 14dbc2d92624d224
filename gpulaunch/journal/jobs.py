"""The jobs in a journal, without a replay: names and states at a glance, and added definitions.

    jobs ─text_of─▶ JobsGiven facts ─▶ events.jsonl ─additions_in─▶ jobs, for a later supervisor

The definitions are those of jobs that were added to a live list. Only a supervisor reads them, and
a client that has lost the answer to its addition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gpulaunch.core.facts import JobsGiven
from gpulaunch.core.model import Job, Params
from gpulaunch.errors import GpulaunchError
from gpulaunch.files import regular
from gpulaunch.journal import codec
from gpulaunch.journal.read import pieces
from gpulaunch.journal.rundir import RunDir

IN_A_FACT = 200
"""Jobs at most in one fact: a line of the journal is read and written whole."""
_MARK = b'"e":"jobs_given"'


class NotUnderstoodError(GpulaunchError):
    """Another version of gpulaunch wrote the jobs, or nobody did."""


class Addition(Struct, frozen=True):
    """Jobs that were added together, under the `name` of their addition."""

    name: str
    jobs: tuple[Job, ...]


def text_of(jobs: Sequence[Job]) -> str:
    """Return the definitions as JSON."""
    try:
        return _ENCODER.encode(jobs).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8
        plain = msgspec.to_builtins(jobs, enc_hook=_plain)
        return codec.to_json(plain).decode()


def jobs_of(text: str) -> tuple[Job, ...]:
    """Return the jobs of such a text. Raises NotUnderstoodError where it is none."""
    try:
        return msgspec.json.decode(text, type=tuple[Job, ...])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    try:
        plain = codec.from_json(text.encode())
        json.dumps(plain, ensure_ascii=False).encode(errors="surrogateescape")
        return msgspec.convert(plain, tuple[Job, ...])
    except (msgspec.MsgspecError, ValueError) as error:
        raise NotUnderstoodError(f"no jobs that this gpulaunch understands: {error}") from None


def facts_of(addition: str, jobs: Sequence[Job]) -> list[JobsGiven]:
    """Return the facts that record an addition."""
    left = iter(jobs)
    parts = list(iter(lambda: list(islice(left, IN_A_FACT)), []))
    last = len(parts) - 1
    return [JobsGiven(addition, text_of(part), at < last) for at, part in enumerate(parts)]


def additions_in(events: Path) -> Iterator[Addition]:
    """Yield the whole additions of a journal, in order. Raises UsageError where there is none."""
    parts: dict[str, list[Job]] = {}
    for fact in _facts(events):
        parts.setdefault(fact.addition, []).extend(jobs_of(fact.jobs))
        if not fact.more:
            yield Addition(fact.addition, tuple(parts.pop(fact.addition)))


def _facts(events: Path) -> Iterator[JobsGiven]:
    for line in pieces(events):
        if _MARK not in line:
            continue
        try:
            fact = codec.decode(line).fact
        except (codec.BadLineError, codec.UnknownKindError):
            continue  # what damage it is, the journal's reader says
        if isinstance(fact, JobsGiven):
            yield fact


def _plain(value: Any) -> Any:
    if isinstance(value, Params):
        return dict(value)
    raise NotImplementedError


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


MAX_BYTES = 1 << 28
"""Of a longer journal, the end is not looked at."""

_OF_JOB = re.compile(
    rb'"e":"(job_added|job_vanished|job_requeued|job_delayed|attempt_launched|job_settled)",'
    rb'"job":("(?:[^"\\]|\\.)*")(?:,"state":"(\w+)")?'
)
"""A journal's line begins with its kind and the job's name; in a text of a job's quotes are
escaped, so that none of them looks like one."""
_STATES = {b"job_vanished": "", b"attempt_launched": "running"}


def states_of(run: RunDir) -> dict[str, str]:
    """Return the states of a run's jobs by name, in the order of the list. Raises OSError.

    For a person who has typed half a name, and waits: ten thousand jobs take some 50 ms. A job that
    ran when its launcher was killed is told as running.
    """
    with open(run.events, "rb", opener=regular) as file:
        text = file.read(MAX_BYTES)
    states: dict[str, str] = {}
    for match in _OF_JOB.finditer(text):
        kind, name, settled = match.groups()
        state = settled.decode() if settled else _STATES.get(kind, "waiting")
        with suppress(ValueError):  # it is no name, and its line is damaged
            states[json.loads(name)] = state
    return states
