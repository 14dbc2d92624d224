"""A function's body, or the string of `bash -c`, with the words that it is called with.

run() { local gpu=$1; CUDA_VISIBLE_DEVICES=$gpu fold "$2"; }
run 0 a.fasta &              ─▶    ( gpu=0; CUDA_VISIBLE_DEVICES=$gpu fold "a.fasta"; ) &
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.starter.entry import Untranslatable
from gpulaunch.starter.shell import Script, above, lone, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_SAFE = re.compile(r"[\w./:=,@%+ -]*")
_NAME = re.compile(r"\$\{?(\d+|[@*#])\}?")
_SLICE = re.compile(r"\$\{[@*]:(\d+)\}")
_IN_BRACES = re.compile(r"\$\{(\d+)(\W.*)\}", re.DOTALL)
_GLOB = re.compile(r"[*?\[{~]")
_SHIFT = re.compile(r"shift(?:\s+(\d+))?")


class Arguments:
    """What `$1`, `$2` ... stand for: the words of a call as they are typed."""

    def __init__(self, script: Script, words: Sequence[Node], zero: str = "bash") -> None:
        self.texts = [script.text(word) for word in words]
        self.zero = zero
        for word, text in zip(words, self.texts, strict=True):
            if word.type in ("word", "concatenation") and _GLOB.search(re.sub(r"\$\{", "", text)):
                raise Untranslatable(f"is called with {text}: only the shell can know how many")
            if text in ("$@", '"$@"', "$*"):
                raise Untranslatable(f"is called with {text}, the words of its caller")

    def inside(self, number: int) -> str:
        """Return a word as it would stand between double quotes."""
        text = self._typed(number)
        parts = re.findall(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^'\"]+", text, re.DOTALL)
        out = ""
        for part in parts:
            if part[0] == "'":
                out += re.sub(r'([\\"$`])', r"\\\1", part[1:-1])
            else:
                out += part[1:-1] if part[0] == '"' else part
        return out

    def bare(self, number: int) -> str:
        """Return a word where it is not quoted, and would fall into several at its blanks."""
        text = self.inside(number)
        if _SAFE.fullmatch(text) or lone(text):
            return text or "''"
        return f'"{text}"'

    def _typed(self, number: int) -> str:
        if number == 0:
            return self.zero
        return self.texts[number - 1] if number <= len(self.texts) else ""


def called(body: str, given: Arguments) -> str:
    """Fill the words into the body, to stand between ( and ). Raises Untranslatable."""
    script = Script(body)
    edits: list[tuple[int, int, str]] = []
    shifts = sorted(_shifts(script))
    for node in walk(script.root):
        shifted = sum(count for at, count in shifts if at < node.start_byte)
        if node.type in ("simple_expansion", "expansion"):
            if (new := _expansion(script, node, given, shifted)) is not None:
                edits.append((node.start_byte, node.end_byte, new))
        elif node.type == "string" and script.text(node) in ('"$@"', '"${@}"'):
            edits.append((node.start_byte, node.end_byte, " ".join(given.texts[shifted:]) or "''"))
        elif node.type == "declaration_command" and script.text(node.children[0]) == "local":
            edits.append(_local(script, node))
        elif node.type == "command" and _SHIFT.fullmatch(script.text(node)):
            edits.append((node.start_byte, node.end_byte, ":"))
        elif node.type == "command_name" and script.text(node) == "return":
            edits.append((node.start_byte, node.end_byte, "exit"))
        elif node.type == "variable_assignment" and _of_itself(script, node, given, shifted):
            edits.append((node.start_byte, node.end_byte, ":"))
    return script.edited(0, len(script.source), edits)


def _of_itself(script: Script, node: Node, given: Arguments, shifted: int) -> bool:
    """Tell whether `f=$1` would come to `f=$f`."""
    match = _NAME.fullmatch(script.part(node, "value").strip('"'))
    alone = node.parent is not None and node.parent.type == "program"
    if match is None or not alone or not match.group(1).isdigit():
        return False
    return lone(given.inside(int(match.group(1)) + shifted)) == script.part(node, "name")


def _shifts(script: Script) -> list[tuple[int, int]]:
    """(place, how many) of each `shift`; only those that are always reached can be counted."""
    found = []
    for node in walk(script.root):
        if node.type == "command" and (match := _SHIFT.fullmatch(script.text(node))):
            if node.parent is not None and node.parent.type != "program":
                raise Untranslatable("shifts its words under a condition")
            found.append((node.start_byte, int(match.group(1) or 1)))
    return found


def _expansion(script: Script, node: Node, given: Arguments, shifted: int) -> str | None:
    text, quoted = script.text(node), _quoted(node)
    if match := _SLICE.fullmatch(text):
        return " ".join(given.texts[shifted + int(match.group(1)) - 1 :])
    if match := _NAME.fullmatch(text):
        name = match.group(1)
        if name == "#":
            return str(len(given.texts) - shifted)
        if name in "@*":
            return " ".join(given.texts[shifted:])
        number = int(name) + (shifted if int(name) else 0)
        return given.inside(number) if quoted else given.bare(number)
    if match := _IN_BRACES.fullmatch(text):
        number = int(match.group(1)) + shifted
        inside = given.inside(number)
        if variable := lone(inside):
            return f"${{{variable}{match.group(2)}}}"
        if default := re.fullmatch(r":?-(.*)", match.group(2), re.DOTALL):
            return inside or default.group(1)
        raise Untranslatable(f"uses {text} of {inside!r}")
    return None


def _quoted(node: Node) -> bool:
    """Tell whether "..." or arithmetic is around it, with no `$(` between."""
    for one in above(node):
        if one.type in ("command_substitution", "process_substitution"):
            return False
        if one.type in ("string", "arithmetic_expansion", "heredoc_body", "expansion"):
            return True
    return False


def _local(script: Script, node: Node) -> tuple[int, int, str]:
    """`local a=1 b` as the assignment that it is outside of a function."""
    assigned = [child for child in node.named_children if child.type == "variable_assignment"]
    if not assigned:
        return node.start_byte, node.end_byte, ":"
    return node.start_byte, assigned[0].start_byte, ""
