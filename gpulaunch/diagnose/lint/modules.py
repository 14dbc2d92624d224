"""Which files an import means: beside the script, in the job's directory, in its package.
Nothing is imported.

Never what is installed: a name that is found in none of these directories is somebody else's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from gpulaunch.diagnose.lint.files import Files, is_installed
from gpulaunch.diagnose.lint.scan import Module


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
