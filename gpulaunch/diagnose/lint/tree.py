"""A Python file's syntax tree, with what the checks ask of it: parents, names, constants, guards.

Never recurses and never runs anything: a file may be made to hurt. What Python itself refuses
(Python 2, nested too deep, not text) has no tree.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

_DEEP = 100_000
_LARGE = 32 << 10
_FIELDS = 4000
_CLIMB = 500
_WORDS = 300
Value: TypeAlias = str | int | bool

_NO_PARTS = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
_COUNTS = re.compile(
    r"device_?count|n_?gpus?\b|num_?(?:gpus?|devices?|cuda)|gpu_?count|n_?devices?\b|multi_?gpu"
    r"|multi_?(?:device|accelerator)|skip_?if\w*gpus?|lt_\d?x?_?gpu|require\w*gpus?|world_?size|gpus\b|devices\b|data_?parallel|distributed|parallel",
    re.IGNORECASE,
)
_LEAVES_BLOCK = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_EXITS = frozenset({"exit", "_exit", "skip", "abort", "fail", "skipTest", "quit"})


def parse(text: str) -> ast.Module | None:
    """Return the tree of a file's text, or None where Python cannot read it, or not quickly.

    Python 3.11 and older take quadratic time for f-strings with thousands of fields.
    """
    if len(text) > _LARGE and text.count("{") > _FIELDS:
        return None
    if sys.version_info < (3, 11) and len(text) > _DEEP:
        return None  # Python 3.10 has no bound for the depth of a long `a+a+...`
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like, said when the file runs
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None


class PythonTree:
    """`main`: the file is run itself, rather than imported."""

    def __init__(self, module: ast.Module, main: bool) -> None:
        self.main = main
        self.nodes: list[ast.AST] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self.aliases: dict[str, str] = {}
        self.bound: dict[str, ast.expr] = {}
        self.assigned: list[tuple[str, ast.expr]] = []
        self.iterated: list[tuple[str, ast.expr]] = []
        self._collect(module)
        self._names()

    # ── collecting ──────────────────────────────────────────────────────────────────────────────

    def _collect(self, module: ast.Module) -> None:
        """Every node in the order of the source, parts that never run left out."""
        pending: list[ast.AST] = [module]
        while pending:
            node = pending.pop()
            self.nodes.append(node)
            children = [c for c in ast.iter_child_nodes(node) if not isinstance(c, _NO_PARTS)]
            if isinstance(node, ast.If):
                dead = self._dead(node)
                children = [child for child in children if child not in dead]
            for child in children:
                self.parents[child] = node
            pending.extend(reversed(children))

    def _dead(self, node: ast.If) -> list[ast.stmt]:
        """Return the branch that is never taken."""
        test, negated = node.test, False
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, negated = test.operand, not negated
        if isinstance(test, ast.Constant):
            return node.orelse if bool(test.value) != negated else node.body
        if isinstance(test, ast.Name | ast.Attribute) and last_name(test) == "TYPE_CHECKING":
            return node.orelse if negated else node.body
        if not self.main and isinstance(test, ast.Compare) and _asks_for_main(test):
            return node.body
        return []

    def _names(self) -> None:
        stored: Counter[str] = Counter()
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
            elif isinstance(node, ast.arg):
                stored[node.arg] += 2
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (target.id for target in targets if isinstance(target, ast.Name))
                self.assigned += [(name, node.value) for name in names]
            elif isinstance(node, ast.AugAssign):
                stored[last_name(node.target)] += 1
            elif isinstance(node, ast.For | ast.comprehension):
                self._iterate(node.target, node.iter, stored)
        self.bound = {name: value for name, value in self.assigned if stored[name] == 1}

    def _iterate(self, target: ast.expr, iterable: ast.expr, stored: Counter[str]) -> None:
        """Note that a loop gives its names many values."""
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for name in map(last_name, parts):
            stored[name] += 1
            self.iterated.append((name, iterable))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name in node.names:
            if isinstance(node, ast.Import):
                whole = name.name if name.asname else name.name.partition(".")[0]
                self.aliases.setdefault(name.asname or whole, whole)
            elif node.module and not node.level:
                self.aliases.setdefault(name.asname or name.name, f"{node.module}.{name.name}")

    # ── what things are called ──────────────────────────────────────────────────────────────────

    def dotted(self, node: ast.AST) -> str:
        """`os.environ` for what stands for it here, imports looked through; "" for no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < 10:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])

    # ── what values are known ───────────────────────────────────────────────────────────────────

    def value(self, node: ast.AST | None, depth: int = 0) -> Value | None:
        """Return the text or number that an expression surely stands for."""
        if depth > 5 or node is None:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int) else None
        if isinstance(node, ast.Name):
            return self.value(self.bound.get(node.id), depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self.value(node.operand, depth + 1)
            return -number if isinstance(number, int) else None
        if isinstance(node, ast.JoinedStr):
            return self._joined([self._piece(part, depth) for part in node.values[:20]])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = [self.value(side, depth + 1) for side in (node.left, node.right)]
            return self._joined(both) if any(isinstance(side, str) for side in both) else None
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        return None

    def _piece(self, part: ast.expr, depth: int) -> Value | None:
        if isinstance(part, ast.FormattedValue):
            return None if part.format_spec else self.value(part.value, depth + 1)
        return self.value(part, depth + 1)

    @staticmethod
    def _joined(parts: list[Value | None]) -> str | None:
        return None if None in parts else "".join(str(part) for part in parts)[:10_000]

    def _called(self, node: ast.Call, depth: int) -> Value | None:
        """Return what `str(...)` or `int(...)` makes of a known value."""
        if not isinstance(node.func, ast.Name) or len(node.args) != 1:
            return None
        inner = self.value(node.args[0], depth + 1)
        if inner is None or node.func.id not in ("str", "int"):
            return None
        plain = str(inner).strip()
        if node.func.id == "str":
            return str(inner)
        return int(plain) if re.fullmatch(r"[0-9]{1,9}", plain) else None

    # ── whether it is ever reached ──────────────────────────────────────────────────────────────

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(child, parent) from the node to the file's top."""
        for _ in range(_CLIMB):
            parent = self.parents.get(node)
            if parent is None:
                return
            yield node, parent
            node = parent

    def tests_around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the conditions to reach a node: `if`s around it, or before it that leave."""
        for child, parent in self.above(node):
            if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
                yield parent.test
            elif isinstance(parent, ast.BoolOp):
                yield from (v for v in parent.values[:20] if v is not child)
            elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from parent.decorator_list
            if isinstance(child, ast.stmt):
                yield from _left_before(child, parent)

    def assigned_from(self, node: ast.AST) -> bool:
        """Tell whether the value of this expression is kept, to be put back later perhaps."""
        parent = self.parents.get(node)
        return isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr)

    def counts_cards(self, node: ast.AST) -> bool:
        """Tell whether a node is reached only after a look at how many cards there are."""
        return any(_COUNTS.search(words_in(test)) for test in self.tests_around(node))

    def asks_for(self, node: ast.AST, text: str) -> bool:
        """Tell whether a condition around a node speaks of `text`."""
        return any(text in words_in(test) for test in self.tests_around(node))


def _left_before(child: ast.stmt, parent: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for before in block[: block.index(child)][-50:]:
            if isinstance(before, ast.If) and not _leaves(before.body[-1]):
                continue
            if isinstance(before, ast.If | ast.Assert):
                yield before.test


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, _LEAVES_BLOCK):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and last_name(call.func) in _EXITS


def parts_in(node: ast.AST, most: int) -> Iterator[ast.AST]:
    """Yield an expression and what is in it, `most` nodes at most."""
    pending = [node]
    while pending and most:
        inner, most = pending.pop(), most - 1
        yield inner
        pending.extend(ast.iter_child_nodes(inner))


def words_in(node: ast.AST) -> str:
    """Return the names and texts in an expression, as far as it is of a usual size."""
    found: list[str] = []
    for inner in parts_in(node, _WORDS):
        if isinstance(inner, ast.Name):
            found.append(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.append(inner.attr)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.append(inner.value[:200])
    return " ".join(found)


def last_name(node: ast.AST) -> str:
    """`device` of `torch.device`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _asks_for_main(test: ast.Compare) -> bool:
    sides = [test.left, *test.comparators]
    name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    main = any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
    return name and main and isinstance(test.ops[0], ast.Eq)


# ── what a module defines ───────────────────────────────────────────────────────────────────────

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAKES_NAMES = frozenset({"globals", "exec", "setattr", "eval", "vars"})


def defined(text: str) -> set[str] | None:
    """Return the names that a module has once it was run; None if its text cannot tell."""
    module = parse(text)
    if module is None:
        return None  # of another version of Python, perhaps
    names: set[str] = set()
    for node in _at_top(module.body):
        found = _bound_by(node)
        if found is None:
            return None
        names.update(found)
    return None if "__getattr__" in names else names


def _at_top(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Everything that runs with the module; of functions and classes, that they are there."""
    stack = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _NESTED):
            stack.extend(ast.iter_child_nodes(node))


def _bound_by(node: ast.AST) -> list[str] | None:
    """Return the names that one node binds; None where it may bind any."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Name(id=name) if name in _MAKES_NAMES:
            return None
        case ast.alias(name="*"):
            return None
        case ast.alias(name=name, asname=other):
            return [other or name.partition(".")[0]]
        case ast.Attribute(attr="modules" | "__dict__"):
            return None
    return []
