"""A shell script as a syntax tree. Nothing of the script is run.

The parser is tree-sitter's bash grammar (MIT, wheels for every platform). Its tree keeps the place
of each node in the source, so that a command can be carried over letter by letter. It is imported
only when a script is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

MASK = "CUDA_VISIBLE_DEVICES"
_HERE_DOCUMENT = re.compile(rb"(?<!<)<<-?[ \t]*[\"'\\]?[A-Za-z_]")
_LET = re.compile(rb"^([ \t]*)let ([ \t]*\w+=\([^\"';&|\n]*)$", re.M)
_NAME = re.compile(rb"[A-Za-z_]\w*|\d")
_NO_WORDS = ("variable_assignment", "file_redirect", "heredoc_redirect", "herestring_redirect")


class Unfit(Exception):
    """Why a script, or the line of it with this number, cannot be carried over for certain."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


class Script:
    """The source and its tree. Positions are bytes of `source`.

    The grammar takes `$A/$B/c` apart, and `let a=(b+1)`. Where it does, `source` has `${B}` and
    `((a=(b+1)))`, which bash reads as the same; `typed` is the script as it was.
    """

    def __init__(self, source: str) -> None:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        parser = Parser(Language(tree_sitter_bash.language()))
        self.typed = source.encode("utf-8", "replace")
        self.braced: list[int] = []
        counted = _LET.sub(rb"\1((\2))", self.typed)
        while True:
            self.source = counted
            for at in reversed(self.braced):
                name = _NAME.match(counted, at + 1)
                end = name.end() if name else at + 1
                self.source = b"%b${%b}%b" % (
                    self.source[:at], self.source[at + 1 : end], self.source[end:]
                )  # fmt: skip
            self.root = parser.parse(self.source).root_node
            found = {self.place(n.start_byte) for n in walk(self.root) if self._is_torn(n)}
            if found <= set(self.braced):
                return
            self.braced = sorted({*self.braced, *found})

    def place(self, at: int) -> int:
        """Return the place in `typed` of a place in `source`."""
        for start in self.braced:
            name = _NAME.match(self.typed, start + 1)
            end = name.end() if name else start + 1
            at -= (at > start + 1) + (at > end + 1)
        return at

    def _is_torn(self, node: Node) -> bool:
        alone = node.type == "$" and node.parent is not None and "expans" not in node.parent.type
        return alone and _NAME.match(self.source, node.end_byte) is not None

    def line(self, node: Node) -> int:
        return node.start_point.row + 1

    def text(self, node: Node) -> str:
        return self.slice(node.start_byte, node.end_byte)

    def slice(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace")

    def part(self, node: Node, field: str) -> str:
        """Return the text of a part by the grammar's name for it; empty where there is none."""
        found = node.child_by_field_name(field)
        return self.text(found) if found is not None else ""

    def refuse_unread(self) -> None:
        """Raise Unfit at the first place that the grammar could not read."""
        documents: set[int] = set()
        texts: list[tuple[int, int]] = []
        for node in walk(self.root):
            if node.is_missing or node.type == "ERROR":
                raise Unfit("gpulaunch cannot read this line as bash", self.line(node))
            if self._has_gap(node):
                raise Unfit("gpulaunch cannot tell the words of this line apart", self.line(node))
            if node.type == "heredoc_redirect":
                documents.add(node.start_byte)
            elif node.type in ("comment", "heredoc_body", "raw_string", "string_content"):
                texts.append((node.start_byte, node.end_byte))
        for match in _HERE_DOCUMENT.finditer(self.source):
            at = match.start()
            if at not in documents and not any(start <= at < end for start, end in texts):
                line = self.source.count(b"\n", 0, at) + 1
                raise Unfit("gpulaunch cannot read this here-document", line)

    def _has_gap(self, node: Node) -> bool:
        """Tell whether words are not apart that should be, or parts of a word are."""
        if node.type not in ("command", "concatenation"):
            return self._is_torn(node)
        for left, right in pairwise(node.children):
            apart = left.end_byte < right.start_byte or right.type in _NO_WORDS[1:]
            if apart == (node.type == "concatenation"):
                return True
        return False


def words_of(command: Node) -> list[Node]:
    """Return the words of a command, without assignments and redirections."""
    return [child for child in command.named_children if child.type not in _NO_WORDS]


def assignments_of(command: Node) -> list[Node]:
    return [child for child in command.named_children if child.type == "variable_assignment"]


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything in it, in the order of the source."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def above(node: Node) -> Iterator[Node]:
    """Yield the nodes that a node stands in, from the inside out."""
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def statements_of(parent: Node) -> list[tuple[Node, bool]]:
    """Return the statements in a block, and whether an `&` follows each."""
    found: list[tuple[Node, bool]] = []
    for child in parent.children:
        if child.type == "&" and found:
            found[-1] = (found[-1][0], True)
        elif child.is_named:
            found.append((child, False))
    return found


def edited(source: bytes, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the source with other text in some places, which do not overlap."""
    out, at = b"", 0
    for start, end, text in sorted(edits):
        if start < at:
            raise Unfit("two changes of the script meet in one place")
        out += source[at:start] + text.encode()
        at = end
    return (out + source[at:]).decode("utf-8", "replace")
