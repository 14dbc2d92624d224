"""Whether a worker's function is in its file, by the file's syntax tree: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gpulaunch.diagnose.lint.files import Files
from gpulaunch.diagnose.lint.modules import module_file
from gpulaunch.diagnose.lint.tree import parse
from gpulaunch.jobfile.suggest import did_you_mean

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAKES_NAMES = frozenset({"globals", "exec", "setattr", "eval", "vars"})


def lacks(files: Files, function: str, cwd: str) -> str:
    """Why `FILE.py:function` or `package.module:function` has no such function.

    Empty where it has, where the module is not below `cwd` (installed, perhaps), and where nobody
    can tell without running it.
    """
    place, _, name = function.rpartition(":")
    path = place if place.endswith(".py") else module_file(files, place, cwd)
    text = files.text(path) if path else None
    names = None if text is None else defined(text)
    first = name.partition(".")[0]
    if names is None or first in names or path is None:
        return ""
    return f"there is no {first} in {files.shown(path)}{did_you_mean(first, names)}"


def defined(text: str) -> set[str] | None:
    """Return the names that a module has once it was run; None if its text cannot tell."""
    tree = parse(text)
    if tree is None:
        return None  # of another version of Python, perhaps
    names: set[str] = set()
    for node in _at_top(tree.body):
        found = _names(node)
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


def _names(node: ast.AST) -> list[str] | None:
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
