"""Commands of the script as the `run` of one job: the source, letter by letter, with cuts.

cut        masks, nohup, a log's redirections, the & at the end      (each remarked where told)
replaced   $f of a loop -> {{item}}, continue -> exit 0
escaped    {{name}} of the script itself
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpulaunch.jobfile.commands import PREFIXES
from gpulaunch.jobfile.convert import MASKS
from gpulaunch.starter.emit import escaped
from gpulaunch.starter.entry import ForeachLoop, StarterRemark, Untranslatable
from gpulaunch.starter.mask import MASK
from gpulaunch.starter.outside import why_outside
from gpulaunch.starter.shell import (
    Script,
    above,
    behind_wrappers,
    chooses_a_card,
    forks,
    is_late_ampersand,
    joined,
    lone,
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
_BLIND = ("heredoc_body", "arithmetic_expansion", "expansion", "subscript", "array")
_JOB_SLOT = "PARALLEL_JOBSLOT"
_USED = ("pipeline", "redirected_statement", "command_substitution", "list")
_KEEPS = ("command", "declaration_command")
_DETACHING = ("nohup", "setsid")
_LOOPS = ("for_statement", "c_style_for_statement", "while_statement")

KEPT = "gpulaunch keeps the output: logs/JOB.N.log of the run, and `gpulaunch logs JOB` shows it"


class Rendered(Struct):
    """`variables` must be given by `env` as the item, since the text uses them in shell's ways."""

    text: str
    masks: list[str]
    remarks: list[StarterRemark]
    variables: tuple[ForeachLoop, ...] = ()


class _Edits(Struct):
    """What becomes of `tops`, the commands of one job: (start, end, new words), and what of it."""

    script: Script
    tops: Sequence[Node]
    cuts: list[tuple[int, int, str]] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    remarks: list[StarterRemark] = field(default_factory=list)

    def remark(self, node: Node, why: str, text: str = "") -> None:
        text = text or self.script.text(node)
        self.remarks.append(StarterRemark(self.script.line(node), text, why))

    def replace(self, node: Node, new: str) -> None:
        self.cuts.append((node.start_byte, node.end_byte, new))

    def drop(self, node: Node) -> None:
        """Cut a statement; `:` does nothing, and stands wherever a command may."""
        self.replace(node, ":")

    def cut_word(self, node: Node) -> None:
        """Cut a word with the blanks behind it."""
        after = node.next_sibling
        self.cuts.append((node.start_byte, after.start_byte if after else node.end_byte, ""))


class Renderer:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.functions: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.idle: frozenset[str] = frozenset()
        self.exported: set[int] = set()

    def render(self, groups: Sequence[Sequence[Node]], loops: tuple[ForeachLoop, ...]) -> Rendered:
        """Write the groups, each a stretch of the source, as lines of their own.

        Raises Untranslatable and Unwritable.
        """
        nodes = [node for group in groups for node in group]
        self.idle = self._only_for_masks(nodes)
        by_env = tuple(loop for loop in loops if self._in_shell_ways(nodes, loop.variable))
        edits = _Edits(self.script, nodes)
        for node in nodes:
            self._collect(node, edits, [loop for loop in loops if loop not in by_env])
        text = "\n".join(filter(None, (self._line(group, edits) for group in groups)))
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
            first, newline, rest = text.partition("\n")
            text = first + newline + dedent(rest)
        return f"export {text}" if group[0].start_byte in self.exported else text

    def _spans_lines(self, top: Node) -> bool:
        """Tell whether a text goes over several lines, so that its blanks count."""
        texts = ("string", "raw_string", "ansi_c_string", "heredoc_body")
        return any("\n" in self.script.text(one) for one in walk(top) if one.type in texts)

    def masks(self, node: Node) -> list[str]:
        """Return the masks named in it, without a word on the rest."""
        found = []
        for inner in walk(node):
            if inner.type == "variable_assignment" and self.script.part(inner, "name") == MASK:
                found.append(self.script.part(inner, "value"))
            elif inner.type == "command" and (spelt := self._env_mask(inner)) is not None:
                found.append(spelt[1])
        return found

    def _in_shell_ways(self, nodes: Sequence[Node], variable: str) -> bool:
        """Tell whether some use of it is more than `$f` where a value can be inserted."""
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
        """Tell whether a placeholder cannot be quoted here."""
        for one in above(node):
            if one == node.parent and one.type == "expansion":
                continue  # its own braces
            if one.type in _BLIND or self.script.text(one).startswith(("((", "[[")):
                return True
            if one.type == "command_substitution":
                return self.script.text(one).startswith("`") or self._blind(one)
        return False

    # ── what changes ────────────────────────────────────────────────────────────────────────────

    def _collect(self, top: Node, edits: _Edits, loops: Sequence[ForeachLoop]) -> None:
        if given := _GIVEN.search(shell_text(self.script, top)):
            raise Untranslatable(f"uses {given.group()}, a word of the script's own command line")
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
                edits.replace(node, "")
            elif kind in ("simple_expansion", "expansion"):
                self._expansion(node, edits, loops)
            elif kind in ("word", "string_content") and (
                match := _OTHER_CARD.search(self.script.text(node))
            ):
                why = f"asks for {match.group()}, but a job sees one card, cuda:0: change it"
                edits.remark(node, why)

    def _refused(self, node: Node) -> str:
        """Return why nothing around a node can be a job; empty for nearly all nodes."""
        if node.type == "for_statement" and self.script.part(node, "variable") in self.script.made:
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
                parent = inner.parent
                target = parent is not None and parent.type == "variable_assignment"
                if inner.type != "variable_name" or target:
                    continue
                name = self.script.text(inner)
                if chooses_a_card(self.script, inner) or self._in_message(inner):
                    chosen.add(name)
                else:
                    read.add(name)
        text = "".join(shell_text(self.script, node, masks=False) for node in nodes)
        loose = {name for name in chosen - read if "eval" in text and name in text}
        return frozenset(chosen - read - loose)

    def _in_message(self, node: Node) -> bool:
        """Inside of an `echo` to the terminal."""
        command = next((one for one in above(node) if one.type == "command"), None)
        return command is not None and self._is_message(command)

    def _is_message(self, command: Node) -> bool:
        parent = command.parent
        alone = parent is not None and parent.type not in _USED
        return alone and self.script.words(command)[:1] in (["echo"], ["printf"])

    def _in_idle(self, node: Node) -> bool:
        """In the value of a variable that only chooses a card, or in a message."""
        assigned = (one for one in above(node) if one.type == "variable_assignment")
        return self._in_message(node) or any(
            self.script.part(one, "name") in self.idle for one in assigned
        )

    def _assignment(self, node: Node, edits: _Edits) -> None:
        name, parent = self.script.part(node, "name"), node.parent
        if name in self.idle and parent is not None and parent.type not in _KEEPS:
            edits.drop(node)
            edits.remark(node, "only chose the card")
            return
        if name not in MASKS or parent is None:
            return
        if name == MASK:
            edits.masks.append(self.script.part(node, "value"))
        else:
            edits.remark(node, f"{name} is set by gpulaunch itself")
        if parent.type == "declaration_command" and parent.named_child_count == 1:
            edits.drop(parent)
        elif parent.type in _KEEPS:
            edits.cut_word(node)
        else:
            edits.drop(node)

    def _env_mask(self, command: Node) -> tuple[Node, str] | None:
        """Return the mask among a command's words: `env CUDA_VISIBLE_DEVICES=1 cmd`, `time ...`."""
        for word in words_of(command):
            text = self.script.text(word)
            name, equals, value = text.partition("=")
            if name == MASK and equals:
                return word, value
            if not (text in PREFIXES or re.match(r"-|\d|\w+=", text)):
                return None
        return None

    def _command(self, node: Node, edits: _Edits) -> None:
        self._join_lines(node, edits)
        words = words_of(node)
        if not words:
            return
        name = self.script.text(words[0])
        read = {self.script.text(one) for one in walk(node) if one.type == "variable_name"}
        if self._is_message(node) and read & (self.idle | {_JOB_SLOT}):
            edits.drop(node)
            return
        if why := why_outside(behind_wrappers([self.script.text(word) for word in words])):
            raise Untranslatable(why)
        if (spelt := self._env_mask(node)) is not None:
            self._cut_env_mask(*spelt, words, edits)
        if name in _DETACHING and len(words) > 1:
            self._cut_detaching(node, words, edits)
        elif name in self.functions:
            raise Untranslatable(
                f"calls {name}, a function of the script (line {self.functions[name]})"
            )
        elif name in ("continue", "break") and not self._inside_loop(node, edits):
            if name == "break":
                raise Untranslatable("break: jobs do not end each other; see --fail-fast")
            edits.replace(node, "exit 0")

    def _cut_detaching(self, node: Node, words: Sequence[Node], edits: _Edits) -> None:
        """`nohup`, and `setsid`, which would end at once while its child goes on."""
        for word in words[:-1]:
            name = self.script.text(word)
            if name not in _DETACHING:
                return
            edits.cut_word(word)
            why = f"{name}: `gpulaunch run --detach` goes on when the terminal is closed"
            edits.remark(node, why, name)

    def _cut_env_mask(self, word: Node, mask: str, words: list[Node], edits: _Edits) -> None:
        """Cut a mask with the `env` before it, if that does nothing else."""
        edits.masks.append(mask)
        edits.cut_word(word)
        at = words.index(word)
        rest = self.script.text(words[at + 1]) if at + 1 < len(words) else "-"
        if at and self.script.text(words[at - 1]) == "env" and not re.match(r"-|\w+=", rest):
            edits.cut_word(words[at - 1])

    def _inside_loop(self, node: Node, edits: _Edits) -> bool:
        """Tell whether a loop around stays in the text, unlike the one that became foreach."""
        loop = next((one for one in above(node) if one.type in _LOOPS), None)
        return loop is not None and any(
            top.start_byte <= loop.start_byte < top.end_byte for top in edits.tops
        )

    def _join_lines(self, command: Node, edits: _Edits) -> None:
        for left, right in pairwise(command.children):
            gap = self.script.slice(left.end_byte, right.start_byte)
            if "\\\n" in gap:
                edits.cuts.append((left.end_byte, right.start_byte, joined(gap)))

    def _expansion(self, node: Node, edits: _Edits, loops: Sequence[ForeachLoop]) -> None:
        text = self.script.text(node)
        if text in ("$!", "$?"):
            raise Untranslatable(f"uses {text}, which belongs to the command before it")
        for loop in loops:
            if text in (f"${loop.variable}", f"${{{loop.variable}}}"):
                edits.replace(node, f"\0{loop.placeholder}\0")

    # ── redirections ────────────────────────────────────────────────────────────────────────────

    def _redirect(self, node: Node, edits: _Edits) -> None:
        if not self.of_a_log(node):
            return
        before = node.prev_sibling
        start = before.end_byte if before is not None else node.start_byte
        edits.cuts.append((start, node.end_byte, ""))
        text = self.script.text(node)
        if not re.fullmatch(r"\d*>&\d", text):
            edits.remark(node, KEPT)

    def of_a_log(self, node: Node) -> bool:
        """Tell whether a redirection goes to a mere log: of errors, or named so and unused."""
        text, parent = self.script.text(node), node.parent
        beside = parent.children if parent is not None else []
        siblings = [one for one in beside if one.type == "file_redirect" and one != node]
        target = node.child_by_field_name("destination")
        if target is None or text.startswith("<") or self._in_a_pipe(node):
            return False
        name = self.script.text(target)
        if re.match(r"\d*>&", text) and name.isdigit():
            return any(map(self.of_a_log, siblings))
        errors = text.startswith(("&>", "2>", ">&")) or any(
            self.script.text(one).startswith("2>&1") for one in siblings
        )
        if "/dev/null" in name:
            return errors
        alone = self.script.source.count(name.encode()) == 1
        stage = any(inner.type == "variable_name" for inner in walk(target))
        return (alone or stage) and bool(errors or _LOG.search(name))

    def _in_a_pipe(self, node: Node) -> bool:
        outer = (one for one in above(node) if one.type not in ("redirected_statement", "command"))
        around = next(outer, None)
        return around is not None and around.type in ("pipeline", "command_substitution")

    # ── the text ────────────────────────────────────────────────────────────────────────────────

    def _apply(self, start: int, end: int, edits: _Edits) -> str:
        text = self.script.edited(start, end, edits.cuts)
        text = re.sub(r"(?m)^[ \t]*:[ \t]*;?[ \t]*(\n|\Z)", "", text)
        text = re.sub(r"\A\s*:\s*(?:;|&&)\s*", "", text)
        pieces = enumerate(re.split("\0([a-zA-Z_]\\w*)\0", text))
        done = (f"{{{{{piece}}}}}" if i % 2 else escaped(piece) for i, piece in pieces)
        return "".join(done).strip()


def mask_value(spelt: str, literals: dict[str, str]) -> str:
    """Return a mask as typed, a variable that is known replaced by its value."""
    return literals.get(lone(spelt.strip('"')), spelt)
