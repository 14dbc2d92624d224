"""Words of the script as the shell inside of them reads them, and texts put into such a script.

bash -c "fold $f 'a b'"     what the inner shell reads:   fold | $f (Outer) | 'a b'
parallel 'fold {} > {.}'                                  fold | {} (Insert) | > | {.} (Insert)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from gpulaunch.core.template import Quoting
from gpulaunch.jobfile.shell import MARK, quotings
from gpulaunch.starter.entry import Untranslatable
from gpulaunch.starter.shell import Script, lone

if TYPE_CHECKING:
    from tree_sitter import Node

_ESCAPED = re.compile(r'\\(["\\$`])|\\\n')


class Outer(Struct, frozen=True):
    """An expansion that the outer shell makes before the inner one reads its value as text."""

    text: str


class Insert(Struct, frozen=True):
    """A value that is one word, whatever is in it: an expansion to be quoted where it stands."""

    text: str


Piece: TypeAlias = "str | Outer | Insert"
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")


def inner(script: Script, node: Node) -> list[Piece]:
    """Return what a word hands on. Raises Untranslatable where that cannot be told."""
    kind, text = node.type, script.text(node)
    if kind in ("word", "number"):
        return [re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)]
    if kind == "raw_string":
        return [text[1:-1]]
    if kind in _EXPANSIONS:
        return [Outer(text)]
    if kind == "string":
        return list(_double_quoted(script, node))
    if kind in ("concatenation", "command_name"):
        return joined(piece for child in node.children for piece in inner(script, child))
    raise Untranslatable(f"has {text}, which only the shell can read")


def _double_quoted(script: Script, node: Node) -> Iterator[Piece]:
    at = node.start_byte + 1
    for child in node.named_children:
        if child.type in _EXPANSIONS:
            yield _unescaped(script.slice(at, child.start_byte))
            yield Outer(script.text(child))
            at = child.end_byte
    yield _unescaped(script.slice(at, node.end_byte - 1))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: match.group(1) or "", text)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with neighbouring texts in one: `{1}` is three words to the grammar."""
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        else:
            out.append(piece)
    return out


def handed(script: Script, words: Sequence[Node]) -> list[Piece]:
    """Return what several words hand on, with blanks between."""
    pieces: list[Piece] = []
    for word in words:
        pieces += [" ", *inner(script, word)] if pieces else inner(script, word)
    return joined(pieces)


def literal(script: Script, node: Node, known: Mapping[str, str]) -> str | None:
    """Return what a word or an assigned value stands for, if certain without running it."""
    if node.type == "word" and script.text(node).startswith("~"):
        return None
    try:
        pieces = inner(script, node)
    except Untranslatable:
        return None
    found = [p if isinstance(p, str) else known.get(lone(p.text)) for p in pieces]
    return None if None in found else "".join(text for text in found if text is not None)


def split(
    pieces: Iterable[Piece], pattern: re.Pattern[str]
) -> Iterator[str | Outer | re.Match[str]]:
    """Yield the pieces with what matches in their texts apart."""
    for piece in pieces:
        if not isinstance(piece, str):
            assert isinstance(piece, Outer)
            yield piece
            continue
        at = 0
        for match in pattern.finditer(piece):
            yield piece[at : match.start()]
            yield match
            at = match.end()
        yield piece[at:]


def script_of(pieces: Iterable[Piece]) -> str:
    """Return the pieces as a script: expansions outside of '...', each quoted for its place."""
    found = list(pieces)
    marked = "".join(p.replace(MARK, " ") if isinstance(p, str) else MARK for p in found)
    places = iter(quotings(marked, "bash"))
    return "".join(p if isinstance(p, str) else _placed(p, next(places)) for p in found)


def _placed(piece: Outer | Insert, quoting: Quoting | None) -> str:
    if quoting == "single":
        return f"'\"{piece.text}\"'"
    bare = isinstance(piece, Insert) and quoting == "bare"
    return f'"{piece.text}"' if bare else piece.text
