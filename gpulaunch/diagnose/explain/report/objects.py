"""Looks at a stranger's objects without running any of their code: types, attributes, slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .limits import PER_CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterator


def mro(kind: type) -> tuple[type, ...]:
    """Return a type's bases, past any metaclass of the program's."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def of(kind: type, name: str) -> Any:
    """Return a type's own attribute, past any metaclass of the program's."""
    return type.__getattribute__(kind, name)


def attributes(obj: Any) -> dict[str, Any]:
    """Return the instance's own attributes, past the program's `__getattr__` and properties."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except Exception:
        return {}
    return found if type(found) is dict else {}


class Slotted:
    __slots__ = ("slot",)


MEMBER = type(vars(Slotted)["slot"])


def slots(obj: Any) -> Iterator[tuple[str, Any]]:
    for kind in mro(type(obj)):
        for name, member in list(of(kind, "__dict__").items())[:PER_CONTAINER]:
            if type(member) is MEMBER and of(kind, "__module__") != "builtins":
                try:
                    yield name, member.__get__(obj, type(obj))
                except Exception:
                    continue


def is_code(value: Any) -> bool:
    return is_code_type(type(value)) or any(base is type for base in mro(type(value)))


def is_code_type(kind: type) -> bool:
    return of(kind, "__name__") in ("module", "function", "builtin_function_or_method", "method")
