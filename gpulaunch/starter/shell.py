"""A shell script as a syntax tree, and what its words stand for. Runs nothing of it.

The parser is tree-sitter's bash grammar (MIT, kept by the tree-sitter project, wheels for every
platform, 0.9 MB): quoting, here-documents and line continuations are not a tokenizer's afternoon,
and its trees keep each node's place in the source, so that a command is carried over letter by
letter. bashlex is GPL. Imported only here, only when a script is translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpulaunch.jobfile.commands import PREFIXES

if TYPE_CHECKING:
    from tree_sitter import Node

_LONE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_MASK = "CUDA_VISIBLE_DEVICES="
_READ = re.compile(r"(?<!\\)\$(?:\{[#!]?)?([A-Za-z_]\w*)")
_NAME = re.compile(r"(?<![\w$])[A-Za-z_]\w*")
_CONTINUED = re.compile(r"[ \t]*\\\n[ \t]*")
OF_WRAPPER = re.compile(r"-.*|[0-9][0-9.,:-]*[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)
"""An option of such a program as `nohup` or `env`, or a variable that it sets."""


class Script:
    """The source and its tree. Positions are bytes of the UTF-8 text.

    `lines` are the numbers that its lines have in the script as it was typed, `made` the variables
    that are not the author's, and `typed` is what stood on a line before it was spelt out.
    """

    def __init__(self, source: str) -> None:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        self.source = source.replace("\r\n", "\n").encode("utf-8", "replace")
        self.lines = list(range(1, self.source.count(b"\n") + 2))
        self.made: frozenset[str] = frozenset()
        self.typed: dict[int, str] = {}
        parser = Parser(Language(tree_sitter_bash.language()))
        self.root = parser.parse(self.source).root_node

    def replaced(
        self, start: int, end: int, new: str, made: frozenset[str] = frozenset()
    ) -> Script:
        """Return the script with other words from `start` to `end`.

        Lines that were there before keep their numbers, others have that of the line before.
        """
        before, old = self.source[:start], self.source[start:end]
        first = before.count(b"\n")
        last = first + old.count(b"\n")
        script = Script((before + new.encode() + self.source[end:]).decode("utf-8", "replace"))
        line = self.lines[first]
        again = _numbers(old.decode("utf-8", "replace"), self.lines[first : last + 1], new)
        script.lines = self.lines[: first + 1] + again + self.lines[last + 1 :]
        script.made = self.made | made
        script.typed = {line: old.decode("utf-8", "replace"), **self.typed}
        return script

    def line(self, node: Node) -> int:
        """Return the number of its line in the script as it was typed."""
        return self.lines[node.start_point.row]

    def text(self, node: Node) -> str:
        return self.slice(node.start_byte, node.end_byte)

    def slice(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace")

    def words(self, command: Node) -> list[str]:
        """Return a command's own words as they stand, without assignments and redirections.

        None of what is no command.
        """
        return [self.text(node) for node in words_of(command)] if command.type == "command" else []

    def program(self, command: Node) -> str:
        """Return the name of a command's own program; empty for what is no command."""
        words = behind_wrappers(self.words(command))
        return words[0].rpartition("/")[2] if words else ""

    def part(self, node: Node, field: str) -> str:
        """Return the text of a part by the grammar's name for it; empty where there is none."""
        found = node.child_by_field_name(field)
        return self.text(found) if found is not None else ""

    def edited(self, start: int, end: int, edits: Iterable[tuple[int, int, str]]) -> str:
        """From start to end with other words in some places; of edits in each other the outer."""
        out, at = [], start
        for left, right, new in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
            if at <= left and right <= end:
                out += [self.slice(at, left), new]
                at = right
        return "".join([*out, self.slice(at, end)])


def _numbers(old: str, numbers: Sequence[int], new: str) -> list[int]:
    """Set the numbers of all lines of `new` but the first, by those of the lines of `old`."""
    before = [line.strip(" \t;") for line in old.split("\n")]
    at, found = 0, []
    for line in new.split("\n")[1:]:
        with suppress(ValueError):
            at = before.index(line.strip(" \t;") or "\n", at + 1)
        found.append(numbers[at])
    return found


def words_of(command: Node) -> list[Node]:
    skip = ("variable_assignment", "file_redirect", "heredoc_redirect", "herestring_redirect")
    return [child for child in command.children if child.type not in skip]


def behind_wrappers(words: Sequence[str]) -> Sequence[str]:
    """Return a command's words from its own program on: without `nohup`, `timeout 2h` ..."""
    return words[wrappers_of(words) :]


def wrappers_of(words: Sequence[str]) -> int:
    """Count the words before a command's own program: `nohup`, `env A=1`, `timeout 2h`."""
    at = 0
    while at < len(words) and words[at].rpartition("/")[2] in PREFIXES:
        at += 1
        while at < len(words) and OF_WRAPPER.fullmatch(words[at]):
            at += 1
    return at


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


def broken(node: Node) -> bool:
    """Tell whether the grammar could not read a node, or something beside it on its line."""
    if any(_unread(inner) for inner in walk(node)):
        return True
    after, before = node.next_sibling, node.prev_sibling
    if after is not None and _unread(after):
        return after.start_point.row == node.end_point.row
    return before is not None and _unread(before) and before.end_point.row == node.start_point.row


def _unread(node: Node) -> bool:
    return node.is_missing or (node.type == "ERROR" and not is_late_ampersand(node))


def forks(node: Node) -> bool:
    """Tell whether something in a node is started in the background."""
    return any(starts_beside(inner) or is_late_ampersand(inner) for inner in walk(node))


def starts_beside(node: Node) -> bool:
    """Tell whether a node is an & that starts a command, and not the & after a here-document."""
    return node.type == "&" and not (node.parent and is_late_ampersand(node.parent))


def is_late_ampersand(node: Node) -> bool:
    """Tell whether a node is the & of `cmd <<EOF &`: to the grammar an error in a redirection."""
    inside = node.parent is not None and node.parent.type == "heredoc_redirect"
    return node.type == "ERROR" and inside and node.text == b"&"


def shell_text(script: Script, node: Node, *, masks: bool = True) -> str:
    """Return a node's text less what '...' keeps from the shell and, if asked, less masks.

    For questions that the tree alone cannot answer: the grammar loses an expansion in places like
    `$A/$B/$(c)`.
    """
    out, at = "", node.start_byte
    for inner in walk(node):
        mask = inner.type == "variable_assignment" and script.text(inner).startswith(_MASK)
        if inner.start_byte >= at and (inner.type == "raw_string" or (mask and not masks)):
            out, at = out + script.slice(at, inner.start_byte), inner.end_byte
    return out + script.slice(at, node.end_byte)


def variables_in(script: Script, node: Node) -> set[str]:
    """Return the names that a node reads, in arithmetic too; not those that choose a card."""
    text = shell_text(script, node, masks=False)
    found = {name for name in _READ.findall(text) if name}
    for inner in walk(node):
        if inner.type == "subscript" and not chooses_a_card(script, inner):
            found |= set(_NAME.findall(script.text(inner).partition("[")[2]))
        assigned = inner.parent is not None and inner.parent.type == "variable_assignment"
        if inner.type == "variable_name" and not assigned and not chooses_a_card(script, inner):
            found.add(script.text(inner))
    return found


def chooses_a_card(script: Script, node: Node) -> bool:
    """Tell whether a node stands in the value of a mask."""
    return any(
        one.type == "variable_assignment" and script.text(one).startswith(_MASK)
        for one in above(node)
    )


def lone(text: str) -> str:
    """Return the variable whose expansion is all of the text: `f` of `$f` and `${f}`; else ''."""
    match = _LONE.fullmatch(text)
    return match.group(1) or match.group(2) if match else ""


def reads_a_text(node: Node) -> bool:
    """Tell whether a node has a here-string (`read a b <<< "$line"`) and asks no terminal."""
    return any(one.type == "herestring_redirect" for one in walk(node))


def joined(text: str) -> str:
    """Return a gap between two words, its line continuations gone."""
    return _CONTINUED.sub(" ", text)
