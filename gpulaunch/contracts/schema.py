"""Makes JSON Schema (2020-12) of the types of `gpulaunch.contracts.documents`."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def json_schema(document: type) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a TypedDict; those inside it are its `$defs`.

    Members that it does not name are allowed: a later release may add some.
    """
    defs: dict[str, Any] = {}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": document.__name__}
    return {**head, **_object(document, defs), "$defs": defs}


def members(document: type) -> dict[str, tuple[Any, str]]:
    """Return each member's type and what it says, by name."""
    hints = get_type_hints(document, include_extras=True)
    return {name: get_args(hint) for name, hint in hints.items()}


def _object(document: type, defs: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": document.__doc__,
        "properties": {
            name: {**_form(hint, defs), "description": told}
            for name, (hint, told) in members(document).items()
        },
        "required": sorted(document.__required_keys__),  # type: ignore[attr-defined]
    }


def _form(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if is_typeddict(hint):
        if hint.__name__ not in defs:
            defs[hint.__name__] = _object(hint, defs)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(args)}
    if origin is list:
        return {"type": "array", "items": _form(args[0], defs)}
    if origin is dict:
        keys = {} if args[0] is str else {"propertyNames": _form(args[0], defs)}
        return {"type": "object", **keys, "additionalProperties": _form(args[1], defs)}
    assert origin in (Union, UnionType), hint
    return {"anyOf": [_form(arg, defs) for arg in args]}
