"""Where a Python file sets, removes or misreads the mask, or fixes the port of a job.

Harmless, and so not found: hiding all cards, passing on what the launcher set, `setdefault`, and
what happens only where the variable is not there.
"""

from __future__ import annotations

import ast

from gpulaunch.diagnose.lint import wording
from gpulaunch.diagnose.lint.devices import Found
from gpulaunch.diagnose.lint.finding import option_name
from gpulaunch.diagnose.lint.tree import PythonTree, last_name, parts_in, words_in
from gpulaunch.diagnose.lint.wording import MASK, ORDER, PORT

_HIDDEN = frozenset({"", "-1", "NoDevFiles"})
_OWN = ("VISIBLE_DEVICES", "GPULAUNCH_", "SLURM_")
_LIBRARIES = ("torch", "tensorflow", "jax", "transformers", "cupy", "lightning", "accelerate")
_ENVIRONMENTS = frozenset(
    {"env", "environ", "environment", "env_vars", "envs", "new_env", "my_env"}
)


class Masks:
    """Checks nodes in the order of the source; knows which names hold what the launcher set."""

    def __init__(self, tree: PythonTree) -> None:
        self.tree = tree
        self.own = _passed_on(tree)
        self.library, self.since = _first_import(tree)

    def check(self, node: ast.AST) -> Found:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    yield from self._set(target, self.tree.value(target.slice), node.value)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and self._is(target.slice, MASK):
                    yield target, wording.no_mask()
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Dict) and self._is_environment(node):
            yield from self._dict(node)
        if isinstance(node, ast.FormattedValue | ast.Call):
            yield from self._read(node)

    # ── setting ─────────────────────────────────────────────────────────────────────────────────

    def _set(self, at: ast.AST, key: object, value: ast.expr | None) -> Found:
        """`at` is where the key stands, `value` what is set."""
        text = self.tree.value(value)
        known = str(text) if text is not None else None
        if key == MASK:
            yield from self._mask(at, known, value)
        elif key == ORDER and known is not None and (found := wording.order(known)):
            yield at, found
        elif key == PORT and known and known.isdigit() and not self.tree.asks_for(at, PORT):
            yield from [(at, wording.port(f"{PORT}={known}"))] if known != "0" else ()

    def _mask(self, at: ast.AST, known: str | None, value: ast.expr | None) -> Found:
        if known in _HIDDEN or value is None or self._passes_on(value):
            return
        if self.tree.asks_for(at, MASK):
            return
        only = self._option(at, value)
        line = getattr(at, "lineno", 0)
        own = isinstance(at, ast.Call) or self.tree.dotted(getattr(at, "value", at)) == "os.environ"
        late = own and self.library and self.since < line
        suspect = wording.mask(known, only=only)
        if late and suspect.rule == "own-mask":
            suspect = wording.late_mask(self.library, self.since, only)
        yield at, suspect

    def _option(self, at: ast.AST, value: ast.expr) -> frozenset[str]:
        """`if args.gpu: environ[...] = args.gpu`: only where the command line sets `--gpu`."""
        inside = list(parts_in(value, 100))
        names = {last_name(inner) for inner in inside} - {""}
        names -= {last_name(inner.value) for inner in inside if isinstance(inner, ast.Attribute)}
        asked = [words_in(test).split() for test in self.tree.tests_around(at)]
        found = {name for name in names for words in asked if name in words}
        return frozenset(option_name(name) for name in found)

    def _passes_on(self, value: ast.expr) -> bool:
        words = words_in(value)
        return any(own in words for own in _OWN) or not self.own.isdisjoint(words.split())

    def _is(self, node: ast.expr, name: str) -> bool:
        return self.tree.value(node) == name

    def _call(self, node: ast.Call) -> Found:
        name = last_name(node.func)
        whole = self.tree.dotted(node.func)
        first = node.args[0] if node.args else None
        if whole == "os.putenv" and len(node.args) == 2:
            yield from self._set(node, self.tree.value(first), node.args[1])
        elif whole == "os.unsetenv" and first is not None and self._is(first, MASK):
            yield node, wording.no_mask()
        elif name == "pop" and first is not None and self._is(first, MASK):
            if not self.tree.assigned_from(node):
                yield node, wording.no_mask()
        elif name in ("update", "dict"):
            for keyword in node.keywords:
                if keyword.arg:
                    yield from self._set(keyword.value, keyword.arg, keyword.value)
        elif name == "init_process_group":
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from self._address(value)

    def _address(self, value: ast.expr) -> Found:
        for leaf in self.tree.leaves(value):
            text = self.tree.value(leaf)
            if isinstance(text, str) and text.startswith("tcp://"):
                port = text.rpartition(":")[2].partition("?")[0]
                if port.isdigit() and port != "0":
                    yield leaf, wording.address(text[:80])

    def _is_environment(self, node: ast.Dict) -> bool:
        """Tell whether a dictionary becomes some process's environment."""
        parent = self.tree.parents.get(node)
        if any(key is None for key in node.keys):
            return True
        if isinstance(parent, ast.keyword):
            return (parent.arg or "") in _ENVIRONMENTS
        if isinstance(parent, ast.Assign):
            return any(last_name(target) in _ENVIRONMENTS for target in parent.targets)
        if isinstance(parent, ast.AugAssign):
            return self.tree.dotted(parent.target) == "os.environ"
        if isinstance(parent, ast.Call):
            return last_name(parent.func) == "update"
        if isinstance(parent, ast.Dict):
            keys = [self.tree.value(key) for key in parent.keys]
            return any(
                value is node and key in _ENVIRONMENTS
                for key, value in zip(keys, parent.values, strict=True)
            )
        return False

    def _dict(self, node: ast.Dict) -> Found:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield from self._set(key, self.tree.value(key), value)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, node: ast.FormattedValue | ast.Call) -> Found:
        """`int(os.environ[MASK])`, `f"cuda:{os.environ[MASK]}"`."""
        if isinstance(node, ast.FormattedValue):
            parent = self.tree.parents.get(node)
            if self._reads_mask(node.value) and isinstance(parent, ast.JoinedStr):
                before = self.tree.value(parent.values[0]) if parent.values else None
                if before == "cuda:" and len(parent.values) == 2:
                    yield node.value, wording.mask_as_index()
        elif isinstance(node.func, ast.Name) and node.func.id == "int" and len(node.args) == 1:
            if self._reads_part(node.args[0]):
                yield node, wording.mask_as_numbers()
            if not self._reads_mask(node.args[0]):
                return
            outer = self.tree.parents.get(node)
            name = last_name(outer.func) if isinstance(outer, ast.Call) else ""
            if name in ("set_device", "device", "cuda"):
                yield node, wording.mask_as_index()
            else:
                for suspect in wording.mask_as_number():
                    yield node, suspect
        elif self.tree.dotted(node.func) == "map" and len(node.args) == 2:
            numbers = last_name(node.args[0]) == "int"
            if numbers and self._reads_parts(node.args[1]):
                yield node, wording.mask_as_numbers()

    def _reads_mask(self, node: ast.expr) -> bool:
        """Tell whether a value is the mask itself, no part of it."""
        if isinstance(node, ast.Name):
            bound = self.tree.bound.get(node.id)
            return bound is not None and not isinstance(bound, ast.Name) and self._reads_mask(bound)
        if isinstance(node, ast.Subscript):
            return self.tree.dotted(node.value) == "os.environ" and self._is(node.slice, MASK)
        if isinstance(node, ast.Call) and node.args:
            whole = self.tree.dotted(node.func)
            return whole in ("os.environ.get", "os.getenv") and self._is(node.args[0], MASK)
        return False

    def _reads_part(self, node: ast.expr) -> bool:
        """Tell whether a value is one part of the mask: `mask.split(",")[0]`, a loop's name."""
        if isinstance(node, ast.Call) and last_name(node.func) == "strip":
            return isinstance(node.func, ast.Attribute) and self._reads_part(node.func.value)
        if isinstance(node, ast.Subscript):
            return self._reads_parts(node.value)
        if not isinstance(node, ast.Name):
            return False
        bound = self.tree.bound.get(node.id)
        if bound is not None and not isinstance(bound, ast.Name):
            return self._reads_part(bound)
        looped = [value for name, value in self.tree.iterated if name == node.id]
        return bool(looped) and all(map(self._reads_parts, looped))

    def _reads_parts(self, node: ast.expr) -> bool:
        """Tell whether a value is the list of the mask's parts."""
        if isinstance(node, ast.Name):
            bound = self.tree.bound.get(node.id)
            return (
                bound is not None and not isinstance(bound, ast.Name) and self._reads_parts(bound)
            )
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "split"
            and self._reads_mask(node.func.value)
        )


def _passed_on(tree: PythonTree) -> frozenset[str]:
    """Names whose value comes from what the launcher set."""
    own: set[str] = set()
    for _ in range(3):
        before = len(own)
        for name, value in [*tree.assigned[:2000], *tree.iterated[:2000]]:
            words = words_in(value)
            if any(mark in words for mark in _OWN) or not own.isdisjoint(words.split()):
                own.add(name)
        if len(own) == before:
            break
    return frozenset(own)


def _first_import(tree: PythonTree) -> tuple[str, int]:
    """Return the first line that imports a framework, and its name."""
    for node in tree.nodes:
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in _LIBRARIES:
                return name.partition(".")[0], node.lineno
    return "", 0
