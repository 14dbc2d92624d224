"""Makes the JSON Schema (2020-12) of an event: a line of `events.jsonl` and of `run --json`."""

from __future__ import annotations

from typing import Any, get_args

from msgspec.json import schema_components

from gpulaunch.core.facts import Fact

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
    """Return the JSON Schema of one event; the objects and choices within are its `$defs`.

    Members and events that it does not name are another version's.
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
