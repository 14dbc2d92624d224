"""Writes a fact as one line of `events.jsonl`, and reads it. Owns the line's form; opens no file.

    {"n":7,"t":"2026-11-20T07:42:15.123456Z","m":4242.000001,"e":"attempt_started",
     "job":"fold-a","attempt":1,"pid":4711,"c":"9c1185a5"}

n   the line's number, from 1, without a gap
t   when, UTC; m: the same on the machine's monotonic clock, in seconds
e   the fact's name, then its fields (`core.values`): `attempt` as two members, "job" and "attempt"
c   CRC-32 in hex of the line's bytes without this member: `{"n":...,"pid":4711}`

Times have microseconds: an Instant made by `now` comes back exactly, so that a replayed Ledger
equals the live one.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args
from zlib import crc32

import msgspec
from msgspec import Struct

from gpulaunch.core.facts import FORMAT, Fact, RunOpened
from gpulaunch.core.model import Instant
from gpulaunch.core.values import LEAST_SECONDS, MOST_SECONDS

T = TypeVar("T")

# Readable where it can be; `_ASCII` for text that UTF-8 cannot hold (names of files that are no
# UTF-8 carry surrogates, which come back exactly from their escapes).
_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_ASCII = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_FACTS: Final[dict[str, type]] = {cls.__struct_config__.tag: cls for cls in get_args(Fact)}
"""The facts by their names."""
HEAD = b'{"n":'
"""How a line begins."""
_DIGITS = 15
"""Digits of a line's number, at most."""
MOST_INTEGER = (1 << 63) - 1
"""The largest whole number that is read: what SQLite, msgspec and C hold as well."""
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_SUM_OPENS, _SUM_BYTES = b',"c":"', len(b',"c":"00000000"}')


class UnknownKindError(ValueError):
    """A value is not one of this version's, though it is whole: another version wrote it."""


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
    fields = plain(fact)
    kind, attempt = fields.pop("e"), fields.pop("attempt", None)
    if attempt is not None:
        fields = {"job": attempt["job"], "attempt": attempt["number"], **fields}
    head = f'{{"n":{number},{_stamp(at)},"e":"{kind}"'
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
    cls = _FACTS.get(kind) if isinstance(kind, str) else None
    if cls is RunOpened and given.get("format") != FORMAT:
        raise FormatMismatchError(str(given.get("version", "another version")))
    if cls is None:
        raise UnknownKindError(f"the fact {kind!r:.100}")
    if (job := given.get("job")) is not None and not is_file_name(job):
        raise BadLineError(f"a job's name must be a file name, found {job!r:.100}")
    if "attempt" in given:
        given["attempt"] = {"job": given.pop("job", None), "number": given["attempt"]}
    return JournalLine(number, value_of(given, cls), at)


def check(line: bytes) -> int:
    """Return the number of a line whose checksum holds, without reading its fact.

    Raises BadLineError.
    """
    return _number(_body(line))


def plain(value: Struct) -> Any:
    """Return a struct as JSON has it."""
    return msgspec.to_builtins(value, enc_hook=dict)  # a Mapping of another class


def value_of(given: Any, cls: type[T]) -> T:
    """Return the value that JSON has so. Raises UnknownKindError where it fits no such value."""
    try:
        return msgspec.convert(given, cls)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # a key that UTF-8 cannot hold
        raise UnknownKindError(str(error)) from None


def _fields_json(fields: dict[str, Any]) -> bytes:
    try:  # far quicker than `to_json`
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
    """Return the value of JSON text, which all readers of the journal can bear.

    Raises ValueError where it is none, is nested too deep, has a number of more than 63 bits, or a
    text that no file can be named by.
    """
    try:
        value = _DECODER.decode(text)
        if _LONG_NUMBER.search(text):
            _refuse_unbearable(value)
        return value
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value = json.loads(text.decode())  # surrogates, which `_ASCII` writes
        _refuse_unbearable(value)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def _refuse_unbearable(value: Any) -> None:
    match value:
        case str():
            value.encode("utf-8", "surrogateescape")  # half a pair may stand for a byte
        case int() if not -MOST_INTEGER <= value <= MOST_INTEGER:
            raise ValueError("it has a number of more than 63 bits")
        case float() if not LEAST_SECONDS <= value <= MOST_SECONDS:
            raise ValueError("it has a time of no calendar")
        case dict():
            for key, inner in value.items():
                _refuse_unbearable(key)
                _refuse_unbearable(inner)
        case list():
            for inner in value:
                _refuse_unbearable(inner)


def _instant(utc: Any, mono: Any) -> Instant:
    if type(mono) not in (float, int) or not LEAST_SECONDS <= mono <= MOST_SECONDS:
        raise ValueError(f"expected a number of seconds, found {mono!r:.100}")
    return Instant(float(mono), from_iso(utc))
