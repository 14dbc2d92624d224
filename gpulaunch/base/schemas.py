"""The JSON that commands print: what each object holds, and its JSON Schema.

The types alone are in `documents`. `observe.present` fills them in, and nothing here knows a run, a
card or a terminal. They are TypedDicts: whoever prints JSON builds it as a literal, and a command
that prints none imports no type. The words beside a member's type describe it in the schema.

Seconds for durations, bytes for memory, per cent for utilisation, UTC (ISO 8601) for times; null is
what is not known, never 0. A document's `schema` goes up when a member goes or changes its meaning,
not when one is added.
"""

from __future__ import annotations

from typing import Any, Final, get_args, get_type_hints, is_typeddict

from msgspec.json import schema_components

from gpulaunch.core.facts import Fact

SCHEMA: Final = 1
"""The version of every document."""
SCHEMA_OF_SCHEMAS: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(document: type) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a document; the types inside it are its `$defs`.

    Members that it does not name are allowed: a later release may add some.
    """
    from msgspec.json import schema_components

    (_,), defs = schema_components([document], ref_template="#/$defs/{name}")
    _describe(document, defs)
    whole = defs.pop(document.__name__)
    return {"$schema": SCHEMA_OF_SCHEMAS, **whole, "$defs": defs}


def members(document: type) -> dict[str, tuple[Any, str]]:
    """Return each member's type and what it says, by name."""
    hints = get_type_hints(document, include_extras=True)
    return {name: get_args(hint) for name, hint in hints.items()}


def _describe(hint: Any, defs: dict[str, Any]) -> None:
    """Add the words of a type's members, and of those inside them, to the schema."""
    kinds = get_args(hint)
    if is_typeddict(hint):
        of = members(hint)
        kinds = tuple(kind for kind, _ in of.values())
        for name, form in defs[hint.__name__]["properties"].items():
            form["description"] = of[name][1]
    for kind in kinds:
        _describe(kind, defs)


_OF_A_LINE = {
    "n": {"type": "integer", "minimum": 1, "description": "its number, without a gap"},
    "t": {"type": "string", "description": "when, in UTC"},
    "m": {"type": "number", "description": "when, on the machine's monotonic clock, in seconds"},
    "c": {"type": "string", "description": "CRC-32 of the line without this member, in hex"},
    "e": {"type": "string", "description": "which event it is"},
}
"""The line's own members, as `journal.codec` writes them."""
_OF_AN_ATTEMPT = {"job": {"type": "string"}, "attempt": {"type": "integer"}}
"""What stands in the line for a fact's `attempt`."""


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an event: a line of `events.jsonl` and of `run --json`.

    The objects and choices within are its `$defs`. Members and events that it does not name are
    another version's.
    """
    facts = get_args(Fact)
    _, defs = schema_components(facts, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Event",
        "description": "A line of events.jsonl, and of `gpulaunch run --json`.",
        "type": "object",
        "properties": _OF_A_LINE,
        "required": [*_OF_A_LINE],
        "oneOf": [_as_written(defs.pop(cls.__name__)) for cls in facts],
        "$defs": dict(sorted(defs.items())),
    }


def _as_written(form: dict[str, Any]) -> dict[str, Any]:
    """Return a fact's schema with the members that the journal writes."""
    properties, required = dict(form["properties"]), list(form["required"])
    if "attempt" in properties:
        del properties["attempt"]
        properties |= _OF_AN_ATTEMPT
        required += ["job"]
    open_ = {key: value for key, value in form.items() if key != "additionalProperties"}
    return {**open_, "properties": properties, "required": required}
