"""The places of a script that change when its commands go behind `gpulaunch exec --`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.init.programs import ExecPlace
from gpulaunch.init.script import MASK, Script, Unfit, above, edited, statements_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_IN_TEXT = (
    f"{MASK} stands in a text that another program reads: write gpulaunch exec -- there by hand, in"
    " its place"
)
_RUN_IN_TEXT = re.compile(
    rf"{MASK}=(?:\$\(\(.*?\)\)|\S)*\s+(?:nohup +)?([^;&|<>'\"\n]*[^;&|<>'\"\s])"
)
_BLOCKS = ("program", "do_group", "compound_statement", "subshell")
_REST_OF_LINE = re.compile(rb"[ \t]*;?[ \t]*(#.*)?")
_READS_ALL = re.compile(r"\$\?|PIPESTATUS|\beval\b|\bsource\b|^\s*\. |allexport|set -\w*[ae]", re.M)


class Edits:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.changes: dict[tuple[int, int], str] = {}
        self.seen: set[int] = set()
        self.chosen: list[str] = []

    def understood(self, node: Node) -> None:
        """Note that the mask named in this node is accounted for."""
        found = re.finditer(MASK.encode(), self.script.source[node.start_byte : node.end_byte])
        self.seen |= {node.start_byte + match.start() for match in found}

    def chose(self, value: Node) -> None:
        """Note the variables that a removed mask has read."""
        self.chosen += [self.script.text(one) for one in walk(value) if one.type == "variable_name"]

    def result(self) -> str:
        """Return the new script. Raises Unfit if it names the mask where nobody looked."""
        for match in re.finditer(MASK.encode(), self.script.source):
            if match.start() not in self.seen:
                self._refuse_unseen(match.start())
        self._tidy()
        place = self.script.place
        changes = ((place(a), place(b), text) for (a, b), text in self.changes.items())
        return edited(self.script.typed, changes)

    def _refuse_unseen(self, at: int) -> None:
        node = self.script.root.descendant_for_byte_range(at, at + 1)
        around = {one.type: one for one in [node, *above(node)]} if node is not None else {}
        document = around.get("heredoc_redirect")
        if "comment" in around or (document and _reads_nothing(self.script, document)):
            return
        text = around.get("string") or around.get("raw_string")
        why = _IN_TEXT
        if node is not None and node.parent is not None and "expansion" in node.parent.type:
            why = f"reads {MASK}, which the script would not set any more"
        elif text and (match := _RUN_IN_TEXT.search(self.script.text(text))):
            job = f"jobs:\n      - name: a\n        run: {match.group(1)}"
            why += f", or write a job file:\n    {job}"
        elif not text and (function := around.get("function_definition")):
            name = self.script.part(function, "name")
            why = f"the function {name} is not called by its name here"
        raise Unfit(why, self.script.source.count(b"\n", 0, at) + 1)

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def put_behind(
        self, own: Sequence[Node], words: Sequence[Node], place: ExecPlace, count: int
    ) -> None:
        """Put a command behind `gpulaunch exec --`, and remove its mask."""
        head = f"gpulaunch exec -g {count} --" if count != 1 else "gpulaunch exec --"
        target, typed = words[place.at].start_byte, [self.script.text(word) for word in words]
        start = end = target
        if own:
            after = own[-1].next_sibling
            start, end = own[-1].start_byte, after.start_byte if after else own[-1].end_byte
        elif place.mask >= 0:
            first, after_mask = place.mask, typed[place.mask + 1 :] or ["-"]
            if after_mask[0].startswith("-") or (place.env < 0 and typed[:first] != ["time"]):
                raise Unfit(f"gpulaunch does not know what {MASK}= means among these words")
            if place.env == first - 1 and "=" not in after_mask[0]:
                first = place.env
            start, end = words[first].start_byte, words[place.mask + 1].start_byte
        if end == target and own:
            self.changes[start, own[-1].end_byte] = head
        elif target in (start, end):
            self.changes[start, end] = f"{head} "
        else:
            self.changes[start, end] = ""
            self.changes[target, target] = f"{head} "

    # ── statements ──────────────────────────────────────────────────────────────────────────────

    def cut(self, word: Node) -> None:
        """Remove a word of a command, and the blanks before it."""
        before = word.prev_sibling
        start = before.end_byte if before is not None else word.start_byte
        self.changes[start, word.end_byte] = ""

    def remove(self, node: Node) -> None:
        """Remove a statement; `:` takes its place where the shell wants one."""
        after, parent = node.next_named_sibling, node.parent
        block = parent is not None and parent.type in _BLOCKS
        if line := self._line_of(node):
            self.changes[line] = ""
        elif block and after is not None and after.start_point.row == node.end_point.row:
            self.changes[node.start_byte, after.start_byte] = ""
        else:
            self.changes[node.start_byte, node.end_byte] = ":"

    def _line_of(self, node: Node) -> tuple[int, int] | None:
        """Return the line of a statement that has the line alone, and stands beside others."""
        source, parent = self.script.source, node.parent
        start = source.rfind(b"\n", 0, node.start_byte) + 1
        end = (source.find(b"\n", node.end_byte) + 1 or len(source) + 1) - 1
        alone = not source[start : node.start_byte].strip()
        if parent is None or parent.type not in _BLOCKS or not alone:
            return None
        others = [one for one in parent.named_children if one.type != "comment" and one != node]
        gone = [place for place, text in self.changes.items() if not text]
        others = [
            one
            for one in others
            if not any(left <= one.start_byte and one.end_byte <= right for left, right in gone)
        ]
        whole = _REST_OF_LINE.fullmatch(source[node.end_byte : end])
        return (start, end + 1) if whole and (others or parent.type == "program") else None

    def _tidy(self) -> None:
        """Remove the variables that only chose a card, if nothing else reads them."""
        pending = [*self.chosen]
        while pending and not _READS_ALL.search(self.script.source.decode("utf-8", "replace")):
            for node in self._only_chooses(pending.pop()):
                self.remove(node)
                pending += [self.script.text(n) for n in walk(node) if n.type == "variable_name"]

    def _only_chooses(self, name: str) -> list[Node]:
        """Return the statements that set a variable, if nothing reads it; otherwise none."""
        nodes = list(walk(self.script.root))
        found = [node for node in nodes if self._sets(node) == name]
        gone = [*found, *(node for node in nodes if node.type == "comment")]
        spans = [*self.changes, *((node.start_byte, node.end_byte) for node in gone)]
        for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)".encode(), self.script.source):
            if not any(start <= match.start() < end for start, end in spans):
                return []
        fresh = [node for node in found if self._line_of(node) not in self.changes]
        return fresh if all(map(self._is_removable, found)) else []

    def _sets(self, node: Node) -> str:
        """Return the variable that a statement sets, if it does nothing else."""
        text = self.script.text(node)
        if node.type == "variable_assignment" and node.parent and node.parent.type in _BLOCKS:
            return (
                "" if re.search(r"\+\+|--|\$\([^(]|`|<\(", text) else self.script.part(node, "name")
            )
        if node.type == "declaration_command" and node.named_child_count == 1:
            return self.script.part(node.named_children[0], "name") if text[:5] == "local" else ""
        match = re.fullmatch(r"\(\(\s*(\w+)\s*(\+\+|\+=\s*1|=[^=,]*)\s*\)\)", text)
        return match.group(1) if match and node.type == "compound_statement" else ""

    def _is_removable(self, node: Node) -> bool:
        """Tell whether a block means the same without a statement, its status included."""
        pairs = statements_of(node.parent) if node.parent is not None else []
        pairs = [pair for pair in pairs if pair[0].type != "comment"]
        at = next((at for at, pair in enumerate(pairs) if pair[0] == node), -1)
        last = at == len(pairs) - 1 and not (at > 0 and pairs[at - 1][1])
        return self._line_of(node) is not None and not last and not pairs[at][1]


def _reads_nothing(script: Script, document: Node) -> bool:
    """Tell whether a here-document, its mark in quotes, is one of the command `:`, or of none."""
    body = document.parent.child_by_field_name("body") if document.parent is not None else None
    quoted = script.text(document).lstrip("<- ")[:1] in ("'", '"', "\\")
    return quoted and (body is None or script.text(body) == ":")
