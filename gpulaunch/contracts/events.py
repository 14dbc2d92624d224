"""Makes the JSON Schema (2020-12) of an event: a line of `events.jsonl` and of `run --json`.

From the same annotations by which `shapes` writes the facts; the lines' own members are those of
`journal.codec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from gpulaunch.core import causes, model, reasons
from gpulaunch.core.facts import Fact
from gpulaunch.shapes import shape_of

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_OF_A_LINE = {
    "n": {"type": "integer", "minimum": 1, "description": "its number, without a gap"},
    "t": {"type": "string", "description": "when, in UTC"},
    "m": {"type": "number", "description": "when, on the machine's monotonic clock, in seconds"},
    "c": {"type": "string", "description": "CRC-32 of the line without this member, in hex"},
    "e": {"type": "string", "description": "which event it is"},
}


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema of one event; the objects and choices within are its `$defs`.

    Members and events that it does not name are another version's.
    """
    defs: dict[str, Any] = {}
    events = [_event(cls, defs) for cls in get_args(Fact)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Event",
        "description": "A line of events.jsonl, and of `gpulaunch run --json`.",
        "type": "object",
        "properties": _OF_A_LINE,
        "required": [*_OF_A_LINE],
        "oneOf": events,
        "$defs": dict(sorted(defs.items())),
    }


def _event(cls: type[Struct], defs: dict[str, Any]) -> dict[str, Any]:
    return _of_kind("e", cls, _object(cls, defs))


def _of_kind(member: str, cls: type[Struct], form: dict[str, Any]) -> dict[str, Any]:
    """Return the form of an object that says in this member which of several it is."""
    kind = {member: {"const": shape_of(cls).kind}}
    properties, required = {**kind, **form["properties"]}, [member, *form["required"]]
    return {**form, "properties": properties, "required": required}


def _object(cls: type[Struct], defs: dict[str, Any]) -> dict[str, Any]:
    shape, types = shape_of(cls), {field.name: field.type for field in fields(cls)}
    properties = {member.key: _form(types[member.field], defs) for member in shape.members}
    required = [member.key for member in shape.members if member.unsaid is NODEFAULT]
    if shape.attempt:
        properties |= {"job": {"type": "string"}, "attempt": {"type": "integer"}}
        required += ["job", "attempt"]
    told = {"description": cls.__doc__} if cls.__doc__ else {}
    return {"type": "object", **told, "properties": properties, "required": required}


def _form(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of values of a type, as `shapes.coder_of` writes them."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _defined(hint.__name__, defs, lambda: _object(hint, defs))
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _form(args[0], defs)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (tuple, frozenset):
        return {"type": "array", "items": _form(args[0], defs)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _form(args[1], defs)}
    assert origin in (Union, UnionType), hint
    return _union(args, defs)


def _union(args: Iterable[Any], defs: dict[str, Any]) -> dict[str, Any]:
    kinds = [arg for arg in args if arg is not NoneType]
    form = _form(kinds[0], defs) if len(kinds) == 1 else _choice(kinds, defs)
    return {"anyOf": [form, {"type": "null"}]} if NoneType in args else form


def _choice(kinds: Sequence[type[Struct]], defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one of several structs, each of which says its `kind`."""

    def made() -> dict[str, Any]:
        return {"anyOf": [_tagged(kind, defs) for kind in kinds]}

    name = _NAMES.get(frozenset(kinds))
    return _defined(name, defs, made) if name else made()


def _tagged(cls: type[Struct], defs: dict[str, Any]) -> dict[str, Any]:
    name = f"{cls.__name__}.kind"
    return _defined(name, defs, lambda: _of_kind("kind", cls, _object(cls, defs)))


def _defined(name: str, defs: dict[str, Any], make: Callable[[], Any]) -> dict[str, Any]:
    if name not in defs:
        defs[name] = {}  # it may hold one of its own kind
        defs[name] = make()
    return {"$ref": f"#/$defs/{name}"}


_NAMES = {
    frozenset(get_args(value)): name
    for module in (model, causes, reasons)
    for name, value in vars(module).items()
    if get_origin(value) in (Union, UnionType)
}
"""The core's own names of choices between structs."""
