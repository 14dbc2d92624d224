"""Reads the failing line, and what was assigned before it, as syntax."""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
from typing import TYPE_CHECKING, Any

from .frames import TracebackStep
from .limits import SOURCE_SIZE
from .objects import mro, of

if TYPE_CHECKING:
    from collections.abc import Iterator


class SourceFile:
    """A file's syntax, parsed once; empty where there is no source."""

    def __init__(self) -> None:
        linecache.checkcache()
        self.trees: dict[str, ast.Module | None] = {}

    def text(self, step: TracebackStep) -> str:
        return linecache.getline(step.file, step.line, step.frame.f_globals).strip()

    def tree(self, file: str, names: dict[str, Any] | None = None) -> ast.Module | None:
        if file not in self.trees:
            self.trees[file] = None
            text = "".join(linecache.getlines(file, names))
            if text and len(text) < SOURCE_SIZE:
                with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                    self.trees[file] = parsed(text)
        return self.trees[file]

    def failing(self, step: TracebackStep) -> list[ast.AST]:
        """The expression that failed (Python 3.11 knows which), else what its statement holds."""
        tree = self.tree(step.file, step.frame.f_globals)
        if tree is None:
            return []
        span = position(step)
        statement: ast.stmt | None = None
        for node in ast.walk(tree):
            if span and span == (
                getattr(node, "lineno", None),
                getattr(node, "end_lineno", None),
                getattr(node, "col_offset", None),
                getattr(node, "end_col_offset", None),
            ) and isinstance(node, ast.expr):  # fmt: skip
                return [node]
            if (
                isinstance(node, ast.stmt)
                and node.lineno <= step.line <= (node.end_lineno or node.lineno)
                and (statement is None or node.lineno >= statement.lineno)
            ):
                statement = node
        return header(statement) if statement is not None else []

    def assignment(self, step: TracebackStep, name: str) -> tuple[int, ast.expr] | None:
        """The last plain assignment to a variable before a line, in the same function."""
        tree = self.tree(step.file, step.frame.f_globals)
        if tree is None:
            return None
        scope: ast.AST = tree
        for node in ast.walk(tree):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and node.name == step.function
                and node.lineno <= step.line <= (node.end_lineno or 0)
            ):
                scope = node
        found: tuple[int, ast.expr] | None = None
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and node.lineno < step.line:
                named = any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
                if named and (found is None or node.lineno > found[0]):
                    found = (node.lineno, node.value)
        return found

    def attribute(self, owner: Any, name: str) -> tuple[str, int, ast.expr] | None:
        """Where a class of `owner` assigns `self.NAME`: file, line, value.

        A class's file is known from its `__init__`: its module may be gone from sys.modules.
        """
        for kind in mro(type(owner)):
            method = of(kind, "__dict__").get("__init__")
            code: Any = getattr(method, "__code__", None)
            tree = self.tree(code.co_filename, getattr(method, "__globals__", {})) if code else None
            for node in ast.walk(tree) if tree else ():
                if isinstance(node, ast.ClassDef) and node.name == of(kind, "__name__"):
                    for inner in ast.walk(node):
                        if isinstance(inner, ast.Assign) and any(
                            isinstance(target, ast.Attribute)
                            and target.attr == name
                            and isinstance(target.value, ast.Name)
                            for target in inner.targets
                        ):
                            return code.co_filename, inner.lineno, inner.value
        return None


def parsed(text: str) -> ast.Module:
    """Without the warnings that the program's own text gave when it was compiled."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def position(step: TracebackStep) -> tuple[int | None, int | None, int | None, int | None] | None:
    """(line, end line, column, end column) of the failing instruction, from Python 3.11 on."""
    positions = getattr(step.frame.f_code, "co_positions", None)
    if positions is None or step.lasti < 0:
        return None
    found = next(itertools.islice(positions(), step.lasti // 2, None), None)
    return tuple(found) if found and None not in found else None


def header(statement: ast.stmt) -> list[ast.AST]:
    """A statement without the statements inside it."""
    return [
        node
        for node in ast.iter_child_nodes(statement)
        if not isinstance(node, (ast.stmt, ast.excepthandler, ast.arguments))
    ]


def chains(node: ast.AST) -> Iterator[ast.expr]:
    """The longest names, attributes and subscripts in an expression, left to right."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        root: ast.expr = node
        inside: list[ast.AST] = []
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            inside += [root.slice] if isinstance(root, ast.Subscript) else []
            root = root.value
        if isinstance(root, ast.Name):
            yield node
        else:
            inside.append(root)
        for part in inside[::-1]:
            yield from chains(part)
    elif isinstance(node, ast.Lambda):
        return
    else:
        for inner in ast.iter_child_nodes(node):
            yield from chains(inner)


def factory(node: ast.expr) -> bool:
    """Whether an expression makes a tensor that has a `device` argument and was given none."""
    makers = "ones zeros empty full eye rand randn randint randperm arange linspace tensor"
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in makers.split()
        and not (
            node.func.attr == "tensor" and node.args and isinstance(node.args[0], ast.Constant)
        )
        and not any(word.arg == "device" for word in node.keywords)
    )


def unparse(node: ast.expr) -> str:
    """The expression's text, from Python 3.9 on; '' where it is long."""
    write = getattr(ast, "unparse", None)
    text = write(node) if write else ""
    return text if len(text) <= 80 else ""
