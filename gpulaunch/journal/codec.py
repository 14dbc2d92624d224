"""Writes a fact as one line of `events.jsonl`, and reads it. Owns the line's form; opens no file.

    {"n":7,"t":"2026-11-20T07:42:15.123456Z","m":4242.000001,"e":"attempt_started",
     "job":"fold-a","attempt":1,"pid":4711,"c":"9c1185a5"}

n   the line's number, from 1, without a gap
t   when, UTC; m: the same on the machine's monotonic clock, in seconds
e   the fact's name, then its fields (`gpulaunch.shapes` says how each type is written)
c   CRC-32 in hex of the line's bytes without this member: `{"n":...,"pid":4711}`

Times have microseconds: an Instant made by `now` comes back exactly, so that a replayed Ledger
equals the live one.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any, get_args
from zlib import crc32

import msgspec
from msgspec import Struct

from gpulaunch.core.facts import FORMAT, Fact, RunOpened
from gpulaunch.core.model import Instant
from gpulaunch.shapes import RecordShape, UnknownKindError, coder_of, shape_of, snake_case

# Readable where it can be; `_ASCII` for text that UTF-8 cannot hold (names of files that are no
# UTF-8 carry surrogates, which come back exactly from their escapes).
_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_ASCII = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_OPENING = snake_case(RunOpened.__name__)
HEAD = b'{"n":'
"""How a line begins."""
_DIGITS = 15
"""Digits of a line's number, at most."""
_SECONDS = coder_of(float).decode
_SUM_OPENS, _SUM_BYTES = b',"c":"', len(b',"c":"00000000"}')


class BadLineError(ValueError):
    """A line is not what was written: torn, changed, or never a journal's."""


class FormatMismatchError(UnknownKindError):
    """The journal is of another form; `version` is the version of gpulaunch that wrote it."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.version = version


class JournalLine(Struct, frozen=True):
    """One line that was read and checked: its number, its fact, and when that came true."""

    number: int
    fact: Fact
    at: Instant


def now() -> Instant:
    """Return this moment, to the microsecond: such an Instant survives the journal exactly."""
    mono, utc = time.monotonic_ns() // 1000, time.time_ns() // 1000
    return Instant(mono / 1_000_000, utc / 1_000_000)


def encode(number: int, fact: Fact, at: Instant) -> bytes:
    """Return the fact's line, with its newline."""
    cls: type = type(fact)
    shape = shape_of(cls)
    head = f'{{"n":{number},{_stamp(at)},"e":"{shape.kind}"'
    fields = shape.encode(fact)
    body = head.encode() + (b"," + _fields_json(fields)[1:-1] if fields else b"")
    return body + b',"c":"%08x"}\n' % crc32(b"}", crc32(body))


@lru_cache(maxsize=8)
def _stamp(at: Instant) -> str:
    return f'"t":"{iso(at.utc)}","m":{at.mono:.6f}'


def decode(line: bytes) -> JournalLine:
    """Return the fact, number and time of a line, which is given without its newline.

    Raises BadLineError where the checksum or the form is wrong, UnknownKindError for what another
    version of gpulaunch wrote, FormatMismatchError for the opening of a journal of another form.
    """
    number, given = _number(body := _body(line)), _object(body)
    try:
        at, kind = _instant(given.pop("t"), given.pop("m")), given.pop("e")
        del given["n"]
    except (KeyError, ValueError, TypeError) as error:
        raise BadLineError(f"no line of a journal: {error!r:.100}") from None
    if kind == _OPENING and given.get("format") != FORMAT:
        raise FormatMismatchError(str(given.get("version", "another version")))
    shape = _shapes().get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise UnknownKindError(f"the fact {kind!r:.100}")
    try:
        if (job := given.get("job")) is not None and not is_file_name(job):
            raise BadLineError(f"a job's name must be a file name, found {job!r:.100}")
        return JournalLine(number, shape.decode(given), at)
    except UnknownKindError:
        raise
    except ValueError as error:
        raise BadLineError(str(error)) from None


def check(line: bytes) -> int:
    """Return the number of a line whose checksum holds, without reading its fact.

    Raises BadLineError.
    """
    return _number(_body(line))


def _fields_json(fields: dict[str, Any]) -> bytes:
    # Far quicker than `to_json`. It would write inf and nan as null: `shapes` makes them text.
    try:
        return _ENCODER.encode(fields)
    except UnicodeEncodeError:
        return to_json(fields)


def is_file_name(job: object) -> bool:
    """Return True for a job's name by which files can be named."""
    return (
        isinstance(job, str) and job not in ("", ".", "..") and "/" not in job and "\0" not in job
    )


def to_json(value: Any) -> bytes:
    """Return compact JSON in UTF-8. Raises ValueError for inf and nan, which JSON cannot say."""
    try:
        return _READABLE(value).encode()
    except UnicodeEncodeError:
        return _ASCII(value).encode()


def iso(utc: float) -> str:
    """Return seconds since 1970 as `2026-11-20T07:42:15.123456Z`."""
    seconds, micros = divmod(round(utc * 1_000_000), 1_000_000)
    return f"{_date(seconds)}.{micros:06d}Z"


def from_iso(text: str) -> float:
    """Return the seconds since 1970 that `iso` wrote. Raises ValueError for any other text."""
    if len(text) != 27 or text[19] != "." or text[26] != "Z":
        raise ValueError(f"expected a UTC time like 2026-11-20T07:42:15.123456Z, found {text!r}")
    return (_seconds(text[:19]) * 1_000_000 + int(text[20:26])) / 1_000_000


@cache
def _shapes() -> dict[str, RecordShape]:
    shapes = [shape_of(cls) for cls in get_args(Fact)]
    return {shape.kind: shape for shape in shapes}


@lru_cache(maxsize=64)
def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=64)
def _seconds(date: str) -> int:
    parsed = datetime.fromisoformat(date).replace(tzinfo=timezone.utc)
    return int(parsed.timestamp())


def _body(line: bytes) -> bytes:
    if line[-_SUM_BYTES:-10] != _SUM_OPENS or line[-2:] != b'"}':
        raise BadLineError("it does not end in a checksum")
    body, written = line[:-_SUM_BYTES], line[-10:-2]
    if b"%08x" % crc32(b"}", crc32(body)) != written:
        raise BadLineError("it does not match its checksum")
    return body


def _number(body: bytes) -> int:
    digits = body[len(HEAD) : body.find(b",", len(HEAD))]
    if not body.startswith(HEAD) or not digits.isdigit() or len(digits) > _DIGITS:
        raise BadLineError("no line of a journal: it does not begin with its number")
    return int(digits)


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = from_json(body + b"}")
    except ValueError:
        raise BadLineError("it is no JSON, though its checksum holds") from None
    if not isinstance(given, dict):
        raise BadLineError("it is no JSON object")
    return given


def from_json(text: bytes) -> Any:
    """Return the value of JSON text. Raises ValueError where it is none, or nested too deep."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(text.decode())  # surrogates, which `_ASCII` writes
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _instant(utc: Any, mono: Any) -> Instant:
    return Instant(_SECONDS(mono), _SECONDS(from_iso(utc)))
