"""Text with slots for what is known only when a job starts: `{{out}}`, `{{gpu}}`, `{{port}}` ...

A `Template` is a tuple of literal strings and `Slot`s. Inserted values are data: a value that
itself contains `{{out}}` stays as it is. Each slot remembers how its place must be quoted:

    where        bare      'single'     "double"     raw (a list's element, env, outputs)
    a b'c  ->    'a b'"'"'c'  a b'"'"'c   a b'c        a b'c
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

Quoting: TypeAlias = Literal["raw", "bare", "single", "double"]


class Slot(Struct, frozen=True):
    """A place for the value `name`. `quoting`: which quotes of the shell it stands in."""

    name: str
    quoting: Quoting = "raw"


class Template(Struct, frozen=True):
    parts: tuple[str | Slot, ...]


Text: TypeAlias = str | Template


def quote(value: str, quoting: Quoting) -> str:
    """Return POSIX shell text that means exactly `value` at a place with that quoting.

    A bare value is always quoted, harmless as it may look: `echo {{seed}}>out` with 5 would write
    to descriptor 5, `~{{user}}` would expand, and `if` where a command stands is no command.
    """
    if quoting == "bare":
        return "'" + value.replace("'", "'\"'\"'") + "'"
    if quoting == "single":
        return value.replace("'", "'\"'\"'")
    if quoting == "double":
        for special in ("\\", '"', "$", "`"):
            value = value.replace(special, "\\" + special)
        return value
    return value


def parts_of(text: Text) -> tuple[str | Slot, ...]:
    return (text,) if isinstance(text, str) else text.parts


def text_of(parts: Iterable[str | Slot]) -> Text:
    """Return the text of these parts, neighbouring strings in one; `str` if there is no slot."""
    joined: list[str | Slot] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    if not joined:
        return ""
    first = joined[0]
    return first if len(joined) == 1 and isinstance(first, str) else Template(tuple(joined))


def slots(text: Text) -> Iterator[Slot]:
    return (part for part in parts_of(text) if isinstance(part, Slot))


def literals(text: Text) -> Iterator[str]:
    """Yield what is typed between the slots."""
    return (part for part in parts_of(text) if isinstance(part, str))


def shown(text: Text) -> str:
    """Return the text as it is typed, each slot as `{{name}}`."""
    return "".join(p if isinstance(p, str) else f"{{{{{p.name}}}}}" for p in parts_of(text))


def fill(text: Text, values: Mapping[str, str]) -> Text:
    """Return the text with known values inserted; slots without one stay. `str` if none is left."""
    if isinstance(text, str):
        return text
    parts: list[str | Slot] = []
    for part in text.parts:
        if isinstance(part, Slot):
            known = values.get(part.name)
            part = part if known is None else quote(known, part.quoting)
        parts.append(part)
    return text_of(parts)


def render(text: Text, values: Mapping[str, str]) -> str:
    """Return the text with all slots filled. Raises KeyError with the name of a missing value."""
    filled = fill(text, values)
    if isinstance(filled, str):
        return filled
    raise KeyError(next(slots(filled)).name)
