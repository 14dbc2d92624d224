"""Commands of the script as the `run` of one job: the source, letter by letter, with cuts.

cut        masks, nohup, a log's redirections, the & at the end      (each remarked where told)
replaced   $f of a loop -> {{item}}, continue -> exit 0
escaped    {{name}} of the script itself
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING

from gpulaunch.starter.emit import escaped
from gpulaunch.starter.entry import ForeachLoop, StarterRemark
from gpulaunch.starter.loops import Untranslatable
from gpulaunch.starter.mask import MASK, OWNED
from gpulaunch.starter.outside import why_outside
from gpulaunch.starter.shell import (
    Script,
    chooses_a_card,
    forks,
    is_late_ampersand,
    joined,
    shell_text,
    walk,
    words_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_LOG = re.compile(r"(?i)\.(log|out|err|stdout|stderr)\W*$|\blogs?\b|log_|_log|nohup|/dev/null")
_MASKED = re.compile(rf"\b{MASK}=")
_OTHER_CARD = re.compile(r"cuda:([1-9]\d*)")
_GIVEN = re.compile(r"(?<!\\)\$(?:[0-9@*#]|\{[0-9@*][^}]*\}|\{#\})")
# fmt: off
WRAPPERS = frozenset({
    "env", "time", "nohup", "nice", "ionice", "timeout", "stdbuf", "taskset", "sudo", "exec",
    "setsid", "command", "numactl", "unbuffer", "xargs",
})
# fmt: on
_BLIND = ("heredoc_body", "arithmetic_expansion", "expansion", "subscript", "array")
_OF_WRAPPER = re.compile(r"-.*|[0-9][0-9.,:-]*[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)
_JOB_SLOT = "PARALLEL_JOBSLOT"
_KEEPS = ("command", "declaration_command")
_DETACHING = ("nohup", "setsid")
_LOOPS = ("for_statement", "c_style_for_statement", "while_statement")

MODULES = "environment modules are not loaded in a job: load them before `gpulaunch run`"
KEPT = "gpulaunch keeps the output: logs/JOB.N.log of the run, and `gpulaunch logs JOB` shows it"


@dataclass(slots=True)
class Rendered:
    """`variables` must be given by `env` as the item, since the text uses them in shell's ways."""

    text: str
    masks: list[str]
    remarks: list[StarterRemark]
    variables: tuple[ForeachLoop, ...] = ()


@dataclass(slots=True)
class _Edits:
    cuts: list[tuple[int, int, str | None]] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    remarks: list[StarterRemark] = field(default_factory=list)
    tops: Sequence[Node] = ()


class Renderer:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.functions: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.idle: frozenset[str] = frozenset()
        self.exported: set[int] = set()

    def render(self, groups: Sequence[Sequence[Node]], loops: tuple[ForeachLoop, ...]) -> Rendered:
        """Each group is a stretch of the source; they become lines of their own.

        Raises Untranslatable and Unwritable.
        """
        nodes = [node for group in groups for node in group]
        self.idle = self._only_for_masks(nodes)
        by_env = tuple(loop for loop in loops if self._in_shell_ways(nodes, loop.variable))
        edits = _Edits(tops=nodes)
        for group in groups:
            for node in group:
                self._collect(node, edits, [loop for loop in loops if loop not in by_env])
        lines = [self._line(group, edits) for group in groups]
        text = "\n".join(line for line in lines if line)
        if found := _MASKED.search(text):
            raise Untranslatable(
                f"{found.group()} cannot be cut where it stands: it would override the card"
            )
        if edits.masks and any(map(forks, nodes)):
            raise Untranslatable(
                "starts several processes with masks under one condition: write a command a job"
            )
        return Rendered(text, edits.masks, edits.remarks, by_env)

    def _line(self, group: Sequence[Node], edits: _Edits) -> str:
        text = self._apply(group[0].start_byte, group[-1].end_byte, edits)
        if not any(self._spans_lines(node) for node in group):
            text = _dedented(text)
        return f"export {text}" if group[0].start_byte in self.exported else text

    def _spans_lines(self, top: Node) -> bool:
        """Whether a text goes over several lines, so that its blanks count."""
        texts = ("string", "raw_string", "ansi_c_string", "heredoc_body")
        return any("\n" in self.script.text(one) for one in walk(top) if one.type in texts)

    def masks(self, node: Node) -> list[str]:
        """The masks named in it, without a word on the rest."""
        found = []
        for inner in walk(node):
            if inner.type == "variable_assignment" and self._assigned(inner) == MASK:
                found.append(self._value(inner))
            elif inner.type == "command" and (spelt := self._env_mask(inner)) is not None:
                found.append(spelt[1])
        return found

    def _in_shell_ways(self, nodes: Sequence[Node], variable: str) -> bool:
        """Whether some use of it is more than `$f` where a value can be inserted."""
        mentions = re.compile(rf"\$\{{?[#!]?{variable}\b")
        bare = re.compile(rf"(?<![\w$]){variable}\b")
        for node in nodes:
            plain = 0
            if any(bare.search(self.script.text(one)) for one in self._counts(node)):
                return True
            for inner in walk(node):
                if inner.type != "variable_name" or self.script.text(inner) != variable:
                    continue
                if chooses_a_card(self.script, inner):
                    continue
                around = self.script.text(inner.parent) if inner.parent is not None else ""
                if around not in (f"${variable}", f"${{{variable}}}") or self._blind(inner):
                    return True
                plain += 1
            if len(mentions.findall(shell_text(self.script, node, masks=False))) != plain:
                return True
        return False

    def _counts(self, top: Node) -> Iterator[Node]:
        """Where a variable is read without a `$`: `${a[i]}`, `${a:i:2}`, `$((i + 1))`."""
        for node in walk(top):
            braced = node.type == "expansion" and re.search(r"[\[:]", self.script.text(node))
            counted = node.type in ("subscript", "arithmetic_expansion", "test_command")
            if (braced or counted) and not chooses_a_card(self.script, node):
                yield node

    def _blind(self, node: Node) -> bool:
        """A placeholder cannot be quoted here."""
        parent = node.parent
        braced = parent is not None and parent.type == "expansion"
        parent = parent.parent if parent is not None and braced else parent
        while parent is not None:
            if parent.type in _BLIND or self.script.slice(
                parent.start_byte, parent.start_byte + 2
            ) in ("((", "[["):
                return True
            if parent.type == "command_substitution":
                return self.script.text(parent).startswith("`") or self._blind(parent)
            parent = parent.parent
        return False

    # ── what changes ────────────────────────────────────────────────────────────────────────────

    def _collect(self, top: Node, edits: _Edits, loops: Sequence[ForeachLoop]) -> None:
        if given := _GIVEN.search(shell_text(self.script, top)):
            given_text = given.group()
            raise Untranslatable(f"uses {given_text}, a word of the script's own command line")
        for node in walk(top):
            kind = node.type
            if why := self._refused(node):
                raise Untranslatable(why)
            if kind == "variable_assignment":
                self._assignment(node, edits)
            elif kind == "command":
                self._command(node, edits)
            elif kind == "file_redirect":
                self._redirect(node, edits)
            elif is_late_ampersand(node):
                edits.cuts.append((node.start_byte, node.end_byte, ""))
            elif kind in ("simple_expansion", "expansion"):
                self._expansion(node, edits, loops)
            elif kind in ("word", "string_content") and (
                match := _OTHER_CARD.search(self.script.text(node))
            ):
                why = f"asks for {match.group()}, but a job sees one card, cuda:0: change it"
                edits.remarks.append(
                    StarterRemark(self.script.line(node), self.script.text(node), why)
                )

    def _refused(self, node: Node) -> str:
        """Why nothing around it can be a job; empty for nearly everything."""
        if node.type == "for_statement":
            name = node.child_by_field_name("variable")
            if name is not None and self.script.text(name) in self.script.made:
                return "starts several jobs, but only under a condition: write them without it"
        slot = node.type == "variable_name" and self.script.text(node) == _JOB_SLOT
        if slot and not chooses_a_card(self.script, node) and not self._in_idle(node):
            return "uses the number of a slot: a job sees its card as cuda:0"
        return self.refused.get(self.script.text(node), "")

    def _only_for_masks(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Variables that are assigned here, and that nothing but masks and messages reads."""
        read: set[str] = set()
        chosen: set[str] = set()
        for node in nodes:
            for inner in walk(node):
                if inner.type != "variable_name" or self._is_target(inner):
                    continue
                name = self.script.text(inner)
                if chooses_a_card(self.script, inner) or self._in_message(inner):
                    chosen.add(name)
                else:
                    read.add(name)
        text = "".join(shell_text(self.script, node, masks=False) for node in nodes)
        loose = {name for name in chosen - read if "eval" in text and name in text}
        return frozenset(chosen - read - loose)

    def _is_target(self, name: Node) -> bool:
        parent = name.parent
        return parent is not None and parent.type == "variable_assignment"

    def _in_message(self, node: Node) -> bool:
        """Inside of an `echo` to the terminal."""
        parent = node.parent
        while parent is not None and parent.type != "command":
            parent = parent.parent
        return parent is not None and self._is_message(parent)

    def _is_message(self, command: Node) -> bool:
        parent = command.parent
        alone = parent is not None and parent.type not in (
            "pipeline",
            "redirected_statement",
            "command_substitution",
            "list",
        )
        return alone and self.script.words(command)[:1] in (["echo"], ["printf"])

    def _in_idle(self, node: Node) -> bool:
        """In the value of a variable that only chooses a card, or in a message."""
        parent = node.parent
        while parent is not None:
            if parent.type == "variable_assignment" and self._assigned(parent) in self.idle:
                return True
            parent = parent.parent
        return self._in_message(node)

    def _assigned(self, assignment: Node) -> str:
        name = assignment.child_by_field_name("name")
        return self.script.text(name) if name is not None else ""

    def _value(self, assignment: Node) -> str:
        value = assignment.child_by_field_name("value")
        return self.script.text(value) if value is not None else ""

    def _assignment(self, node: Node, edits: _Edits) -> None:
        name, parent = self._assigned(node), node.parent
        if name in self.idle and parent is not None and parent.type not in _KEEPS:
            self._cut_statement(node, edits)
            edits.remarks.append(
                StarterRemark(self.script.line(node), self.script.text(node), "only chose the card")
            )
            return
        if name not in OWNED or parent is None:
            return
        if name == MASK:
            edits.masks.append(self._value(node))
        else:
            why = f"{name} is set by gpulaunch itself"
            edits.remarks.append(StarterRemark(self.script.line(node), self.script.text(node), why))
        if parent.type == "command":
            self._cut_before_next(node, edits)
        elif parent.type == "declaration_command" and parent.named_child_count == 1:
            self._cut_statement(parent, edits)
        elif parent.type == "declaration_command":
            self._cut_before_next(node, edits)
        else:
            self._cut_statement(node, edits)

    def _cut_before_next(self, node: Node, edits: _Edits) -> None:
        after = node.next_sibling
        edits.cuts.append((node.start_byte, after.start_byte if after else node.end_byte, ""))

    def _cut_statement(self, node: Node, edits: _Edits) -> None:
        """`:` does nothing, and stands wherever a command may."""
        edits.cuts.append((node.start_byte, node.end_byte, ":"))

    def _env_mask(self, command: Node) -> tuple[Node, str] | None:
        """The mask among a command's words: `env CUDA_VISIBLE_DEVICES=1 cmd`, `time ...`."""
        for word in words_of(command):
            text = self.script.text(word)
            name, equals, value = text.partition("=")
            if name == MASK and equals:
                return word, value
            if not (text in WRAPPERS or re.match(r"-|\d|\w+=", text)):
                return None
        return None

    def _command(self, node: Node, edits: _Edits) -> None:
        self._join_lines(node, edits)
        words = words_of(node)
        if not words:
            return
        name = self.script.text(words[0])
        if name in ("module", "ml"):
            self._cut_statement(node, edits)
            edits.remarks.append(
                StarterRemark(self.script.line(node), self.script.text(node), MODULES)
            )
            return
        read = {self.script.text(one) for one in walk(node) if one.type == "variable_name"}
        if self._is_message(node) and read & (self.idle | {_JOB_SLOT}):
            self._cut_statement(node, edits)
            return
        if why := why_outside(behind_wrappers([self.script.text(word) for word in words])):
            raise Untranslatable(why)
        if (spelt := self._env_mask(node)) is not None:
            self._cut_env_mask(spelt, words, edits)
        if name in _DETACHING and len(words) > 1:
            self._cut_detaching(node, words, edits)
        elif name in self.functions:
            raise Untranslatable(
                f"calls {name}, a function of the script (line {self.functions[name]})"
            )
        elif name in ("continue", "break") and not self._inside_loop(node, edits):
            if name == "break":
                raise Untranslatable("break: jobs do not end each other; see --fail-fast")
            edits.cuts.append((node.start_byte, node.end_byte, "exit 0"))

    def _cut_detaching(self, node: Node, words: Sequence[Node], edits: _Edits) -> None:
        """`nohup`, and `setsid`, which would end at once while its child goes on."""
        for word in words[:-1]:
            name = self.script.text(word)
            if name not in _DETACHING:
                return
            self._cut_before_next(word, edits)
            why = f"{name}: `gpulaunch run --detach` goes on when the terminal is closed"
            edits.remarks.append(StarterRemark(self.script.line(node), name, why))

    def _cut_env_mask(self, spelt: tuple[Node, str], words: list[Node], edits: _Edits) -> None:
        """With the `env` before it, where that has nothing else to do."""
        edits.masks.append(spelt[1])
        start, at = spelt[0], words.index(spelt[0])
        rest = self.script.text(words[at + 1]) if at + 1 < len(words) else "-"
        if at and self.script.text(words[at - 1]) == "env" and not re.match(r"-|\w+=", rest):
            start = words[at - 1]
        after = spelt[0].next_sibling
        end = after.start_byte if after is not None else spelt[0].end_byte
        edits.cuts.append((start.start_byte, end, ""))

    def _inside_loop(self, node: Node, edits: _Edits) -> bool:
        """A loop that stays in the text, as against the one that became foreach."""
        parent = node.parent
        while parent is not None and parent.type not in _LOOPS:
            parent = parent.parent
        return parent is not None and any(
            top.start_byte <= parent.start_byte < top.end_byte for top in edits.tops
        )

    def _join_lines(self, command: Node, edits: _Edits) -> None:
        children = command.children
        for left, right in pairwise(children):
            gap = self.script.slice(left.end_byte, right.start_byte)
            if "\\\n" in gap:
                edits.cuts.append((left.end_byte, right.start_byte, joined(gap)))

    def _expansion(self, node: Node, edits: _Edits, loops: Sequence[ForeachLoop]) -> None:
        text = self.script.text(node)
        if text in ("$!", "$?"):
            raise Untranslatable(f"uses {text}, which belongs to the command before it")
        for loop in loops:
            if text in (f"${loop.variable}", f"${{{loop.variable}}}"):
                placed = f"\0{loop.placeholder}\0"
                edits.cuts.append((node.start_byte, node.end_byte, placed))

    # ── redirections ────────────────────────────────────────────────────────────────────────────

    def _redirect(self, node: Node, edits: _Edits) -> None:
        if not self.of_a_log(node):
            return
        before = node.prev_sibling
        start = before.end_byte if before is not None else node.start_byte
        edits.cuts.append((start, node.end_byte, ""))
        text = self.script.text(node)
        if not re.fullmatch(r"\d*>&\d", text):
            edits.remarks.append(StarterRemark(self.script.line(node), text, KEPT))

    def of_a_log(self, node: Node) -> bool:
        """A file that takes standard error, or is called a log, and that nothing else mentions."""
        text, siblings = self.script.text(node), self._beside(node)
        target = node.child_by_field_name("destination")
        if target is None or text.startswith("<") or self._in_a_pipe(node):
            return False
        name = self.script.text(target)
        if re.match(r"\d*>&", text) and name.isdigit():
            return any(self.of_a_log(one) for one in siblings if one.id != node.id and one != node)
        errors = text.startswith(("&>", "2>", ">&")) or any(
            self.script.text(one).startswith("2>&1") for one in siblings
        )
        if "/dev/null" in name:
            return errors
        alone = self.script.source.count(name.encode()) == 1
        stage = any(inner.type == "variable_name" for inner in walk(target))
        return (alone or stage) and bool(errors or _LOG.search(name))

    def _beside(self, node: Node) -> list[Node]:
        parent = node.parent
        if parent is None:
            return []
        return [one for one in parent.children if one.type == "file_redirect" and one != node]

    def _in_a_pipe(self, node: Node) -> bool:
        parent = node.parent
        while parent is not None and parent.type in ("redirected_statement", "command"):
            parent = parent.parent
        return parent is not None and parent.type in ("pipeline", "command_substitution")

    # ── the text ────────────────────────────────────────────────────────────────────────────────

    def _apply(self, start: int, end: int, edits: _Edits) -> str:
        out, at = [], start
        for left, right, new in sorted(edits.cuts, key=lambda cut: (cut[0], -cut[1])):
            if left < at or right > end or left < start:
                continue
            out += [self.script.slice(at, left), new or ""]
            at = right
        text = "".join([*out, self.script.slice(at, end)])
        text = re.sub(r"(?m)^[ \t]*:[ \t]*;?[ \t]*(\n|\Z)", "", text)
        text = re.sub(r"\A\s*:\s*(?:;|&&)\s*", "", text)
        pieces = re.split("\0([a-zA-Z_]\\w*)\0", text)
        done = [f"{{{{{piece}}}}}" if i % 2 else piece for i, piece in enumerate(pieces)]
        for i in range(0, len(done), 2):
            done[i] = escaped(done[i])
        return "".join(done).strip()


def _dedented(text: str) -> str:
    """Lines behind the first with what they have in common of their indentation gone."""
    first, newline, rest = text.partition("\n")
    return first + newline + dedent(rest)


def behind_wrappers(words: Sequence[str]) -> Sequence[str]:
    """A command's words from its own program on: without `nohup`, `timeout 2h` ..."""
    while words and words[0].rpartition("/")[2] in WRAPPERS:
        words = words[1:]
        while words and _OF_WRAPPER.fullmatch(words[0]):
            words = words[1:]
    return words


def mask_value(spelt: str, literals: dict[str, str]) -> str:
    """A mask as typed, a variable that is known replaced by its value."""
    match = re.fullmatch(r'"?\$\{?(\w+)\}?"?', spelt)
    return literals.get(match.group(1), spelt) if match else spelt
