"""Text with slots for what is known only when a job starts: `{{out}}`, `{{gpu}}`, `{{port}}` ...

A `Template` is a tuple of literal strings and `Slot`s. Inserted values are data: a value that
itself contains `{{out}}` stays as it is. Each slot remembers how its place must be quoted:

    where        bare      'single'     "double"     raw (a list's element, env, outputs)
    a b'c  ->    'a b'"'"'c'  a b'"'"'c   a b'c        a b'c
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Quoting: TypeAlias = Literal["raw", "bare", "single", "double"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for the value `name`. `quoting`: which quotes of the shell it stands in."""

    name: str
    quoting: Quoting = "raw"


@dataclass(frozen=True, slots=True)
class Template:
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


def slots(text: Text) -> Iterator[Slot]:
    if isinstance(text, Template):
        yield from (part for part in text.parts if isinstance(part, Slot))


def fill(text: Text, values: Mapping[str, str]) -> Text:
    """Return the text with known values inserted; slots without one stay. `str` if none is left."""
    if isinstance(text, str):
        return text
    parts: list[str | Slot] = []
    for part in text.parts:
        if isinstance(part, Slot):
            known = values.get(part.name)
            part = part if known is None else quote(known, part.quoting)
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return Template(tuple(parts))


def render(text: Text, values: Mapping[str, str]) -> str:
    """Return the text with all slots filled. Raises KeyError with the name of a missing value."""
    filled = fill(text, values)
    if isinstance(filled, str):
        return filled
    raise KeyError(next(slots(filled)).name)
