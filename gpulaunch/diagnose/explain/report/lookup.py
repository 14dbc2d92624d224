"""Resolves names, attributes and subscripts to objects by look-ups that run nothing."""

from __future__ import annotations

import ast
from typing import Any

from .frames import TracebackStep
from .objects import attributes, mro, of, slots
from .search import sort_of

NOTHING = object()


def resolve(node: ast.expr, step: TracebackStep) -> tuple[str, Any]:
    """What a chain stands for, by look-ups that run nothing: (its text, the object).

    A method's name stands for its object (`x.float` for x), except on `self`, whose methods are
    about anything; NOTHING where a look-up would have to run the program.
    """
    if isinstance(node, ast.Name):
        for names in (step.frame.f_locals, step.frame.f_globals):
            if node.id in names:
                return node.id, names[node.id]
        return node.id, NOTHING
    if isinstance(node, ast.Attribute):
        text, base = resolve(node.value, step)
        value = member(base, node.attr)
        if value is not NOTHING:
            return f"{text}.{node.attr}", value
        return (text, NOTHING) if text in ("self", "cls") else (text, base)
    if isinstance(node, ast.Subscript):
        text, base = resolve(node.value, step)
        index = node.slice
        index = getattr(index, "value", index) if type(index).__name__ == "Index" else index
        wanted = constant(index, step)
        held: Any = attributes(base).get("data") if sort_of(type(base)) == "data" else base
        if wanted is not NOTHING and dict in mro(type(held)) and dict.__contains__(held, wanted):
            return f"{text}[{wanted!r}]", dict.__getitem__(held, wanted)
        if type(wanted) is int and type(base) in (list, tuple) and -len(base) <= wanted < len(base):
            return f"{text}[{wanted}]", base[wanted]
        if type(wanted) is int and "_modules" in attributes(base):
            return f"{text}[{wanted}]", member(base, str(wanted))
        return text, base
    return "", NOTHING


def constant(node: ast.AST, step: TracebackStep) -> Any:
    """A subscript's value where it is a plain string or number."""
    if isinstance(node, ast.Name):
        value = step.frame.f_locals.get(node.id, NOTHING)
    else:
        value = getattr(node, "value", NOTHING) if isinstance(node, ast.Constant) else NOTHING
    return value if type(value) in (str, int) else NOTHING


def member(base: Any, name: str) -> Any:
    if base is NOTHING:
        return NOTHING
    own = attributes(base)
    for group in (own, *(own.get(part) for part in ("_parameters", "_buffers", "_modules"))):
        if isinstance(group, dict) and name in group:
            return dict.__getitem__(group, name)
    for at, value in slots(base):
        if at == name:
            return value
    fields = of(type(base), "__dict__").get("_fields")
    if isinstance(fields, tuple) and name in fields and tuple in mro(type(base)):
        return tuple.__getitem__(base, fields.index(name))
    return NOTHING
