"""Finds what a script imports, from its syntax tree, in the interpreter that is to run it.

    script ─▶ imports of its top level ─▶ third-party: to be preloaded
                                     └──▶ files beside it: read likewise

Runs in the jobs' interpreter. Reads files and imports none of them. Leaves imports inside functions
to the script.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterator

from ..wire import Any

MOST_FILES = 100
BEGIN_CUDA = dict.fromkeys(
    ("bitsandbytes", "xformers", "deepspeed"), "it initialises CUDA when it is imported"
)
STANDARD = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
        if path
    }
)


class ModulesFound:
    """The modules to import, in the script's order, and those left out, with the reason."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.modules: list[str] = []
        self.left_out: dict[str, str] = {}

    def add(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in BEGIN_CUDA:
            self.left_out[top] = BEGIN_CUDA[top]
        elif name not in self.modules:
            self.modules.append(name)


def find(target: list[str]) -> ModulesFound:
    """Return the modules that the target imports: a script, or `-m` and a module."""
    found = ModulesFound(os.path.basename(target[0]) if target[0] != "-m" else target[1])
    for statement, package in statements(target):
        for name in imported(statement, package):
            if is_third_party(name):
                found.add(name)
    return found


def sets(target: list[str]) -> set[str]:
    """Return the variables of os.environ that the target's top level sets."""
    return {name for one, _ in statements(target) for name in environment_names(one)}


def beside_script(target: list[str]) -> list[str]:
    """Return what the interpreter will put first on sys.path for the target; [] with -I or -P."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return []
    if target[0] == "-m":
        return [os.getcwd()]
    script = os.path.join(os.getcwd(), target[0])
    if os.path.isdir(script):
        return [script]
    import zipfile

    if not script.endswith(".py") and zipfile.is_zipfile(script):
        return [script]
    return [os.path.dirname(os.path.realpath(script))]


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


def first_file(target: list[str]) -> str | None:
    if target[0] != "-m":
        path = os.path.abspath(target[0])
        return os.path.join(path, "__main__.py") if os.path.isdir(path) else path
    return file_of(target[1], main=True)


def statements(target: list[str]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield what the script runs, then what the user's files that it imports run.

    Each statement comes with the package of its file.
    """
    first = first_file(target)
    if first is None:
        return
    package = target[1].rpartition(".")[0] if target[0] == "-m" else ""
    pending, seen = [(first, package)], {first}
    while pending and len(seen) <= MOST_FILES:
        path, package = pending.pop(0)
        for statement in top_level(parsed(path), path == first):
            yield statement, package
            for name in imported(statement, package):
                if is_third_party(name) and not package:
                    continue
                for module in (name, *(f"{name}.{more}" for more in names_from(statement))):
                    file = local_file(module)
                    if file is not None and file not in seen:
                        seen.add(file)
                        is_package = os.path.basename(file) == "__init__.py"
                        pending.append((file, module if is_package else module.rpartition(".")[0]))


def parsed(path: str) -> list[ast.stmt]:
    try:
        with tokenize.open(path) as file:
            return ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []


def local_file(name: str) -> str | None:
    """Return a module's file if it is the user's own: not installed, not Python's; else None."""
    path = file_of(name)
    return None if path is None or installed(path) else path


def file_of(name: str, main: bool = False) -> str | None:
    """Return a module's file, or None; imports no package, unlike importlib's `find_spec`."""
    top, *rest = name.split(".")
    spec = spec_of(top)
    if spec is None:
        return None
    path: str | None
    base: str | None
    path, base = spec.origin, next(iter(spec.submodule_search_locations or ()), None)
    for step in rest:
        if base is None:
            return None
        base = os.path.join(base, step)
        path = os.path.join(base, "__init__.py")
        if not os.path.isfile(path):
            path, base = base + ".py", None if not os.path.isdir(base) else base
    if main and base is not None and os.path.isfile(os.path.join(base, "__main__.py")):
        path = os.path.join(base, "__main__.py")
    return path if path and path.endswith(".py") and os.path.isfile(path) else None


def spec_of(top: str) -> Any:
    """Return where a top-level module is; None if it is nowhere."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None


def is_third_party(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in getattr(sys, "stdlib_module_names", ()):
        return False
    spec = spec_of(top)
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return any(place is not None and installed(place) for place in places) and not any(
        place is not None and of_python(place) for place in places
    )


def installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or of_python(path)


def of_python(path: str) -> bool:
    real = os.path.realpath(path)
    return real.startswith(STANDARD) and "-packages" not in real


# ── Statements ──────────────────────────────────────────────────────────────────────────────────


def top_level(body: list[ast.stmt], main: bool) -> Iterator[ast.stmt]:
    """Yield the statements that run when the file is run (`main`) or imported."""
    for statement in body:
        if isinstance(statement, ast.If):
            if "TYPE_CHECKING" in ast.dump(statement.test):
                yield from top_level(statement.orelse, main)
            elif main or "'__main__'" not in ast.dump(statement.test):
                yield from top_level(statement.body + statement.orelse, main)
        elif isinstance(statement, ast.Try):
            inner = [s for handler in statement.handlers for s in handler.body]
            whole = statement.body + inner + statement.orelse + statement.finalbody
            yield from top_level(whole, main)
        elif isinstance(statement, (ast.With, ast.For, ast.While)):
            yield from top_level(statement.body, main)
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement


def imported(statement: ast.stmt, package: str) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom):
        return []
    if not statement.level:
        return [statement.module or ""]
    parts = package.split(".") if package else []
    parts = parts[: len(parts) - statement.level + 1]
    parts += [statement.module] if statement.module else []
    return [".".join(parts)] if parts else []


def names_from(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [alias.name for alias in statement.names if alias.name != "*"]
    return []


def environment_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the variables that a statement sets or removes.

    By `os.environ["A"] = ...`, `.setdefault("A", ...)`, `.update(A=...)`, `os.putenv("A", ...)`.
    """
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            if is_environ(node.value):
                key: ast.AST = node.slice
                key = getattr(key, "value", key) if type(key).__name__ == "Index" else key
                yield from texts([key])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "putenv" or (is_environ(node.func.value) and name in ("setdefault", "pop")):
                yield from texts(node.args[:1])
            elif is_environ(node.func.value) and name == "update":
                yield from (word.arg for word in node.keywords if word.arg)
                for given in node.args:
                    if isinstance(given, ast.Dict):
                        yield from texts([key for key in given.keys if key is not None])


def is_environ(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name == "environ"


def texts(nodes: list[ast.AST] | list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def main() -> None:
    """Print, for `gpulaunch check`, what would be imported, as JSON."""
    import json

    target = sys.argv[1:]
    sys.path[:0] = beside_script(target)
    found = find(target)
    said = {"where": found.where, "modules": found.modules, "left_out": found.left_out}
    print(json.dumps(said))
