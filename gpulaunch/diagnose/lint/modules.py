"""Which files an import means (beside the script, in the job's directory, in its package), and
whether a worker's function is in its file: nothing is imported.

Never what is installed: a name that is found in none of these directories is somebody else's.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterable, Iterator

from gpulaunch.diagnose.lint.files import Files, is_installed
from gpulaunch.diagnose.lint.python import Module
from gpulaunch.diagnose.lint.tree import parse
from gpulaunch.jobfile.suggest import did_you_mean

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAKES_NAMES = frozenset({"globals", "exec", "setattr", "eval", "vars"})


def imported(files: Files, path: str, module: Module, roots: tuple[str, ...]) -> Iterator[str]:
    """Yield the files that `module`, imported in the file `path`, is made of."""
    if module.level:
        base = posixpath.dirname(path)
        for _ in range(min(module.level, 20) - 1):
            base = posixpath.dirname(base)
        yield from _below(files, base, module)
        return
    for root in roots:
        found = list(_below(files, root, module))
        if found:
            yield from found
            return


def _below(files: Files, base: str, module: Module) -> Iterator[str]:
    """`a.b` under a directory: a/__init__.py, a/b.py; and the names imported that are modules."""
    steps = module.module.split(".") if module.module else []
    for step in steps[:20]:
        if not step.isidentifier():
            return
        base = posixpath.join(base, step)
        package = posixpath.join(base, "__init__.py")
        if files.is_file(package):
            yield package
        elif files.is_file(f"{base}.py"):
            yield f"{base}.py"
            return
    for name in module.names[:100]:
        path = module_file(files, name, base) if name.isidentifier() else None
        if path is not None:
            yield path


def module_file(files: Files, name: str, cwd: str, within: str = "__init__.py") -> str | None:
    """Find a module's file below a directory: `a/b.py` for `a.b`, or what is `within` a/b."""
    base = posixpath.join(cwd, *name.split("."))
    paths = (f"{base}.py", posixpath.join(base, within))
    return next((path for path in paths if files.is_file(path)), None)


def roots_of(path: str, cwd: str, more: tuple[str, ...]) -> tuple[str, ...]:
    """Return where Python, or an editable installation, would look for a script's modules."""
    directories = [posixpath.dirname(path), cwd, posixpath.join(cwd, "src"), *more]
    return tuple(d for d in dict.fromkeys(directories) if d and not is_installed(d + "/"))


# ── what a module defines, by its syntax tree ───────────────────────────────────────────────────


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
