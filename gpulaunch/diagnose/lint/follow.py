"""From a command to everything that it runs: scripts, the modules they import, their commands.

    Run ──▶ file ──▶ look (python, shell, notebook) ──▶ imports and runs ──▶ files ...

Each file is read and looked at once, whatever leads to it; each job only asks which of the
suspects there hold for it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.diagnose.lint import shell
from gpulaunch.diagnose.lint.files import Files, is_installed, lines_of
from gpulaunch.diagnose.lint.finding import (
    NO_OPTIONS,
    OF_ENDINGS,
    Finding,
    Given,
    Placed,
    Suspect,
    heard,
    judged,
)
from gpulaunch.diagnose.lint.modules import imported, module_file, roots_of
from gpulaunch.diagnose.lint.runs import ProgramRun
from gpulaunch.diagnose.lint.scan import FileScan

if TYPE_CHECKING:
    from gpulaunch.diagnose.lint.notebook import Notebook

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

    def indices(self, start: CommandStart) -> frozenset[str]:
        """Options that the script itself says are a card's number."""
        found = self._file(start)
        return self.look(*found).indices if found else frozenset()

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
        given = replace(given, options=start.run.options.under(given.options))
        for path, looked in self.behind(start):
            if looked.placed:
                placed = looked.placed
                if not start.run.last:
                    placed = tuple(one for one in placed if one.suspect.rule not in OF_ENDINGS)
                found = judged(self.files.shown(path), placed, looked.lines, [given])
                yield from (_in_cell(one, looked.book) for one in found)
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
        if run.kind == "code":
            return None
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


def suspects_in_python(code: str) -> Iterable[Suspect]:
    """Return what is suspect in code that a command runs, as by `python -c`."""
    # Here and below: what looks at Python is half of this package, and many jobs have none to see.
    from gpulaunch.diagnose.lint import python

    return python.suspects_in(code)


def _look(text: str, kind: str) -> FileScan:
    if kind == "file":
        match = _SHEBANG.match(text)
        if match is None:
            return FileScan()
        kind = "python" if match.group(1).startswith("python") else "shell"
    if kind == "notebook":
        return _of_notebook(text)
    if kind == "shell":
        return of_shell(text, "bash")
    from gpulaunch.diagnose.lint import python

    scan, lines = python.look(text, main=kind != "module"), lines_of(text)
    return replace(scan, placed=tuple(heard(scan.placed, lines)), lines=lines)


def of_shell(text: str, dialect: str) -> FileScan:
    """Return a script's suspects, each at the word that it is about."""
    first = text[: text.find("\n")] if text.startswith("#!") else ""
    looked = shell.look(text, dialect, suspects_in_python, shell=first.split())
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


def _of_notebook(text: str) -> FileScan:
    from gpulaunch.diagnose.lint import notebook, python

    book = notebook.read(text)
    if book is None:
        return FileScan()
    scan, typed = python.look(book.text), [line.typed for line in book.lines]
    kept = tuple(heard(scan.placed, typed))
    return FileScan(kept, scan.imports, runs=scan.runs, lines=typed, book=book)


def _in_cell(finding: Finding, book: Notebook | None) -> Finding:
    """In a notebook: the file's own line, and, as Jupyter shows none, which cell."""
    if book is None:
        return finding
    line, column, text = book.place(finding.line - 1, finding.column - 1)
    why = f"{book.lines[finding.line - 1].cell}: {finding.why}"
    return replace(finding, line=line + 1, column=column + 1, text=text, why=why)


def _directory(cwd: str, relative: str, script: str) -> str:
    if relative.startswith("<script>"):
        relative = posixpath.dirname(script) + relative[len("<script>") :]
    return posixpath.normpath(posixpath.join(cwd, relative))
