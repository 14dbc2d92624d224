"""The JSON that commands print: what each object holds, and its JSON Schema.

Types alone, in `documents` and `tools`: `digest` fills them in, and nothing here knows a run, a
card or a terminal. They are TypedDicts: whoever prints JSON builds it as a literal, and a command
that prints none imports no type. The words beside a member's type describe it in the schema.

Seconds for durations, bytes for memory, per cent for utilisation, UTC (ISO 8601) for times; null is
what is not known, never 0. A document's `schema` goes up when a member goes or changes its meaning,
not when one is added.
"""

from __future__ import annotations

from typing import Any, Final, get_args, get_type_hints, is_typeddict

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
