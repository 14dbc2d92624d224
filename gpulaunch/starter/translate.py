"""A shell script of `CUDA_VISIBLE_DEVICES=N cmd &` lines to the job file that replaces it.

Walks the script as a shell would, statement by statement, keeping what the shell would know
(`Scope`) and what would have ended (`Order`); a command becomes an entry. What has no counterpart
becomes a remark with its line: nothing is dropped in silence.

    cmd &            runs beside what follows          cmd        ends before what follows: `after`
    wait             all before it have ended: `after` set -e, && the same, but succeeded: `needs`
    for f in *.x     foreach                           for in for matrix
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpulaunch.starter import loops as lp
from gpulaunch.starter.emit import Unwritable, escaped, job_file
from gpulaunch.starter.entry import Entry, Loop, Remark, Translation
from gpulaunch.starter.loops import Untranslatable
from gpulaunch.starter.mask import MASK, OWNED, cards
from gpulaunch.starter.render import Rendered, Renderer, mask_value
from gpulaunch.starter.scope import Made, Order, Scope
from gpulaunch.starter.shell import (
    Script,
    broken,
    is_late_ampersand,
    line_of,
    literal,
    variables_in,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_PRINTS = frozenset({"echo", "printf", "date", "clear", "nvidia-smi", "hostname", "whoami", "pwd"})
_FILES = "mkdir cp mv rm ln cat ls touch chmod tar gzip gunzip zip unzip diff md5sum sha256sum find"
_TEXTS = "grep sed awk sort uniq head tail cut tr wc tee paste xargs basename dirname seq test ["
_OTHERS = "wget curl git rsync scp pip aws gsutil cd exit continue true : set source export read"
_NO_CARD = frozenset({*_PRINTS, *_FILES.split(), *_TEXTS.split(), *_OTHERS.split()})
_REFUSED = {
    "exit": "the list has no early end: `--fail-fast` stops at the first failure",
    "trap": "gpulaunch stops jobs, and all that they started, by itself",
    "kill": "gpulaunch stops jobs by itself: timeout:, `gpulaunch cancel`",
    "jobs": "see `gpulaunch status`",
    "disown": "see `gpulaunch run --detach`",
    "eval": "only the shell can know what this runs",
    "read": "a job has no terminal to ask",
    "shift": "works on the script's arguments, which a job file has not",
    "alias": "has no effect in a job's shell",
    "pushd": "use cwd: of the jobs",
    "popd": "use cwd: of the jobs",
    "shopt": "jobs start with bash's usual settings; write it into run: where it is needed",
    "let": "only counts; use {{index}} where a number is needed",
    "module": "environment modules are not loaded in a job: load them before `gpulaunch run`",
    "ml": "environment modules are not loaded in a job: load them before `gpulaunch run`",
    "ssh": "runs on another machine; gpulaunch gives cards of this one",
    "sbatch": "hands the work to Slurm: run gpulaunch inside the allocation instead",
    "tmux": "starts it in another terminal: write the command in its quotes as a job",
    "screen": "starts it in another terminal: write the command in its quotes as a job",
    "break": "jobs do not end each other; see --fail-fast",
    "return": "belongs to a function of the script",
    "continue": "belongs to a loop of the script",
}
_WAITS = frozenset({"wait", "sleep", "jobs", "wc", "test", "[", ":", "true", "pgrep", "grep"})
_CONDA = ("conda", "mamba", "micromamba")
_PROCESSES = re.compile(r"--(?:nproc[_-]per[_-]node|num[_-]processes)[= ](\d{1,3})\b")
_PYTHONS = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh|torchrun|accelerate|deepspeed|Rscript|uv)")


def translate(script: str, name: str) -> Translation:
    """The job file that replaces the script, and what of it has no counterpart.

    `name` is how the file's header calls the script. Never fails: at worst all is remarked.
    """
    return _Translator(Script(script), name).run()


class _Translator:
    def __init__(self, script: Script, name: str) -> None:
        self.script = script
        self.title = name
        self.renderer = Renderer(script)
        self.entries: list[Entry] = []
        self.remarks: list[Remark] = []
        self.comments: list[str] = []
        self.bases: set[str] = set()
        self.assigned: list[tuple[str, Node]] = []
        self.read: set[str] = set()

    def run(self) -> Translation:
        self._block(_statements(self.script.root), Scope(), Order())
        for name, node in self.assigned:
            if name not in self.read:
                self._remark(node, "read by no command that is left")
        remarks = sorted(set(self.remarks), key=lambda remark: remark.line)
        text = job_file(self.title, self.entries, remarks)
        return Translation(text, tuple(remarks))

    def _remark(self, node: Node, why: str, text: str | None = None) -> None:
        shown = self.script.text(node) if text is None else text
        self.remarks.append(Remark(line_of(node), shown, why))

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
                self._remark(node, str(no))

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
        if broken(node):
            raise Untranslatable("could not be read as bash")
        if kind in ("variable_assignment", "variable_assignments", "declaration_command"):
            self._assignments(node, scope, order)
        elif kind == "unset_command":
            self._unset(node, scope)
        elif kind == "function_definition":
            self.renderer.functions[self.script.text(node.children[0])] = line_of(node)
            raise Untranslatable("a function: write what it does as a script, and run that")
        elif kind in ("for_statement", "c_style_for_statement", "while_statement"):
            self._loop(node, None, background, scope, order)
        elif kind == "redirected_statement" and node.children[0].type == "while_statement":
            self._loop(node.children[0], node.children[1], background, scope, order)
        elif kind == "redirected_statement" and node.children[0].type.endswith("for_statement"):
            self._remark(node.children[1], "each job has a log of its own: logs/JOB.N.log")
            self._loop(node.children[0], None, background, scope, order)
        elif kind in ("subshell", "compound_statement"):
            self._group(node, background, scope, order, must)
        elif kind == "list":
            self._list(node, background, scope, order, must)
        elif self._throttles(node):
            raise Untranslatable("only waits: gpulaunch starts a job when a card is free for it")
        elif not self._builtin(node, background, scope, order):
            self.comments = comments
            self._launch([[node]], background, scope, order, must)
        self.comments = []

    # ── what a shell remembers ──────────────────────────────────────────────────────────────────

    def _assignments(self, node: Node, scope: Scope, order: Order) -> None:
        exported = node.type == "declaration_command" and self.script.text(node.children[0]) in (
            "export",
            "declare",
            "typeset",
        )
        parts = [node] if node.type == "variable_assignment" else node.named_children
        for part in parts:
            if part.type == "variable_assignment":
                self._assign(part, exported, scope, order)
            elif part.type == "variable_name":
                name = self.script.text(part)
                if exported and name in scope.literals:
                    scope.exported[name] = scope.literals[name]

    def _assign(self, node: Node, exported: bool, scope: Scope, order: Order) -> None:
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert name_node is not None
        name = self.script.text(name_node)
        spelt = self.script.text(value) if value is not None else ""
        if name == MASK:
            scope.mask = mask_value(spelt, scope.literals)
            return
        if name in OWNED:
            raise Untranslatable(f"{name} is set by gpulaunch itself")
        if spelt.strip('"') in ("$!", "${!}") and order.last is not None:
            order.pids[name] = order.last
            return
        counts = value is not None and name in variables_in(self.script, value)
        arithmetic = value is not None and value.type == "arithmetic_expansion"
        if counts and (scope.loops or arithmetic):
            raise Untranslatable("only counts; use {{index}} where a number is needed")
        self._remember(node, name, value, exported, scope)

    def _remember(
        self, node: Node, name: str, value: Node | None, exported: bool, scope: Scope
    ) -> None:
        if not exported:
            self.assigned.append((name, node))
        known = literal(self.script, value, scope.literals) if value is not None else ""
        recursive = value is not None and name in variables_in(self.script, value)
        if not recursive:
            scope.forget(name)
        if value is not None and value.type == "array":
            scope.arrays[name] = value
            known = None
        if known is None or recursive or not name.isidentifier():
            scope.preamble.append((None if exported else name, node))
            if exported:
                self.renderer.exported.add(node.start_byte)
            return
        scope.literals[name] = known
        if exported:
            scope.exported[name] = known

    def _unset(self, node: Node, scope: Scope) -> None:
        for part in node.named_children:
            name = self.script.text(part)
            scope.forget(name)
            if name == MASK:
                scope.mask = None

    # ── builtins ────────────────────────────────────────────────────────────────────────────────

    def _builtin(self, node: Node, background: bool, scope: Scope, order: Order) -> bool:
        """Whether the statement was one that starts no job; raises where it has no counterpart."""
        command, redirected = node, False
        if node.type == "redirected_statement" and node.children[0].type == "command":
            command, redirected = node.children[0], True
        if command.type != "command":
            return False
        words = self.script.words(command)
        name, rest = (words[0], words[1:]) if words else ("", [])
        if name in self.renderer.functions:
            line = self.renderer.functions[name]
            raise Untranslatable(f"calls {name}, a function of the script (line {line})")
        if name == "cd":
            self._cd(command, rest, scope)
        elif name in ("source", "."):
            self._source(command, rest, scope)
        elif name in (*_CONDA, "deactivate") and self._conda(command, words, scope):
            pass
        elif name == "set":
            self._set(rest, scope)
        elif name == "wait":
            self._wait(rest, scope, order)
        elif name == "sleep":
            raise Untranslatable("only waits: gpulaunch starts a job when a card is free for it")
        elif name in _PRINTS and not redirected:
            raise Untranslatable("only prints; `gpulaunch run` says what starts and ends")
        elif name in (":", "true"):
            raise Untranslatable("does nothing")
        elif name in ("ulimit", "umask"):
            scope.preamble.append((None, command))
        elif name == "eval" and "conda" in " ".join(rest):
            raise Untranslatable("not needed: `conda: NAME` activates without it")
        elif name in _REFUSED:
            raise Untranslatable(_REFUSED[name])
        else:
            return False
        return True

    def _literal(self, command: Node, number: int, scope: Scope) -> str | None:
        words = [child for child in command.named_children if child.type != "variable_assignment"]
        return literal(self.script, words[number], scope.literals) if number < len(words) else None

    def _cd(self, command: Node, rest: list[str], scope: Scope) -> None:
        if rest and "dirname" in rest[0] and ("$0" in rest[0] or "BASH_SOURCE" in rest[0]):
            scope.cwd = None
            raise Untranslatable("jobs start in the job file's directory: keep it by the script")
        to = self._literal(command, 1, scope)
        if to is None or to == "-" or any(pair[1].type == "command" for pair in scope.preamble):
            scope.preamble.append((None, command))
        else:
            there = posixpath.normpath(posixpath.join(scope.cwd or "", to))
            scope.cwd = None if there == "." else there

    def _source(self, command: Node, rest: list[str], scope: Scope) -> None:
        path = self._literal(command, 1, scope)
        if path is None and rest and rest[0].startswith(("~/", "$HOME/", "${HOME}/")):
            path = "~/" + rest[0].split("/", 1)[1]
        if path is not None and path.endswith("/bin/activate"):
            if path.startswith("~/"):
                scope.venv = path.removesuffix("/bin/activate")
            else:
                there = posixpath.join(scope.cwd or "", path.removesuffix("/bin/activate"))
                scope.venv = posixpath.normpath(there)
            scope.conda = None
        elif "conda" in " ".join(rest) or "mamba" in " ".join(rest):
            raise Untranslatable("not needed: `conda: NAME` activates without it")
        elif rest:
            scope.preamble.append((None, command))
            self._remark(command, f"now read by every job: it must not set {MASK}")

    def _conda(self, command: Node, words: list[str], scope: Scope) -> bool:
        verb = words[0] if words[0] == "deactivate" else " ".join(words[1:2])
        if verb == "deactivate":
            scope.venv = scope.conda = None
        elif verb == "activate":
            name = self._literal(command, 2, scope)
            if len(words) > 2 and name is None:
                raise Untranslatable("activates an environment whose name only the shell can know")
            scope.conda, scope.venv = name or "base", None
        elif verb in ("init", "shell"):
            raise Untranslatable("not needed: `conda: NAME` activates without it")
        else:
            return False
        return True

    def _set(self, rest: list[str], scope: Scope) -> None:
        flags = "".join(word[1:] for word in rest if re.fullmatch(r"-[a-z]+", word))
        scope.errexit = scope.errexit or "e" in flags
        if any(word.startswith("+") for word in rest):
            scope.errexit = False
        if left := "".join(flag for flag in flags if flag in "ux"):
            raise Untranslatable(f"jobs run under bash -eo pipefail, without {left}")

    def _wait(self, rest: list[str], scope: Scope, order: Order) -> None:
        if scope.loops:
            raise Untranslatable("waits inside a loop: gpulaunch keeps every card busy by itself")
        if not rest:
            order.waited(order.running)
            return
        chosen = []
        for word in rest:
            name = word.strip('"').lstrip("$").strip("{}")
            made = order.last if word.strip('"') == "$!" else order.pids.get(name)
            if made is None:
                raise Untranslatable("waits for a process that is not known here")
            chosen.append(made)
        order.waited(chosen)

    def _throttles(self, node: Node) -> bool:
        """An `if` or `while` that only waits for some of the started to end."""
        if node.type not in ("if_statement", "while_statement"):
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
            self._remark(parts[1][0], why, f"|| {self.script.text(parts[1][0])}")
            self._statement(first, background, scope, order, True)
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
            return names[-1:] == [["exit"]] and all(n[0] in (*_PRINTS, "exit") for n in names if n)
        return node.type == "command" and self.script.words(node)[:1] in (["exit"], ["return"])

    def _remembers(self, node: Node) -> bool:
        if node.type in ("variable_assignment", "variable_assignments", "declaration_command"):
            return True
        words = self.script.words(node) if node.type == "command" else []
        activates = words[:1] and words[0] in _CONDA and words[1:2] == ["activate"]
        return bool(activates) or words[:1] in (["cd"], ["source"], ["."], ["set"])

    def _group(self, node: Node, background: bool, scope: Scope, order: Order, must: bool) -> None:
        if self.script.text(node).startswith("(("):
            raise Untranslatable("only counts; use {{index}} where a number is needed")
        statements = _statements(node)
        if node.type == "compound_statement" and not background:
            self._block(statements, scope, order, must)
            return
        inner = scope.copy()
        while statements and (
            self._remembers(statements[0][0]) or self._is(statements[0][0], "sleep")
        ):
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
            loop = lp.counting_loop(self.script, node)
        elif redirect is not None:
            loop = lp.read_loop(self.script, node, redirect, scope)
        else:
            raise Untranslatable("a loop that runs until something becomes true: no counterpart")
        body = next((child for child in node.children if child.type == "do_group"), node)
        for child in node.children:
            if child.type != "do_group":
                self.read |= variables_in(self.script, child)
        inner = scope.copy()
        inner.forget(loop.variable)
        inner.loops = (*scope.loops, loop)
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
        rest = self._chose_no_card(rest, counters)
        beside = [forks for _, forks in rest]
        nested = any(one.type.endswith(("for_statement", "while_statement")) for one, _ in rest)
        known = {mask for one, _ in rest for mask in self.renderer.masks(one)}
        if rest and not any(beside[:-1]) and not nested and len(known) < 2:
            work = [one for one, _ in rest]
            if not all(self._assigns(one) for one in work):
                self._launch([[one] for one in work], background or beside[-1], scope, order, False)
                if not (background or beside[-1]):
                    why = "its turns ran one after another; as jobs, as many run as have cards"
                    self._remark(node, why, self._head(node))
                return
        forked = order.copy() if background else order
        self._block(rest, scope, forked)
        if background:
            order.joined(forked)

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
                self._remark(one, "only chose the card")
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

    def _counted(self, node: Node) -> set[str]:
        if self._throttles(node):
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
        words = self.script.words(node) if node.type == "command" else []
        return bool(words) and (words[0] in ("wait", "sleep") or words[0] in _PRINTS)

    # ── an entry ────────────────────────────────────────────────────────────────────────────────

    def _launch(
        self,
        groups: Sequence[Sequence[Node]],
        background: bool,
        scope: Scope,
        order: Order,
        must: bool,
    ) -> None:
        loops = lp.arranged(scope.loops)
        before = self._preamble(groups, scope)
        rendered = self.renderer.render([*before, *groups], loops)
        if not rendered.text:
            raise Untranslatable("nothing is left to run")
        nodes = [node for group in [*before, *groups] for node in group]
        self.read |= {name for node in nodes for name in variables_in(self.script, node)}
        gpus, comments = self._gpus(nodes, rendered, scope)
        base = self._base(nodes)
        name = base + lp.name_suffix(loops)
        needs, after, in_turn = _waits_for(order, scope)
        entry = Entry(
            name=name,
            run=rendered.text,
            gpus=gpus,
            loops=loops,
            needs=needs,
            after=after,
            cwd=_escaped(scope.cwd),
            env=self._env(nodes, rendered.variables, scope),
            venv=_escaped(scope.venv),
            conda=_escaped(scope.conda),
            comments=(*self.comments, *comments),
            in_turn=in_turn,
        )
        self.entries.append(entry)
        self.remarks += rendered.remarks
        covered = frozenset().union(*(one.made.before | {one.made.base} for one in order.ended)) - {
            base
        }
        order.started(Made(base, name, scope.loops, covered), background, must or scope.errexit)

    def _preamble(self, groups: Sequence[Sequence[Node]], scope: Scope) -> list[list[Node]]:
        """The remembered lines that these commands need, in the script's order."""
        wanted = {v for group in groups for node in group for v in variables_in(self.script, node)}
        chosen: list[list[Node]] = []
        for name, node in reversed(scope.preamble):
            if name is None or name in wanted:
                wanted |= variables_in(self.script, node)
                chosen.append([node])
        return chosen[::-1]

    def _env(self, nodes: Iterable[Node], items: Sequence[Loop], scope: Scope) -> dict[str, str]:
        read = {name for node in nodes for name in variables_in(self.script, node)}
        env = {name: escaped(value) for name, value in scope.exported.items()}
        for name, value in scope.literals.items():
            if name in read:
                env[name] = escaped(value)
        for loop in items:
            env[loop.variable] = f"{{{{{loop.placeholder}}}}}"
        return env

    def _gpus(
        self, nodes: Sequence[Node], rendered: Rendered, scope: Scope
    ) -> tuple[int, tuple[str, ...]]:
        masks = dict.fromkeys(rendered.masks) or ([] if scope.mask is None else [scope.mask])
        spelt = [mask_value(mask, scope.literals) for mask in masks]
        counted = [cards(mask) for mask in spelt]
        for mask, (_, odd) in zip(spelt, counted, strict=True):
            if odd:
                self._remark(nodes[0], odd, f"{MASK}={mask}")
        if counted:
            return max(count for count, _ in counted), ()
        text = rendered.text
        if self._without_card(nodes) and MASK not in text:
            return 0, ()
        if (several := _PROCESSES.search(text)) and int(several.group(1)) > 1:
            return int(several.group(1)), ()
        return 1, (f"No {MASK} in the script: it saw every card. Here it gets one; 0 hides them.",)

    def _without_card(self, nodes: Sequence[Node]) -> bool:
        names = [self._program(inner) for node in nodes for inner in walk(node)]
        return all(name in _NO_CARD for name in names if name)

    def _program(self, node: Node) -> str:
        if node.type != "command" or not (words := self.script.words(node)):
            return ""
        return posixpath.basename(words[0])

    def _base(self, nodes: Sequence[Node]) -> str:
        """A name from the command: the script that python runs, or the program."""
        found = "job"
        for command in (inner for node in nodes for inner in walk(node)):
            program = self._program(command)
            if not program:
                continue
            words = self.script.words(command)
            found = _called([word for word in words if word not in ("nohup", "time", "env")])
            if program not in _NO_CARD:
                break
        if any(_shadows(found, other) for other in self.bases):
            found = found.replace("-", "_")
        base, number = found, 1
        while base in self.bases or any(_shadows(base, other) for other in self.bases):
            number += 1
            base = f"{found}{number}"
        self.bases.add(base)
        return base


def _called(words: Sequence[str]) -> str:
    words = [word for word in words if "=" not in word] or ["job"]
    name = words[0]
    if _PYTHONS.fullmatch(name):
        plain = [word.strip("'\"") for word in words[1:] if not word.startswith("-")]
        scripts = [word for word in plain if re.search(r"\.(py|sh|R)$", word)]
        name = (scripts or [word for word in plain if word not in ("run", "launch")] or [name])[0]
    name = posixpath.basename(name.strip("'\"").rstrip("/"))
    name = re.sub(r"\.(py|sh|R)$", "", name)
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-")[:60] or "job"


def _shadows(base: str, other: str) -> bool:
    """The pattern `base-*` of one would name jobs of the other as well."""
    return base.startswith(f"{other}-") or other.startswith(f"{base}-")


def _waits_for(order: Order, scope: Scope) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    needs = [one.made.seen_from(scope.loops) for one in order.ended if one.must]
    after = [one.made.seen_from(scope.loops) for one in order.ended if not one.must]
    in_turn = any(not one.waited for one in order.ended)
    return tuple(dict.fromkeys(needs)), tuple(dict.fromkeys(after)), in_turn


def _escaped(text: str | None) -> str | None:
    return None if text is None else escaped(text)


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
