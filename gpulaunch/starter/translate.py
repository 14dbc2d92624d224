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
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from gpulaunch.jobfile.convert import MASKS
from gpulaunch.starter import loops as lp
from gpulaunch.starter.emit import Unwritable, job_file
from gpulaunch.starter.entry import Read, StarterRemark, Translation, Untranslatable
from gpulaunch.starter.launch import Launcher
from gpulaunch.starter.memory import CONDA, ONLY_WAITS, PRINTS, Memory
from gpulaunch.starter.render import KEPT, Renderer
from gpulaunch.starter.scope import Notes, Order, Scope, StatementPlace
from gpulaunch.starter.shell import (
    broken,
    is_late_ampersand,
    reads_a_text,
    variables_in,
    walk,
)
from gpulaunch.starter.unfold import Unfolded, unfold

if TYPE_CHECKING:
    from tree_sitter import Node

_GROUPS = ("subshell", "compound_statement")
_ASSIGNS = ("variable_assignment", "variable_assignments", "declaration_command")
_LOOPS = ("for_statement", "c_style_for_statement", "while_statement")
_IN_TURN = "its turns ran one after another; as jobs, as many run as have cards"
_WAITS = frozenset({"wait", "sleep", "jobs", "wc", "test", "[", ":", "true", "pgrep", "grep"})

Statement: TypeAlias = "tuple[Node, bool]"
"""A statement, and whether an & follows."""


def translate(script: str, name: str, read: Read = lambda path: None) -> Translation:
    """Return the job file that replaces the script, and what of it has no counterpart.

    `name` is how the file's header calls the script; `read` gives the text of a file that it
    names, as `sbatch job.sh` does. Never fails: at worst all is remarked.
    """
    why = "groups, or commands in strings, inside each other too often to be read"
    try:
        return _Translator(unfold(script, read), name).run()
    except (Untranslatable, Unwritable) as no:
        why = str(no)
    except RecursionError:
        pass
    return Translation("", (StarterRemark(1, script.strip().split("\n")[0], why),))


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
        self._block(_statements(self.script.root), StatementPlace(Scope(), Order()))
        remarks = self.notes.all()
        # What is left when all work was lost, `mkdir -p out` say, replaces no script.
        entries = self.launcher.entries if self.launcher.worked or not self.lost else []
        text = job_file(self.title, entries, remarks)
        return Translation(text, remarks)

    def _block(self, statements: Sequence[Statement], here: StatementPlace) -> None:
        for node, forks in statements:
            try:
                self._statement(node, here.beside(forks))
            except (Untranslatable, Unwritable) as no:
                if not (self._tells(node) and self.script.line(node) in self.script.typed):
                    self.notes.remark(node, str(no))
                self.lost = self.lost or self.launcher.works([node])

    def _statement(self, node: Node, here: StatementPlace) -> None:
        kind, inside = node.type, node.children[0].type if node.children else ""
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
        if kind in _ASSIGNS:
            self.memory.assignments(node, here.scope, here.order)
        elif kind == "unset_command":
            self.memory.unset(node, here.scope)
        elif kind == "function_definition":
            self._function(node)
        elif kind in _LOOPS:
            self._loop(node, None, here)
        elif kind == "redirected_statement" and inside == "while_statement":
            self._loop(node.children[0], node.children[1], here)
        elif kind == "redirected_statement" and inside in _LOOPS:
            self.notes.remark(node.children[1], "each job has a log of its own: logs/JOB.N.log")
            self._loop(node.children[0], None, here)
        elif kind in _GROUPS:
            self._group(node, here)
        elif self._logged_group(node):
            self._group(node.children[0], here)
        elif kind == "list":
            self._list(node, here)
        elif self._throttles(node):
            raise Untranslatable(ONLY_WAITS)
        elif kind in ("if_statement", "case_statement") and self._leaves_traces(node):
            raise Untranslatable("changes directory, environment or order under a condition")
        elif not self.memory.builtin(node, here.scope, here.order):
            self.launcher.launch([[node]], here, comments)
        self.comments = []

    def _logged_group(self, node: Node) -> bool:
        """Tell whether a statement is `( ... ) > log 2>&1`: its output is kept anyway."""
        group = node.type == "redirected_statement" and node.children[0].type in _GROUPS
        logs = node.children[1:] if group else []
        if not logs or not all(map(self.renderer.of_a_log, logs)):
            return False
        self.notes.remark(logs[0], KEPT)
        return True

    def _function(self, node: Node) -> None:
        """Its calls were spelt out, or each is told why not."""
        name = self.script.part(node, "name")
        self.renderer.functions[name] = self.script.line(node)
        if name not in self.called:
            raise Untranslatable("a function that no command calls in a way that is known")

    def _throttles(self, node: Node) -> bool:
        """Tell whether a statement is an `if` or `while` that only waits for started ones."""
        if node.type not in ("if_statement", "while_statement", "compound_statement"):
            return False
        commands = [inner for inner in walk(node) if inner.type == "command"]
        names = {self.script.words(command)[0] for command in commands if command.children}
        return bool(names & {"wait", "sleep"}) and names <= _WAITS

    # ── chains and groups ───────────────────────────────────────────────────────────────────────

    def _list(self, node: Node, here: StatementPlace) -> None:
        parts, order = _flat(node), here.order
        first, operator = parts[0]
        if len(parts) == 2 and operator == "||" and self._gives_up(parts[1][0]):
            why = "a failed job stops what needs it; `--fail-fast` stops the run"
            if not self._is(first, "wait"):
                self.notes.remark(parts[1][0], why, f"|| {self.script.text(parts[1][0])}")
            known = [one.made for one in order.ended]
            self._statement(first, replace(here, must=True))
            if self._is(first, "wait"):
                order.ended = [
                    one if one.made in known else replace(one, must=True) for one in order.ended
                ]
            return
        while len(parts) > 1 and parts[0][1] == "&&" and self._remembers(parts[0][0]):
            self._block([(parts[0][0], False)], here)
            parts = parts[1:]
        rest = [part for part, _ in parts]
        if len(rest) == 1:
            self._statement(rest[0], here)
            return
        split = len({m for part in rest for m in self.renderer.masks(part)}) > 1
        if not split and not any(self._remembers(part) for part in rest):
            self._launch([[node]] if rest[0] == first else [rest], here)
        elif all(operator == "&&" for _, operator in parts[:-1]):
            with here.group() as inner:
                self._block([(part, False) for part in rest], replace(inner, must=True))
        else:
            raise Untranslatable("chooses between commands on different cards")

    def _gives_up(self, node: Node) -> bool:
        if node.type in _GROUPS:
            names = [self.script.words(n)[:1] for n in walk(node) if n.type == "command"]
            return names[-1:] == [["exit"]] and all(n[0] in (*PRINTS, "exit") for n in names if n)
        return self._is(node, "exit", "return")

    def _remembers(self, node: Node) -> bool:
        """Tell whether a statement changes what the shell knows, and starts nothing."""
        if node.type in _ASSIGNS:
            return True
        if node.type == "redirected_statement":
            return reads_a_text(node) and self._is(node.children[0], "read")
        activates = self._is(node, *CONDA) and self.script.words(node)[1:2] == ["activate"]
        return activates or self._is(node, "cd", "source", ".", "set")

    def _leaves_traces(self, node: Node) -> bool:
        """Tell whether what follows depends on which way it went."""
        return any(
            inner.type == "declaration_command"
            or self._is(inner, "wait")
            or (inner.type == "command" and self._remembers(inner))
            for inner in walk(node)
        )

    def _group(self, node: Node, here: StatementPlace) -> None:
        if self.script.text(node).startswith("(("):
            raise Untranslatable("only counts; use {{index}} where a number is needed")
        statements = _statements(node)
        if node.type == "compound_statement" and not here.background:
            self._block(statements, here)
            return
        inner = replace(here, scope=here.scope.copy())
        if not statements or not self._is(_flat(statements[0][0])[0][0], "wait"):
            self._group_of(statements, inner)
            return
        inner = replace(inner, order=here.order.copy())
        try:
            self._block(statements[:1], inner)
            self._group_of(statements[1:], inner)
        finally:
            here.order.joined(inner.order)

    def _group_of(self, statements: list[Statement], here: StatementPlace) -> None:
        while statements and self._prepares(statements[0][0]):
            self._block(statements[:1], here)
            statements = statements[1:]
        statements = [pair for pair in statements if pair[0].type != "comment"]
        if len(statements) == 1:
            node, forks = statements[0]
            self._statement(node, replace(here, background=here.background or forks))
        elif statements and self._one_job(statements):
            self._launch([[node for node, _ in statements]], here)
        elif statements:
            with here.group() as inner:
                self._block(statements, inner)

    def _prepares(self, node: Node) -> bool:
        """Tell whether a statement starts no job: it changes what follows, tells or waits."""
        return self._remembers(node) or self._tells(node) or self._is(node, "module", "ml")

    def _one_job(self, statements: Sequence[Statement]) -> bool:
        nodes = [node for node, _ in statements]
        masks = {mask for node in nodes for mask in self.renderer.masks(node)}
        forks = any(background for _, background in statements)
        forks = forks or any(inner.type == "&" for node in nodes for inner in walk(node))
        return len(masks) < 2 and not forks and not any(map(broken, nodes))

    def _is(self, node: Node, *names: str) -> bool:
        """Tell whether a statement is a command of one of these names."""
        words = self.script.words(node)
        return bool(words) and words[0] in names

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    def _loop(self, node: Node, redirect: Node | None, here: StatementPlace) -> None:
        if self._throttles(node):
            raise Untranslatable(ONLY_WAITS)
        scope = here.scope
        if node.type == "for_statement":
            loop = lp.for_loop(self.script, node, scope)
        elif node.type == "c_style_for_statement":
            loop = lp.counting_loop(self.script, node, scope)
        elif redirect is not None:
            loop = lp.read_loop(self.script, node, redirect, scope)
        else:
            raise Untranslatable("a loop that runs until something becomes true: no counterpart")
        for child in node.children:
            if child.type != "do_group":
                self.notes.read |= variables_in(self.script, child)
        inner = scope.copy()
        inner.forget(loop.variable)
        inner.loops = (*scope.loops, replace(loop, at=node.start_byte))
        lp.arranged(inner.loops)
        self._body(node, replace(here, scope=inner, must=False))

    def _body(self, node: Node, here: StatementPlace) -> None:
        rest, counters = [], set()
        for statement, forks in _statements(_body_of(node)):
            if self._dropped(statement):
                counters |= self._counted(statement)
                self._block([(statement, False)], here)
            elif statement.type != "comment":
                rest.append((statement, forks))
        while rest and self._remembers(rest[0][0]) and rest[0][0].type not in _ASSIGNS:
            self._block(rest[:1], here)
            rest = rest[1:]
        if len(rest) == 1 and rest[0][0].type in _GROUPS:
            self._turn(node, rest[0], here)
            return
        waits = [pair for pair in rest if self._is(pair[0], "wait")]
        everything, rest = rest, [pair for pair in rest if pair not in waits]
        rest = self._chose_no_card(rest, counters)
        work = [one for one, _ in rest]
        beside = here.background or any(forks for _, forks in rest[-1:])
        nested = any(forks for _, forks in rest[:-1]) or any(one.type in _LOOPS for one in work)
        known = {mask for one in work for mask in self.renderer.masks(one)}
        if nested or len(known) > 1 or all(one.type in _ASSIGNS for one in work):
            with here.group() as inner:
                self._block([pair for pair in everything if pair in rest or pair in waits], inner)
            return
        self._launch([[one] for one in work], replace(here, background=beside))
        self._block([(one, False) for one, _ in waits], here)
        if not beside:
            self.notes.remark(node, _IN_TURN, self._head(node))

    def _turn(self, loop: Node, turn: Statement, here: StatementPlace) -> None:
        """Take in a loop whose whole body is one group."""
        group, forks = turn
        beside = here.background or forks
        self._group(group, replace(here, background=beside))
        variables = {self.script.part(loop, "variable"), here.scope.loops[-1].variable}
        if not beside and variables.isdisjoint(self.script.made):
            self.notes.remark(loop, _IN_TURN, self._head(loop))

    def _head(self, loop: Node) -> str:
        """Return a loop's words before its body."""
        return self.script.slice(loop.start_byte, _body_of(loop).start_byte).strip().rstrip(";")

    def _chose_no_card(self, rest: list[Statement], counters: set[str]) -> list[Statement]:
        """Without the assignments that nothing reads once the masks are gone."""
        while True:
            read = {name for one, _ in rest for name in variables_in(self.script, one)}
            idle = [pair for pair in rest if self._idle(pair[0], read)]
            if not idle:
                break
            for one, _ in idle:
                self.notes.remark(one, "only chose the card")
            rest = [pair for pair in rest if pair not in idle]
        if counting := sorted(read & counters):
            raise Untranslatable(
                f"uses ${counting[0]}, which counts turns; a job file has {{{{index}}}}"
            )
        return rest

    def _idle(self, node: Node, read: set[str]) -> bool:
        name = self.script.part(node, "name")
        return node.type == "variable_assignment" and name not in read | MASKS

    def _tells(self, node: Node) -> bool:
        """Tell whether a statement only prints or waits."""
        return self._is(node, *PRINTS, "sleep", ":")

    def _counted(self, node: Node) -> set[str]:
        if self._throttles(node) or self._tells(node):
            return set()
        if self._is(node, "let"):
            return set(re.findall(r"[a-zA-Z_]\w*", " ".join(self.script.words(node)[1:])))
        names = [inner for inner in walk(node) if inner.type == "variable_name"]
        return {self.script.text(inner) for inner in names}

    def _dropped(self, node: Node) -> bool:
        """Statements of a loop's body that say nothing to a job."""
        text = self.script.text(node)
        if self._throttles(node) or text.startswith("((") or self._is(node, "let"):
            return True
        if node.type == "variable_assignment":
            value = node.child_by_field_name("value")
            read = variables_in(self.script, value) if value is not None else set()
            return self.script.part(node, "name") in read
        return self._tells(node)

    def _launch(self, groups: Sequence[Sequence[Node]], here: StatementPlace) -> None:
        self.launcher.launch(groups, here, self.comments)


def _body_of(loop: Node) -> Node:
    return next((child for child in loop.children if child.type == "do_group"), loop)


def _statements(parent: Node) -> list[Statement]:
    """Return the statements in it."""
    found: list[Statement] = []
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
    """Take `a && b || c` apart: [(a, &&), (b, ||), (c, "")]."""
    if node.type != "list":
        return [(node, "")]
    left, operator, right = node.children[0], node.children[1].type, node.children[-1]
    parts = _flat(left)
    parts[-1] = (parts[-1][0], operator)
    return [*parts, *_flat(right)]
