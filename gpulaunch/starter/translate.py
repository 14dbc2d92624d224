"""A shell script of `CUDA_VISIBLE_DEVICES=N cmd &` lines to the job file that replaces it.

Walks the script as a shell would, statement by statement, keeping what the shell would know
(`Scope`) and what would have ended (`Order`); a command becomes an entry. What has no counterpart
becomes a remark with its line: nothing is dropped in silence.

    cmd &            runs beside what follows          cmd        ends before what follows: `after`
    wait             all before it have ended: `after` set -e, && the same, but succeeded: `needs`
    for f in *.x     foreach                           for in for matrix
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpulaunch.starter import loops as lp
from gpulaunch.starter.emit import Unwritable, job_file
from gpulaunch.starter.entry import StarterRemark, Translation
from gpulaunch.starter.exported import entries_of, is_export
from gpulaunch.starter.launch import Launcher
from gpulaunch.starter.loops import Untranslatable
from gpulaunch.starter.mask import OWNED
from gpulaunch.starter.memory import CONDA, PRINTS, Memory
from gpulaunch.starter.notes import Notes
from gpulaunch.starter.render import KEPT, Renderer
from gpulaunch.starter.scope import Order, Scope
from gpulaunch.starter.shell import broken, is_late_ampersand, variables_in, walk
from gpulaunch.starter.unfold import Unfolded, unfold
from gpulaunch.starter.unfold.strings import Read

if TYPE_CHECKING:
    from tree_sitter import Node

_GROUPS = ("subshell", "compound_statement")
_WAITS = frozenset({"wait", "sleep", "jobs", "wc", "test", "[", ":", "true", "pgrep", "grep"})


def translate(script: str, name: str, read: Read = lambda path: None) -> Translation:
    """The job file that replaces the script, and what of it has no counterpart.

    `name` is how the file's header calls the script; `read` gives the text of a file that it
    names, as `sbatch job.sh` does. Never fails: at worst all is remarked.
    """
    if is_export(script):
        return _of_export(script.replace("\r\n", "\n"), name, read)
    try:
        return _Translator(unfold(script, read), name).run()
    except Untranslatable as no:
        why = str(no)
    except RecursionError:
        why = "groups, or commands in strings, inside each other too often to be read"
    return Translation("", (StarterRemark(1, script.strip().split("\n")[0], why),))


def _of_export(script: str, name: str, read: Read) -> Translation:
    """The jobs of what `gpulaunch export` wrote, under their own names."""
    try:
        return Translation(job_file(name, entries_of(script, read), ()), ())
    except (Untranslatable, Unwritable) as no:
        return Translation("", (StarterRemark(1, script.strip().split("\n")[0], str(no)),))


class _Translator:
    def __init__(self, unfolded: Unfolded, name: str) -> None:
        script = self.script = unfolded.script
        self.called, self.refused = unfolded.called, unfolded.refused
        self.title = name
        self.notes = Notes(script)
        self.notes.remarks += unfolded.remarks
        self.renderer = Renderer(script)
        self.renderer.refused = unfolded.refused
        self.memory = Memory(script, self.renderer, self.notes)
        self.launcher = Launcher(script, self.renderer, self.notes)
        self.comments: list[str] = []
        self.lost = False

    def run(self) -> Translation:
        self._block(_statements(self.script.root), Scope(), Order())
        remarks = self.notes.all()
        # What is left when all work was lost, `mkdir -p out` say, replaces no script.
        entries = self.launcher.entries if self.launcher.worked or not self.lost else []
        text = job_file(self.title, entries, remarks)
        return Translation(text, remarks)

    def _block(
        self,
        statements: Sequence[tuple[Node, bool]],
        scope: Scope,
        order: Order,
        must: bool = False,
    ) -> None:
        for node, background in statements:
            inner = scope.copy() if background else scope
            try:
                self._statement(node, background, inner, order, must)
            except (Untranslatable, Unwritable) as no:
                if not (self._tells(node) and self.script.line(node) in self.script.typed):
                    self.notes.remark(node, str(no))
                self.lost = self.lost or self.launcher.works([node])

    def _statement(
        self, node: Node, background: bool, scope: Scope, order: Order, must: bool
    ) -> None:
        kind = node.type
        if kind == "comment":
            text = self.script.text(node).lstrip("#").strip()
            if text and not self.script.text(node).startswith("#!"):
                self.comments.append(text)
            return
        comments, self.comments = self.comments, []
        if why := self.refused.get(self.script.text(node)):
            raise Untranslatable(why)
        if broken(node):
            raise Untranslatable("could not be read as bash")
        if kind in ("variable_assignment", "variable_assignments", "declaration_command"):
            self.memory.assignments(node, scope, order)
        elif kind == "unset_command":
            self.memory.unset(node, scope)
        elif kind == "function_definition":
            self._function(node)
        elif kind in ("for_statement", "c_style_for_statement", "while_statement"):
            self._loop(node, None, background, scope, order)
        elif kind == "redirected_statement" and node.children[0].type == "while_statement":
            self._loop(node.children[0], node.children[1], background, scope, order)
        elif kind == "redirected_statement" and node.children[0].type.endswith("for_statement"):
            self.notes.remark(node.children[1], "each job has a log of its own: logs/JOB.N.log")
            self._loop(node.children[0], None, background, scope, order)
        elif kind in ("subshell", "compound_statement"):
            self._group(node, background, scope, order, must)
        elif self._logged_group(node):
            self._group(node.children[0], background, scope, order, must)
        elif kind == "list":
            self._list(node, background, scope, order, must)
        elif self._throttles(node):
            raise Untranslatable("only waits: gpulaunch starts a job when a card is free for it")
        elif kind in ("if_statement", "case_statement") and self._leaves_traces(node):
            raise Untranslatable("changes directory, environment or order under a condition")
        elif not self.memory.builtin(node, scope, order):
            self.comments = comments
            self._launch([[node]], background, scope, order, must)
        self.comments = []

    def _logged_group(self, node: Node) -> bool:
        """Whether it is `( ... ) > log 2>&1`: a group whose output gpulaunch keeps."""
        group = node.type == "redirected_statement" and node.children[0].type in _GROUPS
        logs = node.children[1:] if group else []
        if not logs or not all(map(self.renderer.of_a_log, logs)):
            return False
        self.notes.remark(logs[0], KEPT)
        return True

    def _function(self, node: Node) -> None:
        """Its calls were spelt out, or each is told why not."""
        name = node.child_by_field_name("name")
        spelt = self.script.text(name) if name is not None else ""
        self.renderer.functions[spelt] = self.script.line(node)
        if spelt not in self.called:
            raise Untranslatable("a function that no command calls in a way that is known")

    def _throttles(self, node: Node) -> bool:
        """An `if` or `while` that only waits for some of the started to end."""
        if node.type not in ("if_statement", "while_statement", "compound_statement"):
            return False
        commands = [inner for inner in walk(node) if inner.type == "command"]
        names = {self.script.words(command)[0] for command in commands if command.children}
        return bool(names & {"wait", "sleep"}) and names <= _WAITS

    # ── chains and groups ───────────────────────────────────────────────────────────────────────

    def _list(self, node: Node, background: bool, scope: Scope, order: Order, must: bool) -> None:
        parts = _flat(node)
        first, operator = parts[0]
        if len(parts) == 2 and operator == "||" and self._gives_up(parts[1][0]):
            why = "a failed job stops what needs it; `--fail-fast` stops the run"
            if not self._is(first, "wait"):
                self.notes.remark(parts[1][0], why, f"|| {self.script.text(parts[1][0])}")
            known = [one.made for one in order.ended]
            self._statement(first, background, scope, order, True)
            if self._is(first, "wait"):
                order.ended = [
                    one if one.made in known else replace(one, must=True) for one in order.ended
                ]
            return
        while len(parts) > 1 and parts[0][1] == "&&" and self._remembers(parts[0][0]):
            self._block([(parts[0][0], False)], scope, order)
            parts = parts[1:]
        rest = [part for part, _ in parts]
        if len(rest) == 1:
            self._statement(rest[0], background, scope, order, must)
            return
        split = len({m for part in rest for m in self.renderer.masks(part)}) > 1
        if not split and not any(self._remembers(part) for part in rest):
            self._launch([[node]] if rest[0] == first else [rest], background, scope, order, must)
        elif all(operator == "&&" for _, operator in parts[:-1]):
            inner = order.copy() if background else order
            self._block([(part, False) for part in rest], scope, inner, must=True)
            if background:
                order.joined(inner)
        else:
            raise Untranslatable("chooses between commands on different cards")

    def _gives_up(self, node: Node) -> bool:
        if node.type in ("compound_statement", "subshell"):
            names = [self.script.words(n)[:1] for n in walk(node) if n.type == "command"]
            return names[-1:] == [["exit"]] and all(n[0] in (*PRINTS, "exit") for n in names if n)
        return node.type == "command" and self.script.words(node)[:1] in (["exit"], ["return"])

    def _remembers(self, node: Node) -> bool:
        if node.type in ("variable_assignment", "variable_assignments", "declaration_command"):
            return True
        words = self.script.words(node) if node.type == "command" else []
        activates = words[:1] and words[0] in CONDA and words[1:2] == ["activate"]
        if node.type == "redirected_statement" and node.children[0].type == "command":
            return self.script.words(node.children[0])[:1] == ["read"] and any(
                one.type == "herestring_redirect" for one in walk(node)
            )
        return bool(activates) or words[:1] in (["cd"], ["source"], ["."], ["set"])

    def _leaves_traces(self, node: Node) -> bool:
        """Whether what follows depends on which way it went."""
        return any(
            inner.type == "declaration_command" or self._is(inner, "wait") or self._moves(inner)
            for inner in walk(node)
        )

    def _moves(self, node: Node) -> bool:
        return node.type == "command" and self._remembers(node)

    def _group(self, node: Node, background: bool, scope: Scope, order: Order, must: bool) -> None:
        if self.script.text(node).startswith("(("):
            raise Untranslatable("only counts; use {{index}} where a number is needed")
        statements = _statements(node)
        if node.type == "compound_statement" and not background:
            self._block(statements, scope, order, must)
            return
        inner = scope.copy()
        if statements and self._waits(statements[0][0]):
            order, outer = order.copy(), order
            try:
                self._block(statements[:1], inner, order)
                self._group_of(statements[1:], background, inner, order, must)
            finally:
                outer.joined(order)
            return
        self._group_of(statements, background, inner, order, must)

    def _waits(self, node: Node) -> bool:
        first = _flat(node)[0][0]
        return self._is(first, "wait")

    def _group_of(
        self,
        statements: list[tuple[Node, bool]],
        background: bool,
        inner: Scope,
        order: Order,
        must: bool,
    ) -> None:
        while statements and self._prepares(statements[0][0]):
            self._block(statements[:1], inner, order)
            statements = statements[1:]
        statements = [pair for pair in statements if pair[0].type != "comment"]
        nodes = [statement for statement, _ in statements]
        if not nodes:
            return
        if len(nodes) == 1:
            self._statement(nodes[0], background or statements[0][1], inner, order, must)
            return
        if self._one_job(statements):
            self._launch([nodes], background, inner, order, must)
            return
        forked = order.copy() if background else order
        self._block(statements, inner, forked, must)
        if background:
            order.joined(forked)

    def _prepares(self, node: Node) -> bool:
        """Whether it changes what follows, or only tells and waits; it starts no job."""
        modules = self._is(node, "module") or self._is(node, "ml")
        return self._remembers(node) or self._tells(node) or modules

    def _one_job(self, statements: Sequence[tuple[Node, bool]]) -> bool:
        nodes = [node for node, _ in statements]
        masks = {mask for node in nodes for mask in self.renderer.masks(node)}
        forks = any(background for _, background in statements)
        forks = forks or any(inner.type == "&" for node in nodes for inner in walk(node))
        return len(masks) < 2 and not forks and not any(broken(node) for node in nodes)

    def _is(self, node: Node, name: str) -> bool:
        return node.type == "command" and self.script.words(node)[:1] == [name]

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    def _loop(
        self, node: Node, redirect: Node | None, background: bool, scope: Scope, order: Order
    ) -> None:
        if self._throttles(node):
            raise Untranslatable("only waits: gpulaunch starts a job when a card is free for it")
        if node.type == "for_statement":
            loop = lp.for_loop(self.script, node, scope)
        elif node.type == "c_style_for_statement":
            loop = lp.counting_loop(self.script, node, scope)
        elif redirect is not None:
            loop = lp.read_loop(self.script, node, redirect, scope)
        else:
            raise Untranslatable("a loop that runs until something becomes true: no counterpart")
        body = next((child for child in node.children if child.type == "do_group"), node)
        for child in node.children:
            if child.type != "do_group":
                self.notes.read |= variables_in(self.script, child)
        inner = scope.copy()
        inner.forget(loop.variable)
        inner.loops = (*scope.loops, replace(loop, at=node.start_byte))
        lp.arranged(inner.loops)
        self._body(node, _statements(body), background, inner, order)

    def _body(
        self,
        node: Node,
        statements: list[tuple[Node, bool]],
        background: bool,
        scope: Scope,
        order: Order,
    ) -> None:
        rest, counters = [], set()
        for statement, forks in statements:
            if self._dropped(statement):
                counters |= self._counted(statement)
                self._block([(statement, False)], scope, order)
            elif statement.type != "comment":
                rest.append((statement, forks))
        while rest and self._remembers(rest[0][0]) and not self._assigns(rest[0][0]):
            self._block(rest[:1], scope, order)
            rest = rest[1:]
        if len(rest) == 1 and rest[0][0].type in ("subshell", "compound_statement"):
            self._turn(node, rest[0], background, scope, order)
            return
        waits = [one for one, _ in rest if self._is(one, "wait")]
        everything, rest = rest, [pair for pair in rest if pair[0] not in waits]
        rest = self._chose_no_card(rest, counters)
        beside = [forks for _, forks in rest]
        nested = any(one.type.endswith(("for_statement", "while_statement")) for one, _ in rest)
        known = {mask for one, _ in rest for mask in self.renderer.masks(one)}
        if rest and not any(beside[:-1]) and not nested and len(known) < 2:
            work = [one for one, _ in rest]
            if not all(self._assigns(one) for one in work):
                self._launch([[one] for one in work], background or beside[-1], scope, order, False)
                self._block([(one, False) for one in waits], scope, order)
                if not (background or beside[-1]):
                    why = "its turns ran one after another; as jobs, as many run as have cards"
                    self.notes.remark(node, why, self._head(node))
                return
        forked = order.copy() if background else order
        left = [pair for pair in everything if pair in rest or pair[0] in waits]
        self._block(left, scope, forked)
        if background:
            order.joined(forked)

    def _turn(
        self, loop: Node, turn: tuple[Node, bool], background: bool, scope: Scope, order: Order
    ) -> None:
        """A loop whose whole body is one group."""
        group, forks = turn
        self._group(group, background or forks, scope, order, False)
        name = loop.child_by_field_name("variable")
        ours = self.script.text(name) in self.script.made if name is not None else False
        if not (background or forks or ours or scope.loops[-1].variable in self.script.made):
            why = "its turns ran one after another; as jobs, as many run as have cards"
            self.notes.remark(loop, why, self._head(loop))

    def _head(self, loop: Node) -> str:
        """A loop's words before its body."""
        body = next((child for child in loop.children if child.type == "do_group"), loop)
        return self.script.slice(loop.start_byte, body.start_byte).strip().rstrip(";")

    def _chose_no_card(
        self, rest: list[tuple[Node, bool]], counters: set[str]
    ) -> list[tuple[Node, bool]]:
        """Without the assignments that nothing reads once the masks are gone."""
        while True:
            read = {name for one, _ in rest for name in variables_in(self.script, one)}
            idle = [one for one, _ in rest if self._idle(one, read)]
            if not idle:
                break
            for one in idle:
                self.notes.remark(one, "only chose the card")
            rest = [(one, forks) for one, forks in rest if one not in idle]
        if counting := sorted(read & counters):
            raise Untranslatable(
                f"uses ${counting[0]}, which counts turns; a job file has {{{{index}}}}"
            )
        return rest

    def _idle(self, node: Node, read: set[str]) -> bool:
        if node.type != "variable_assignment":
            return False
        name = node.child_by_field_name("name")
        spelt = self.script.text(name) if name is not None else ""
        return spelt not in read and spelt not in OWNED

    def _tells(self, node: Node) -> bool:
        """Whether it only prints or waits."""
        words = self.script.words(node) if node.type == "command" else []
        return bool(words) and (words[0] in PRINTS or words[0] in ("sleep", ":"))

    def _counted(self, node: Node) -> set[str]:
        if self._throttles(node) or self._tells(node):
            return set()
        words = self.script.words(node) if node.type == "command" else []
        if words[:1] == ["let"]:
            return set(re.findall(r"[a-zA-Z_]\w*", " ".join(words[1:])))
        names = [inner for inner in walk(node) if inner.type == "variable_name"]
        return {self.script.text(inner) for inner in names}

    def _assigns(self, node: Node) -> bool:
        return node.type in ("variable_assignment", "variable_assignments", "declaration_command")

    def _dropped(self, node: Node) -> bool:
        """Statements of a loop's body that say nothing to a job."""
        text = self.script.text(node)
        if self._throttles(node) or text.startswith("((") or self._is(node, "let"):
            return True
        if node.type == "variable_assignment":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is None or value is None:
                return False
            return self.script.text(name) in variables_in(self.script, value)
        return self._tells(node)

    def _launch(
        self,
        groups: Sequence[Sequence[Node]],
        background: bool,
        scope: Scope,
        order: Order,
        must: bool,
    ) -> None:
        self.launcher.launch(groups, background, scope, order, must, self.comments)


def _statements(parent: Node) -> list[tuple[Node, bool]]:
    """The statements in it, each with whether an & follows."""
    found: list[tuple[Node, bool]] = []
    for child in parent.children:
        if child.type == "&" and found:
            found[-1] = (found[-1][0], True)
        elif child.is_named or child.type == "ERROR":
            found.append((child, _ends_late(child)))
    return found


def _ends_late(node: Node) -> bool:
    redirects = [child for child in node.children if child.type == "heredoc_redirect"]
    return any(is_late_ampersand(inner) for one in redirects for inner in one.children)


def _flat(node: Node) -> list[tuple[Node, str]]:
    """`a && b || c` as [(a, &&), (b, ||), (c, "")]."""
    if node.type != "list":
        return [(node, "")]
    left, operator, right = node.children[0], node.children[1].type, node.children[-1]
    parts = _flat(left)
    parts[-1] = (parts[-1][0], operator)
    return [*parts, *_flat(right)]
