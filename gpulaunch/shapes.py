"""Turns structs (msgspec) into plain JSON values and back, for journal, manifest and control.

Owns how a type is written; knows no fact, file or socket. Built once for each type, from its
annotations:

    str int bool float None   themselves (text that no file can be named by, numbers of more than
                              63 bits and times of no calendar are refused)
    Literal[...]              itself, checked when read
    tuple[T, ...]             a list
    frozenset[T]              a sorted list
    Mapping[str, T]           an object
    a struct                  an object of its fields
    a union of structs        the same with "kind" first: the class's name in snake_case
    AttemptId as `attempt`    two members, "job" and "attempt"; `name` in JobAdded, JobSettled ...
                              is written "job" as well, so that one key finds all about a job

A field whose type is marked as Sparse is left out where it holds its default.

Reading is strict: a member too many, one too few (unless the field has a default) or of another
type is a ValueError that names it.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from gpulaunch.core.model import AttemptId

MOST_INTEGER = (1 << 63) - 1
"""The largest whole number that is read: what SQLite, msgspec and C hold as well."""
MOST_ATTEMPTS = 1_000_000_000
"""The largest number of an attempt."""
LEAST_SECONDS, MOST_SECONDS = -62e9, 250e9
"""The bounds of numbers with a fraction: shortly within Python's first and last date.

All such numbers are spans or times since 1970, in seconds.
"""

Encode: TypeAlias = Callable[[Any], Any]
Decode: TypeAlias = Callable[[Any], Any]


class UnknownKindError(ValueError):
    """A kind or a member that this version does not know: another version wrote it."""


class Coder(Struct, frozen=True):
    """How values of one type are written and read. `encode` is None where nothing changes."""

    encode: Encode | None
    decode: Decode

    def plain(self, value: Any) -> Any:
        """Return the value as JSON has it."""
        return value if self.encode is None else self.encode(value)


class Member(Struct, frozen=True):
    """A field as it is written: `key` is its name in JSON. `unsaid`: the value not written."""

    field: str
    key: str
    coder: Coder
    required: bool
    unsaid: Any


class RecordShape(Struct, frozen=True):
    """How one struct is written. `attempt`: it has that field, written as two members."""

    cls: type
    kind: str
    members: tuple[Member, ...]
    keys: frozenset[str]
    attempt: bool
    reads: tuple[tuple[str, str, Decode, bool], ...]  # the members again, flat: this is hot
    writes: tuple[tuple[str, Encode | None], ...]
    values: Callable[[Any], tuple[Any, ...]]  # of the members that are always written
    sparse: tuple[Member, ...]
    sparse_values: Callable[[Any], tuple[Any, ...]]
    unsaid: tuple[Any, ...]

    def encode(self, value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.attempt:
            out["job"], out["attempt"] = value.attempt.job, value.attempt.number
        for (key, write), item in zip(self.writes, self.values(value), strict=True):
            out[key] = item if write is None else write(item)
        rare = self.sparse_values(value)
        if rare != self.unsaid:  # of a struct with many such fields, mostly none is set
            for member, item in zip(self.sparse, rare, strict=True):
                if item != member.unsaid:
                    out[member.key] = member.coder.plain(item)
        return out

    def decode(self, value: Any) -> Any:
        given = _typed(value, dict)
        if not self.keys.issuperset(given):
            extra = ", ".join(sorted(set(given) - self.keys))
            raise UnknownKindError(f"{self.kind} with unknown members: {extra}")
        fields: dict[str, Any] = {}
        key = ""
        try:
            for field, key, read, required in self.reads:
                if key in given:
                    fields[field] = read(given[key])
                elif required:
                    raise ValueError("it is missing")
        except UnknownKindError:
            raise
        except ValueError as error:
            raise ValueError(f"{self.kind}.{key}: {error}") from None
        if self.attempt:
            fields["attempt"] = self._attempt(given)
        return self.cls(**fields)

    def _attempt(self, given: dict[str, Any]) -> AttemptId:
        if "job" not in given or "attempt" not in given:
            raise ValueError(f"{self.kind} lacks 'job' or 'attempt'")
        return _attempt_id(given["job"], given["attempt"])


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def shape_of(cls: type) -> RecordShape:
    """Return the shape of a struct. Raises TypeError for a field that has no JSON form."""
    kind = snake_case(cls.__name__)
    found = fields(cls)
    attempt = any(field.name == "attempt" and field.type is AttemptId for field in found)
    members = tuple(
        _member(kind, field) for field in found if not (attempt and field.name == "attempt")
    )
    keys = [member.key for member in members] + (["job", "attempt"] if attempt else [])
    if len(set(keys)) != len(keys):
        raise TypeError(f"{cls.__name__}: two fields would be written under one name")
    reads = tuple((each.field, each.key, each.coder.decode, each.required) for each in members)
    always = tuple(member for member in members if member.unsaid is NODEFAULT)
    sparse = tuple(member for member in members if member.unsaid is not NODEFAULT)
    writes = tuple((each.key, each.coder.encode) for each in always)
    unsaid = tuple(each.unsaid for each in sparse)
    values, sparse_values = _values_of(always), _values_of(sparse)
    places = frozenset(keys), attempt, reads, writes, values, sparse, sparse_values, unsaid
    return RecordShape(cls, kind, members, *places)


def _values_of(members: Sequence[Member]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that takes the members' values from a struct, in one call for all."""
    if len(members) > 1:
        return attrgetter(*(each.field for each in members))
    name = members[0].field if members else None
    return lambda value: () if name is None else (getattr(value, name),)


@cache
def coder_of(hint: Any) -> Coder:
    """Return how values of an annotated type are written and read. Raises TypeError for others."""
    if hint is float:
        return Coder(None, _decode_float)
    if hint in (str, int, bool):
        return Coder(None, _PLAIN[hint])
    if hint is AttemptId:
        return Coder(shape_of(hint).encode, _decode_attempt)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return Coder(shape_of(hint).encode, shape_of(hint).decode)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return Coder(None, lambda value: _one_of(value, args))
    if origin is tuple and args[1:] == (Ellipsis,):
        return _tuple_coder(coder_of(args[0]))
    if origin is frozenset and args[0] in (str, int):
        return Coder(sorted, lambda value: frozenset(map(_PLAIN[args[0]], _typed(value, list))))
    if origin is Mapping and args[0] is str:
        return _mapping_coder(coder_of(args[1]))
    if origin in (Union, types.UnionType):
        return _union_coder(args)
    raise TypeError(f"{hint} has no JSON form")


def _member(kind: str, field: FieldInfo) -> Member:
    key = "job" if field.name == "name" and kind.startswith("job_") else field.name
    sparse = get_origin(field.type) is Annotated
    hint = get_args(field.type)[0] if sparse else field.type
    return Member(
        field.name, key, coder_of(hint), field.required, field.default if sparse else NODEFAULT
    )


def _typed(value: Any, cls: type) -> Any:
    # `type(...) is`: JSON's true must not pass for an integer, as isinstance would let it.
    if type(value) is not cls:
        raise ValueError(f"expected {cls.__name__}, found {value!r:.100}")
    return value


def _text(value: Any) -> str:
    """Return a text. Raises ValueError for any that the kernel could not be given.

    Half a surrogate pair is such a text, unless it stands for a byte that is not UTF-8.
    """
    text: str = value if type(value) is str else _typed(value, str)
    if not text.isascii():
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError(f"expected text, found {text!a:.100}") from None
    return text


def _integer(value: Any) -> int:
    number: int = value if type(value) is int else _typed(value, int)
    if not -MOST_INTEGER <= number <= MOST_INTEGER:
        raise ValueError("expected a number of at most 63 bits")
    return number


def _attempt_id(job: Any, number: Any) -> AttemptId:
    if not 1 <= _integer(number) <= MOST_ATTEMPTS:
        raise ValueError(f"expected the number of an attempt, found {number}")
    return AttemptId(_text(job), number)


def _decode_attempt(value: Any) -> AttemptId:
    read = shape_of(AttemptId).decode(value)
    return _attempt_id(read.job, read.number)


_PLAIN: Mapping[type, Decode] = {
    str: _text,
    int: _integer,
    bool: lambda value: _typed(value, bool),
}


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise UnknownKindError(f"the value {value!r:.100} (known: {', '.join(map(str, allowed))})")
    return value


def _decode_float(value: Any) -> float:
    if type(value) in (float, int) and LEAST_SECONDS <= value <= MOST_SECONDS:
        return float(value)
    raise ValueError(f"expected a number of seconds, found {value!r:.100}")


def _tuple_coder(item: Coder) -> Coder:
    write, read = item.encode, item.decode

    def decode(value: Any) -> tuple[Any, ...]:
        return tuple([read(each) for each in _typed(value, list)])

    if write is None:
        return Coder(None, decode)  # json writes a tuple as a list
    return Coder(lambda value: [write(each) for each in value], decode)


def _mapping_coder(item: Coder) -> Coder:
    write, read = item.encode, item.decode

    def encode(value: Mapping[str, Any]) -> dict[str, Any]:
        if write is None:
            return dict(value)
        return {key: write(each) for key, each in value.items()}

    def decode(value: Any) -> dict[str, Any]:
        return {_text(key): read(each) for key, each in _typed(value, dict).items()}

    return Coder(encode, decode)


def _union_coder(args: tuple[Any, ...]) -> Coder:
    kinds = [arg for arg in args if arg is not type(None)]
    optional = len(kinds) < len(args)
    if len(kinds) == 1:
        inner = coder_of(kinds[0])
    elif all(isinstance(kind, type) and issubclass(kind, Struct) for kind in kinds):
        inner = _tagged_coder([shape_of(kind) for kind in kinds])
    else:
        raise TypeError(f"a union of {kinds} has no JSON form")
    return _optional_coder(inner) if optional else inner


def _optional_coder(inner: Coder) -> Coder:
    write, read = inner.encode, inner.decode

    def decode(value: Any) -> Any:
        return None if value is None else read(value)

    if write is None:
        return Coder(None, decode)
    return Coder(lambda value: None if value is None else write(value), decode)


def _tagged_coder(shapes: list[RecordShape]) -> Coder:
    if hidden := [shape.kind for shape in shapes if "kind" in shape.keys]:
        raise TypeError(f"a field of {hidden} would hide which of the union it is")
    by_class = {shape.cls: shape for shape in shapes}
    by_kind = {shape.kind: shape for shape in shapes}

    def encode(value: Any) -> dict[str, Any]:
        shape = by_class[type(value)]
        return {"kind": shape.kind, **shape.encode(value)}

    def decode(value: Any) -> Any:
        given = dict(_typed(value, dict))
        kind = given.pop("kind", None)
        shape = by_kind.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise UnknownKindError(f"the kind {kind!r:.100} (known: {', '.join(by_kind)})")
        return shape.decode(given)

    return Coder(encode, decode)
