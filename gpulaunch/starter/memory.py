"""What a script's own words change for what follows: variables, directory, environment, waiting.

Changes Scope and Order; starts no job. Says of each builtin without a counterpart why.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from gpulaunch.jobfile.convert import MASKS
from gpulaunch.starter.entry import Untranslatable
from gpulaunch.starter.loops import counted
from gpulaunch.starter.mask import MASK
from gpulaunch.starter.pieces import literal
from gpulaunch.starter.render import Renderer, mask_value
from gpulaunch.starter.scope import Notes, Order, Scope
from gpulaunch.starter.shell import Script, reads_a_text, variables_in

if TYPE_CHECKING:
    from tree_sitter import Node

TIME, CPUS = "_init_timeout", "_init_cpus"
"""Variables by which an unfolded script says a job's `timeout` and `cpus`."""
PRINTS = frozenset({"echo", "printf", "date", "clear", "nvidia-smi", "hostname", "whoami", "pwd"})
CONDA = ("conda", "mamba", "micromamba")
_NO_CONDA = "not needed: `conda: NAME` activates without it"
ONLY_WAITS = "only waits: gpulaunch starts a job when a card is free for it"
_REFUSED = {
    **dict.fromkeys((":", "true"), "does nothing"),
    "sleep": ONLY_WAITS,
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
    "sbatch": "hands the work to Slurm: run gpulaunch inside the allocation instead",
    "break": "jobs do not end each other; see --fail-fast",
    "return": "belongs to a function of the script",
    "continue": "belongs to a loop of the script",
}


_OTHER_MODULES = "`modules:` of a job only loads them; what else is to be done goes into run:"
_MODULE_VERBS = frozenset(
    {"add", "avail", "list", "load", "purge", "show", "swap", "unload", "use"}
)


class Memory:
    def __init__(self, script: Script, renderer: Renderer, notes: Notes) -> None:
        self.script = script
        self.renderer = renderer
        self.notes = notes

    def assignments(self, node: Node, scope: Scope, order: Order) -> None:
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
        name, spelt = self.script.part(node, "name"), self.script.part(node, "value")
        if name == MASK:
            scope.mask = mask_value(spelt, scope.literals)
        elif name == TIME:
            scope.timeout = spelt
        elif name == CPUS:
            scope.cpus = spelt
        elif name in MASKS:
            raise Untranslatable(f"{name} is set by gpulaunch itself")
        elif spelt.strip('"') in ("$!", "${!}") and order.last is not None:
            order.pids[name] = order.last
        else:
            self._remember(node, name, exported, scope)

    def _remember(self, node: Node, name: str, exported: bool, scope: Scope) -> None:
        value = node.child_by_field_name("value")
        recursive = value is not None and name in variables_in(self.script, value)
        arithmetic = value is not None and value.type == "arithmetic_expansion"
        if recursive and (scope.loops or arithmetic):
            raise Untranslatable("only counts; use {{index}} where a number is needed")
        if not exported:
            self.notes.assigned.append((name, node))
        known = literal(self.script, value, scope.literals) if value is not None else ""
        if known is None:
            count = counted(self.script, self.script.part(node, "value"), scope)
            known = count if count.isdigit() else None
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

    def unset(self, node: Node, scope: Scope) -> None:
        for part in node.named_children:
            name = self.script.text(part)
            scope.forget(name)
            if name == MASK:
                scope.mask = None

    # ── builtins ────────────────────────────────────────────────────────────────────────────────

    def builtin(self, node: Node, scope: Scope, order: Order) -> bool:
        """Tell whether the statement starts no job. Raises where it has no counterpart."""
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
        elif name in (*CONDA, "deactivate") and self._conda(command, words, scope):
            pass
        elif name in ("module", "ml"):
            self._module(command, words, scope)
        elif name == "set":
            self._set(rest, scope)
        elif name == "wait":
            self._wait(rest, scope, order)
        elif name in PRINTS and not redirected:
            raise Untranslatable("only prints; `gpulaunch run` says what starts and ends")
        elif name == "read" and reads_a_text(node):
            scope.preamble.append((None, node))
        elif name in ("ulimit", "umask"):
            scope.preamble.append((None, command))
        elif name == "eval" and "conda" in " ".join(rest):
            raise Untranslatable(_NO_CONDA)
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
            venv, scope.conda = path.removesuffix("/bin/activate"), None
            there = posixpath.normpath(posixpath.join(scope.cwd or "", venv))
            scope.venv = venv if venv.startswith("~/") else there
        elif "conda" in " ".join(rest) or "mamba" in " ".join(rest):
            raise Untranslatable(_NO_CONDA)
        elif rest:
            scope.preamble.append((None, command))
            self.notes.remark(command, f"now read by every job: it must not set {MASK}")

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
            raise Untranslatable(_NO_CONDA)
        else:
            return False
        return True

    def _module(self, command: Node, words: list[str], scope: Scope) -> None:
        said = ["load", *words[1:]] if words[0] == "ml" else words[1:]
        skipped = len(words) - len(said) + 1  # `ml NAME` is short for `module load NAME`
        if words[0] == "ml" and words[1:2] and words[1] in _MODULE_VERBS:
            said, skipped = words[1:], 2
        names = [self._literal(command, number, scope) for number in range(skipped, len(words))]
        if said[:1] == ["purge"]:
            scope.modules = ()
        elif said[:1] in (["load"], ["add"]) and names and all(n and n[0] != "-" for n in names):
            self.notes.read |= variables_in(self.script, command)
            scope.modules += tuple(map(str, names))
        else:
            raise Untranslatable(_OTHER_MODULES)

    def _set(self, rest: list[str], scope: Scope) -> None:
        flags = "".join(word[1:] for word in rest if re.fullmatch(r"-[a-z]+", word))
        undone = any(word.startswith("+") for word in rest)
        scope.errexit = not undone and (scope.errexit or "e" in flags)
        if left := "".join(flag for flag in flags if flag in "ux"):
            raise Untranslatable(f"jobs run under bash -eo pipefail, without {left}")

    def _wait(self, rest: list[str], scope: Scope, order: Order) -> None:
        if scope.loops:
            order.waited(made for made in order.running if made.loops)
            raise Untranslatable("waits for one turn of a loop: other turns start meanwhile")
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
