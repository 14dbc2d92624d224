"""Jobs that were added to a live list: their definitions in the journal, whole.

    jobs ─text_of─▶ JobsGiven facts ─▶ events.jsonl ─given_in─▶ jobs, for a later supervisor

A view has no need of them: only a supervisor, and who has lost the answer to an addition, look.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gpulaunch.core.facts import JobsGiven
from gpulaunch.core.model import Job, Params
from gpulaunch.errors import GpulaunchError
from gpulaunch.journal import codec
from gpulaunch.journal.read import pieces
from gpulaunch.shapes import UnknownKindError

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
        except (codec.BadLineError, UnknownKindError):
            continue  # what damage it is, the journal's reader says
        if isinstance(fact, JobsGiven):
            yield fact


def _plain(value: Any) -> Any:
    if isinstance(value, Params):
        return dict(value)
    raise NotImplementedError


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
