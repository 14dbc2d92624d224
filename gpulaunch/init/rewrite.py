"""The script itself, with each masked command behind `gpulaunch exec --`.

Follows the script as bash would, statement by statement, without running it: which mask holds
where, and how many cards it names. A command gets one answer for all the ways that lead to it, or
the script is refused. bash still reads the new script, so that all else means what it meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.init.programs import (
    ENVIRONMENTS,
    ExecPlace,
    needs_no_card,
    placed,
    refuse_no_program,
    refuse_outside,
)
from gpulaunch.init.script import (
    MASK,
    Script,
    Unfit,
    above,
    assignments_of,
    edited,
    statements_of,
    walk,
    words_of,
)
from gpulaunch.init.values import (
    NATURAL,
    UNKNOWN,
    Known,
    Value,
    entries_of,
    is_word,
    plain,
)
from gpulaunch.jobfile.commands import BUILTINS

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
    """The places of a script that change when its commands go behind `gpulaunch exec --`."""

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


# ── The way through the script ────────────────────────────────────────────────────────────────────

MAX_STEPS = 50_000
"""Statements followed at most, those of loops and functions again and again."""
MAX_TURNS = 8
MAX_CALLS = 12
_ACTIVATES = re.compile(r"activate|conda|mamba|bashrc|profile|/etc/|modules|lmod", re.I)
_SETS = re.compile(r"\+\+|--|[^=!<>]=[^=]")


class Mask(Struct, frozen=True):
    """A mask that names `count` cards, of `texts`; -1 cards if it differs from way to way."""

    count: int = -1
    texts: Value = frozenset()


class ShellState(Struct):
    """What holds at one place of the script.

    `running` are the cards of commands in the background, `used` those of all commands so far;
    `apart` is True in the background. `sourced`: a file may have defined functions.
    """

    known: Known
    mask: Mask | None = None
    running: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    apart: bool = False
    sourced: bool = False

    def copy(self) -> ShellState:
        return replace(self, known=self.known.copy())

    def join(self, other: ShellState, widen: bool = False) -> None:
        """Keep what is true here and there."""
        self.known.join(other.known, widen)
        if self.mask != other.mask:
            one, two = self.mask or Mask(), other.mask or Mask()
            count = one.count if one.count == two.count else -1
            self.mask = Mask(count, one.texts | two.texts)
        self.running |= other.running
        self.used |= other.used
        self.sourced |= other.sourced


class ScriptFollower:
    """Follows one script, and gathers what is to be changed in it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.edits = Edits(script)
        self.functions: dict[str, list[Node]] = {}
        self.decided: dict[int, int] = {}
        self.shared: set[int] = set()
        self.cards: set[str] = set()
        self.wanting = self.steps = self.calls = 0

    def follow(self) -> None:
        """Follow the whole script. Raises Unfit."""
        source = self.script.source.decode("utf-8", "replace")
        splits = "IFS=" not in re.sub(r"IFS=\S*\s+(read|mapfile|readarray)", "", source)
        for node in walk(self.script.root):
            body = node.child_by_field_name("body")
            if node.type == "function_definition" and body is not None:
                self.functions.setdefault(self.script.part(node, "name"), []).append(body)
        self._block(self.script.root.children, ShellState(Known(self.script, splits=splits)))

    # ── statements ──────────────────────────────────────────────────────────────────────────────

    def _block(self, children: Sequence[Node], state: ShellState) -> None:
        """Follow the statements among these nodes, one after the other."""
        for at, node in enumerate(children):
            if at + 1 < len(children) and children[at + 1].type == "&":
                inner = replace(state.copy(), apart=True, used=frozenset())
                self._statement(node, inner)
                state.running |= inner.used
                state.used |= inner.used
            elif node.is_named:
                self._statement(node, state)

    def _statement(self, node: Node, state: ShellState) -> None:
        self.steps += 1
        try:
            if self.steps > MAX_STEPS:
                raise Unfit("the script has too many ways through it to follow them all")
            self._follow(node, state)
        except Unfit as unfit:
            unfit.line = unfit.line or self.script.line(node)
            raise

    def _follow(self, node: Node, state: ShellState) -> None:
        kind, children = node.type, node.children
        if kind in _SIMPLE:
            _SIMPLE[kind](self, node, state)
        elif kind == "redirected_statement":
            body = [child for child in children if child == node.child_by_field_name("body")]
            for child in (child for child in children if child not in body):
                self._substituted(child, state)
            self._block(body, state)
        elif kind == "pipeline":
            if sum([self._apart([child], state) for child in node.named_children]) > 1:
                why = "two commands of a pipe have masks: each may wait for the other's card"
                raise Unfit(why)
        elif kind == "list":
            self._statement(children[0], state)
            self._arms([[children[-1]]], state, False)
        elif kind == "subshell":
            self._apart(children, state)
        elif kind == "compound_statement" and self.script.text(node).startswith("(("):
            for child in node.named_children:
                self._substituted(child, state)
                state.known.number(child)
        elif kind in ("compound_statement", "negated_command"):
            self._block(children, state)
        elif kind in ("if_statement", "case_statement"):
            self._branches(node, state)
        elif kind in ("for_statement", "c_style_for_statement", "while_statement"):
            self._loop(node, state)
        elif kind not in ("comment", "function_definition"):  # a function runs where it is called
            raise Unfit(f"gpulaunch does not follow what bash calls a {kind}")

    def _substituted(self, node: Node, state: ShellState) -> None:
        """Follow the commands within `$(...)` and `<(...)`."""
        pending = [node]
        while pending:
            one = pending.pop()
            text = self.script.text(one) if one.type == "arithmetic_expansion" else ""
            if node.type != "variable_assignment" and _SETS.search(text):
                for name in re.findall(r"[A-Za-z_]\w*", text):
                    state.known.forget(name)
            if one.type not in ("command_substitution", "process_substitution"):
                pending.extend(one.children)
                continue
            children = [child for child in one.children if child.type != "file_redirect"]
            if not self._apart(children, state):
                continue
            if one.type == "process_substitution":
                raise Unfit("a command of <(...) has a mask, and runs beside the one that reads it")
            if re.search(r"2>&1|&>|\|&", self.script.text(one)):
                raise Unfit("what gpulaunch exec says while it waits would be part of this value")

    def _apart(self, children: Sequence[Node], state: ShellState) -> bool:
        """Follow statements in a shell of their own; return whether one of them has a mask."""
        before, inner = self.wanting, state.copy()
        self._block(children, inner)
        state.used |= inner.used
        state.running |= inner.running
        return self.wanting > before

    def _branches(self, node: Node, state: ShellState) -> None:
        """Follow `if` and `case`."""
        children, arms = node.children, []
        clauses = [child for child in children if child.type.endswith(("_clause", "_item"))]
        if node.type == "if_statement":
            then = next(at for at, child in enumerate(children) if child.type == "then")
            self._block(children[:then], state)
            arms = [[child for child in children[then:] if child not in clauses]]
        for clause in clauses:
            values = clause.children_by_field_name("value")
            arms.append([child for child in clause.children if child not in values])
        self._arms(arms, state, bool(clauses) and clauses[-1].type == "else_clause")

    def _arms(self, arms: Sequence[list[Node]], state: ShellState, complete: bool) -> None:
        """Follow arms of which one is taken, or none unless they are `complete`."""
        ends = [state.copy() for _ in arms]
        for arm, end in zip(arms, ends, strict=True):
            self._block(arm, end)
        first, *others = ends if complete else [*ends, state.copy()]
        for other in others:
            first.join(other)
        for name in ShellState.__struct_fields__:
            setattr(state, name, getattr(first, name))

    def _loop(self, node: Node, state: ShellState) -> None:
        """Follow turns of a loop until one more changes nothing of what is known."""
        body, name = node.child_by_field_name("body"), self.script.part(node, "variable")
        head = [child for child in node.children if child != body]
        values = node.children_by_field_name("value")
        for value in values:
            self._substituted(value, state)
        found = state.known.items(values) if values else None
        items = UNKNOWN if found is None else frozenset[str]().union(*found[0])
        self._count(node, "initializer", state)
        for number in range(MAX_TURNS):
            before = state.copy()
            if node.type == "while_statement":
                self._block(head, state)
            elif name:
                state.known.set(name, items)
            self._count(node, "condition", state)
            self._block(body.children if body else [], state)
            self._count(node, "update", state)
            state.join(before, widen=number > 0)
            if (state.known, state.mask) == (before.known, before.mask):
                break
        else:
            raise Unfit("the loop changes too much to be followed")
        if found is None or not found[1]:
            state.known.forget(name)

    def _count(self, node: Node, part: str, state: ShellState) -> None:
        """Follow a part of `for ((...; ...; ...))`."""
        if node.type == "c_style_for_statement":
            for one in node.children_by_field_name(part):
                state.known.number(one)

    # ── variables ───────────────────────────────────────────────────────────────────────────────

    def _assignments(self, node: Node, state: ShellState) -> None:
        for part in [node] if node.type == "variable_assignment" else node.named_children:
            self._substituted(part, state)
            state.known.assign(part)
            if self.script.part(part, "name") == MASK:
                raise Unfit(f"sets {MASK} without export: programs may see it, or may not")

    def _declaration(self, node: Node, state: ShellState) -> None:
        """Follow `export`, `local` and their kin."""
        words = [self.script.text(child) for child in node.children]
        flags = [word for word in words[1:] if word.startswith("-")]
        for part in node.named_children:
            name = self.script.part(part, "name") or self.script.text(part)
            if part.type == "variable_assignment":
                self._substituted(part, state)
                state.known.assign(part)
            if flags or (part.type == "variable_name" and words[0] == "local"):
                state.known.forget(name)
            if name == MASK and (flags or words[0] != "export" or part.type == "variable_name"):
                raise Unfit(f"gpulaunch does not follow a mask that is set so: {' '.join(words)}")
            if name == MASK:
                self._export(node, part, state)

    def _export(self, statement: Node, part: Node, state: ShellState) -> None:
        """Follow a mask that holds for all that follows, and remove it if it names cards."""
        self.edits.understood(part)
        value = part.child_by_field_name("value")
        state.mask = Mask(*state.known.mask(part, value))
        if not state.mask.count or value is None:
            raise Unfit("hides all cards from what follows, so that gpulaunch exec finds none")
        self.edits.chose(value)
        if statement.named_child_count == 1:
            self.edits.remove(statement)
        else:
            self.edits.cut(part)

    def _unset(self, node: Node, state: ShellState) -> None:
        for part in node.named_children:
            state.known.forget(self.script.text(part))
            if self.script.text(part) == MASK:
                self.edits.understood(part)
                state.mask = None

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def _command(self, node: Node, state: ShellState) -> None:
        for child in node.children:
            self._substituted(child, state)
        words = words_of(node)
        name = self.script.text(words[0]) if words else ""
        own = [one for one in assignments_of(node) if self.script.part(one, "name") == MASK]
        if not own and name in self.functions:
            self._call(name, words[1:], state)
        elif not own and name in BUILTINS - {"exec", "command", "time"} | {"pkill", "killall"}:
            self._builtin(name, [self.script.text(word) for word in words[1:]], state)
        elif not own and name in ENVIRONMENTS and self.script.text(words[1 % len(words)]) != "run":
            return  # sets up an environment for what follows
        elif words and (len(words) > 1 or name not in ("exec", "command", "time")):
            self._program(node, words, own, state)

    def _program(self, node: Node, words: list[Node], own: list[Node], state: ShellState) -> None:
        typed = [self.script.text(word) for word in words]
        place = placed(typed)
        mask = state.mask
        if own or place.mask >= 0:
            mask = self._own_mask(own[-1] if own else words[place.mask], state)
        elif mask is not None and (len(typed) <= place.at or needs_no_card(typed)):
            mask = None
        if mask is not None and mask.count < 0:
            raise Unfit("the mask of this command is not the same on every way to it")
        count = mask.count if mask is not None else 0  # what hides all cards stays as it is
        if self.decided.setdefault(node.start_byte, count) != count:
            raise Unfit("the mask of this command does not always name the same number of cards")
        if mask is None or not count:
            return
        refuse_outside(typed[place.at :])
        if len(own) > 1:
            raise Unfit("the command has two masks")
        behind = place.mask + 1 if place.mask >= 0 and place.env in (place.at, -1) else place.at
        program = words[behind] if behind < len(words) else None
        value = state.known.value(program)
        if program is not None and self.script.text(program) == '"$@"' and state.known.arguments:
            value = state.known.arguments[0]
        refuse_no_program(value, self.functions, state.sourced)
        self.wanting += 1
        self._beside(node, mask, state)
        self.edits.put_behind(own, words, place, count)

    def _own_mask(self, node: Node, state: ShellState) -> Mask:
        """Return the mask that a command alone has: an assignment before it, or a word of `env`."""
        assigned = node.type == "variable_assignment"
        value = node.child_by_field_name("value") if assigned else node
        mask = Mask(*state.known.mask(node, value))
        self.edits.understood(node)
        if value is not None and mask.count:
            self.edits.chose(value)
        return mask

    def _beside(self, node: Node, mask: Mask, state: ShellState) -> None:
        """Note the cards of a command. Raises Unfit if it may wait for one in the background."""
        cards = entries_of(mask.texts)
        wild = any(NATURAL in card for card in cards | state.running)
        if state.running and (wild or cards & state.running):
            if not state.apart:
                raise Unfit(
                    "runs on a card beside a command in the background: behind gpulaunch exec each"
                    " has a card of its own, and this one may wait for the other for ever"
                )
            if plain(mask.texts) is not None:
                self.shared.add(self.script.line(node))
        state.used |= cards
        self.cards |= cards

    def _call(self, name: str, words: Sequence[Node], state: ShellState) -> None:
        if len(self.functions[name]) > 1 or self.calls > MAX_CALLS:
            raise Unfit(f"the function {name} is defined twice, or calls itself")
        before, given = state.known.copy(), []
        for word in words:
            value, text = state.known.value(word), self.script.text(word)
            one = word.type in ("raw_string", "string") and not re.search(r"\$@|\[@", text)
            if not one and not is_word(value):
                break  # this word may be several, or none
            given.append(value)
        state.known.arguments = tuple(given)
        self.calls += 1
        self._statement(self.functions[name][0], state)
        self.calls -= 1
        state.known.arguments = before.arguments
        state.known.join(before)  # what is local holds no more

    def _builtin(self, name: str, words: Sequence[str], state: ShellState) -> None:
        """Follow a builtin that changes what follows."""
        known, typed = state.known, " ".join(words)
        if name == "wait" and "-n" not in words:
            state.running = frozenset()
        elif name in ("read", "mapfile", "readarray", "getopts", "printf"):
            for word in words:
                known.forget(word)
        elif name == "set" and not re.fullmatch(r"([-+][a-zA-Z]+ ?|pipefail ?|errexit ?)+", typed):
            known.arguments = None
        elif name == "shift":
            given = known.arguments
            known.arguments = given[1:] if given is not None and not words else None
        elif name == "let":
            for word in words:
                known.number_in(word.strip("\"'"))
        elif name in ("source", ".", "eval") and not _ACTIVATES.search(typed):
            if state.mask is not None:
                raise Unfit("what this reads or runs under the mask is not known")
            state.known, state.sourced = Known(self.script, splits=known.splits), True
        elif name in ("kill", "pkill", "killall"):
            raise Unfit("ends a command that may not have begun: gpulaunch exec waits for a card")
        elif name == "shopt" and ("lastpipe" in words or "expand_aliases" in words):
            raise Unfit("gpulaunch does not follow a script with this option")


_SIMPLE: dict[str, Callable[[ScriptFollower, Node, ShellState], None]] = {
    "test_command": ScriptFollower._substituted,
    "variable_assignment": ScriptFollower._assignments,
    "variable_assignments": ScriptFollower._assignments,
    "declaration_command": ScriptFollower._declaration,
    "unset_command": ScriptFollower._unset,
    "command": ScriptFollower._command,
}
