"""Which files a command leads to, and what is in them. Nothing is run or imported.

    ProgramRun ──▶ file ──▶ look (python, shell) ──▶ imports and runs ──▶ files ...

The only module of this package that touches the file system. It reads regular files, never more
than a bound, and nothing that was installed. A file that cannot be read is None: a script that is
not there yet, or is no text, is no finding. Each file is read and looked at once, whatever leads to
it; each job only asks which of the suspects there hold for it.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import time
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.diagnose.lint import shell
from gpulaunch.diagnose.lint.finding import (
    NO_OPTIONS,
    OF_ENDINGS,
    FileScan,
    Finding,
    Given,
    Module,
    Placed,
    ProgramRun,
    heard,
    judged,
)
from gpulaunch.jobfile.source import read_bytes

_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^/(?:usr|proc|sys|dev|nix)/")
_ENCODINGS = re.compile(
    r"utf-?8(-sig)?|ascii|us-ascii|latin-?1|iso-?8859-?\d+|cp\d+|gbk|gb2312|gb18030|big5|koi8-r"
    r"|shift[_-]?jis|euc[_-](jp|kr)",
    re.IGNORECASE,
)
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(slots=True)
class ReadBudget:
    """How much is read at most: files, bytes of one and of all, seconds (of `clock`) in all."""

    files: int = 300
    bytes_each: int = 256 << 10
    bytes_all: int = 8 << 20
    seconds: float = 2.0
    clock: Callable[[], float] = time.monotonic
    why: str = ""
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds

    def left(self) -> bool:
        """Tell whether to go on; `why` says what ran out."""
        if not self.why and self.clock() > self._end:
            self.why = f"{self.seconds:g} s were over"
        return not self.why

    def took(self, size: int) -> None:
        self.files -= 1
        self.bytes_all -= size
        if self.files <= 0 or self.bytes_all <= 0:
            self.why = self.why or "there are too many of them"


class Files:
    """Texts of scripts, each read once. `base`: how paths are shown, relative to it if below."""

    def __init__(self, base: str, budget: ReadBudget) -> None:
        self.budget = budget
        self._base = base
        self._kinds: dict[str, bool] = {}
        self._real: dict[str, str] = {}

    def text(self, path: str) -> str | None:
        """Return a script's text, decoded as Python would; None for no script, or one too many."""
        if not self.budget.left():
            return None
        try:
            data = read_bytes(Path(path), "a script", self.budget.bytes_each)
        except UsageError:
            return None
        self.budget.took(len(data))
        return decoded(data)

    def is_file(self, path: str) -> bool:
        if path not in self._kinds:
            self._kinds[path] = os.path.isfile(path)  # no error: False for what cannot be asked
        return self._kinds[path]

    def exists(self, path: str) -> bool:
        """Return False only where it is certain: a directory that may not be read may hold it."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return True
        return True

    def names(self, directory: str, most: int) -> list[str]:
        """Names in a directory, `most` of them at most; none where it cannot be read."""
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in islice(entries, most)]
        except (OSError, ValueError):
            return []

    def real(self, path: str) -> str:
        """Return the path by which a file is known, whatever links lead to it."""
        if path not in self._real:
            try:
                self._real[path] = os.path.realpath(path)
            except (OSError, ValueError):
                self._real[path] = path
        return self._real[path]

    def shown(self, path: str) -> str:
        relative = os.path.relpath(path, self._base)
        return path if relative.startswith("..") else relative


def is_installed(path: str) -> bool:
    """Tell whether a file is a package's or the system's, not of those who wrote the job."""
    return bool(_INSTALLED.search(path))


def decoded(data: bytes) -> str | None:
    """Return a script's text, or None: NUL bytes, another encoding than it says, odd ones.

    A few codecs only: some of Python's take quadratic time, or make bytes of bytes.
    """
    if b"\0" in data:
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding) if _ENCODINGS.fullmatch(encoding) else None
    except (SyntaxError, UnicodeError, LookupError, ValueError):
        return None


def lines_of(text: str) -> list[str]:
    """Split a text into lines as Python does; form feeds and U+2028 end none."""
    return _LINE_END.split(text)


# ── imports ─────────────────────────────────────────────────────────────────────────────────────


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


# ── from a command to its files ─────────────────────────────────────────────────────────────────

_SHEBANG = re.compile(
    r"#!\S*?/?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(python[0-9.]*|bash|sh|zsh|dash|ksh)\b"
)
_DEEPEST = 6
"""Scripts that run scripts that run scripts."""


class CommandStart(Struct, frozen=True):
    """What a job's command runs, from which directory. `extra`: more places of modules."""

    run: ProgramRun
    cwd: str
    extra: tuple[str, ...] = ()


class Follow:
    def __init__(self, files: Files) -> None:
        self.files = files
        self._looked: dict[tuple[str, str], FileScan] = {}
        self._behind: dict[CommandStart, tuple[tuple[str, FileScan], ...]] = {}

    def findings(self, start: CommandStart, given: Given) -> Iterator[Finding]:
        """Yield what in the files behind a command does not suit a job of this kind."""
        yield from self._findings(start, given, set(), 0)

    def files_of(self, start: CommandStart) -> dict[str, None]:
        """Return the files that a command runs, with all that these import and run, in order."""
        found: dict[str, None] = {}
        todo, seen = [(start, 0)], {start}
        while todo and self.files.budget.left():
            start, depth = todo.pop()
            for path, kind in self._reached(start):
                found[path] = None
                for run in self.look(path, kind).runs if depth < _DEEPEST else ():
                    plain = replace(run, options=NO_OPTIONS, number=0, last=False)
                    inner = CommandStart(plain, _directory(start.cwd, run.cwd, path), start.extra)
                    if inner not in seen:
                        seen.add(inner)
                        todo.append((inner, depth + 1))
        return found

    def _findings(
        self, start: CommandStart, given: Given, seen: set[CommandStart], depth: int
    ) -> Iterator[Finding]:
        if start in seen or not self.files.budget.left():
            return
        seen.add(start)
        given = replace(given, options=start.run.options)
        for path, looked in self.behind(start):
            if looked.placed:
                placed = looked.placed
                if not start.run.last:
                    placed = tuple(one for one in placed if one.suspect.rule not in OF_ENDINGS)
                yield from judged(self.files.shown(path), placed, looked.lines, [given])
            for run in looked.runs if depth < _DEEPEST else ():
                run = replace(run, last=run.last and start.run.last)
                inner = CommandStart(run, _directory(start.cwd, run.cwd, path), start.extra)
                yield from self._findings(inner, given, seen, depth + 1)

    # ── which files ─────────────────────────────────────────────────────────────────────────────

    def behind(self, start: CommandStart) -> tuple[tuple[str, FileScan], ...]:
        """Return those of the file that is run, and of all it imports, in which something is."""
        key = replace(start, run=replace(start.run, options=NO_OPTIONS, number=0, last=False))
        if key not in self._behind:
            reached = [(path, self.look(path, kind)) for path, kind in self._reached(start)]
            self._behind[key] = tuple(pair for pair in reached if pair[1].placed or pair[1].runs)
        return self._behind[key]

    def _reached(self, start: CommandStart) -> Iterator[tuple[str, str]]:
        found = self._file(start)
        if found is None:
            return
        pending, seen = [found], {self.files.real(found[0])}
        roots = roots_of(found[0], start.cwd, start.extra)
        while pending and self.files.budget.left():
            path, kind = pending.pop(0)
            yield path, kind
            for module in self.look(path, kind).imports:
                for other in imported(self.files, path, module, roots):
                    real = self.files.real(other)
                    if real not in seen and not is_installed(other):
                        seen.add(real)
                        pending.append((other, "module"))

    def _file(self, start: CommandStart) -> tuple[str, str] | None:
        run = start.run
        if run.kind == "module":
            module = module_file(self.files, run.what, start.cwd, "__main__.py")
            return (module, "python") if module and not is_installed(module) else None
        path = posixpath.normpath(posixpath.join(start.cwd, run.what))
        if not path.startswith("/") or not self.files.is_file(path) or is_installed(path):
            return None
        return path, run.kind

    # ── what is in them ─────────────────────────────────────────────────────────────────────────

    def look(self, path: str, kind: str) -> FileScan:
        """`kind` is that of a Run, or `module` for what is imported."""
        key = (self.files.real(path), kind)
        if key not in self._looked:
            text = self.files.text(path)
            looked = FileScan() if text is None else _look(text, kind)
            self._looked[key] = looked
        return self._looked[key]


def _look(text: str, kind: str) -> FileScan:
    if kind == "file":
        match = _SHEBANG.match(text)
        if match is None:
            return FileScan()
        kind = "python" if match.group(1).startswith("python") else "shell"
    if kind == "shell":
        return of_shell(text, "bash")
    # What looks at Python is a third of this package, and many jobs have none to see.
    from gpulaunch.diagnose.lint import python

    scan, lines = python.look(text, main=kind != "module"), lines_of(text)
    return replace(scan, placed=tuple(heard(scan.placed, lines)), lines=lines)


def of_shell(text: str, dialect: str) -> FileScan:
    """Return a script's suspects, each at the word that it is about."""
    first = text[: text.find("\n")] if text.startswith("#!") else ""
    looked = shell.look(text, dialect, shell=first.split())
    lines = text.split("\n")
    placed = []
    for found in looked.found:
        line = text.count("\n", 0, found.word.start)
        column = found.word.start - (text.rfind("\n", 0, found.word.start) + 1)
        last = line
        while last < len(lines) - 1 and lines[last].endswith("\\"):
            last += 1
        placed.append(Placed(found.suspect, line, column, last))
    return FileScan(tuple(heard(placed, lines)), runs=looked.runs, lines=lines)


def _directory(cwd: str, relative: str, script: str) -> str:
    if relative.startswith("<script>"):
        relative = posixpath.dirname(script) + relative[len("<script>") :]
    return posixpath.normpath(posixpath.join(cwd, relative))
