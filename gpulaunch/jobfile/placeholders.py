r"""`{{name}}`: which names exist where, and text with them as Templates. No expressions.

`{{` that is not followed by a bare name and `}}` is text (awk, `docker --format '{{.ID}}'`, JSON);
a backslash before it, as in `\{{name}}`, makes text of one that is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from gpulaunch.core.template import Slot, Text, slots, text_of

NAME = re.compile(r"[^\W\d][\w-]{0,99}")
PLACEHOLDER = re.compile(r"\{\{[ \t]*([^\W\d][\w-]{0,99})[ \t]*\}\}")

START = frozenset(
    {"run_dir", "out", "keep", "log", "gpu", "gpu_index", "gpu_uuid", "port", "attempt"}
)
"""Names whose values are known only when a job starts; their slots stay in the Job's texts."""

OF_PATHS = ("path", "stem", "name", "dir", "ext")

RESERVED = START | {"item", "index", "job", "batch_dir", *OF_PATHS}
"""Names that no column and no matrix key may take."""

Piece: TypeAlias = "str | Slot"


def pieces(text: str) -> Iterator[Piece]:
    """Yield literal text and raw Slots, with escapes resolved."""
    end = 0
    for before, match, escaped in _found(text):
        if escaped:
            yield before[:-1] + match.group()
        else:
            yield before
            yield Slot(match.group(1))
        end = match.end()
    yield text[end:]


def _found(text: str) -> Iterator[tuple[str, re.Match[str], bool]]:
    """Yield each placeholder behind the text before it, and whether a backslash makes it text."""
    end = 0
    for match in PLACEHOLDER.finditer(text):
        before, end = text[end : match.start()], match.end()
        yield before, match, (len(before) - len(before.rstrip("\\"))) % 2 == 1


def numbers(text: str) -> list[tuple[int, str]]:
    """Return each placeholder's number, which counts escaped ones too, and its name."""
    found = enumerate(_found(text))
    return [(number, match.group(1)) for number, (_, match, escaped) in found if not escaped]


def compile_raw(text: str) -> Text:
    """Return `text` with its placeholders as slots that are filled verbatim."""
    if "{{" not in text:
        return text
    return _compiled(text) if len(text) < 1000 else text_of(pieces(text))


@lru_cache(10_000)
def _compiled(text: str) -> Text:
    # Hundreds of thousands of jobs may share the same few texts through an alias.
    return text_of(pieces(text))


def names_in(text: Text) -> list[str]:
    return [slot.name for slot in slots(text)]


def insert(text: Text, values: Mapping[str, str], change: Callable[[str], str]) -> str:
    """Return the text with every slot replaced by its changed value. Raises KeyError."""
    if isinstance(text, str):
        return text
    return "".join(
        part if isinstance(part, str) else change(values[part.name]) for part in text.parts
    )


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown placeholder."""
    names = sorted(set(known))[:40]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; did you mean {{{{{near[0]}}}}}?" if near else ""
    here = f"here: {', '.join(names)}" if names else "none is known here"
    return f"unknown placeholder {{{{{name}}}}}{hint} ({here}; \\{{{{{name}}}}} is the text itself)"
