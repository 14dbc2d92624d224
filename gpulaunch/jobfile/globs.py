"""Matches the globs of `foreach`, as Python's `glob` with `**`, but bounded.

Own, because `glob` follows linked directories below `**`: two links to their own directory are
endless paths. Here `**` stays out of linked directories and of runs' own directories, each
directory is looked into once per component of the pattern, and there is a limit.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.jobfile.mistakes import FieldError

MAX_ENTRIES = 2_000_000
"""Directory entries read for one pattern at most."""

RUNS = "gpulaunch-runs"
_NUMBER = re.compile(r"(\d+)")
_MAGIC = re.compile(r"[*?[]")
_State: TypeAlias = tuple[str, int, bool]

NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP})
"""Why a directory counts as empty; after another error, nobody knows what is in it."""


class Sight(Struct):
    """What one look at a pattern saw. Paths are relative or absolute, as the pattern is typed.

    `matches`: each once. `unread`: why a directory could not be read, '' for none.
    """

    matches: list[str] = field(default_factory=list)
    unread: str = ""


def sight_of(pattern: str, base: str, limit: int = MAX_ENTRIES) -> Sight:
    """Look at the pattern below `base`. Raises FieldError if it reads too many entries."""
    search = _Search(pattern, base, limit)
    found = dict.fromkeys(match for match in search.all() if match)
    if not found and os.path.lexists(os.path.join(base, pattern)):
        found = {pattern: None}
    search.sight.matches = list(found)
    return search.sight


def matches_of(pattern: str, base: str, limit: int = MAX_ENTRIES) -> list[str]:
    """Return the pattern's matches below `base`, relative or absolute as typed, each once.

    Hidden names match only a component that starts with a dot. A pattern that matches nothing,
    but is the name of a file, is taken literally. Raises FieldError if it reads too many entries.
    """
    search = _Search(pattern, base, limit)
    found = dict.fromkeys(match for match in search.all() if match)
    if not found and os.path.lexists(os.path.join(base, pattern)):
        return [pattern]  # a name that merely looks like a pattern: input[1].fasta
    if not found:
        where = "" if pattern.startswith("/") else f" below {base}"
        links = "; ** does not go into linked directories" if search.passed_links else ""
        shut = f"; this user may not read {search.shut}" if search.shut else ""
        raise FieldError(f"{pattern} matches no file{where}{links}{shut}")
    return list(found)


class _Search:
    """One pattern, component by component.

    A state is a directory, the component's number, and for `**` whether it is below its start.
    """

    def __init__(self, pattern: str, base: str, limit: int) -> None:
        self.pattern = pattern
        self.base = base
        self.limit = limit
        self.looked_at = 0
        self.passed_links = False
        self.shut = ""
        self.root = "/" if pattern.startswith("/") else ""
        self.parts = _components(pattern)
        self.seen: set[_State] = set()
        self.sight = Sight()

    def all(self) -> Iterator[str]:
        """Yield paths that match; some may come twice."""
        todo: list[_State] = [(self.root, 0, False)]
        while todo:
            state = todo.pop()
            if state not in self.seen:
                self.seen.add(state)
                yield from self._step(*state, todo)

    def _step(self, prefix: str, number: int, deep: bool, todo: list[_State]) -> Iterator[str]:
        """Yield a component's matches in the directory `prefix` (empty, or ending in a slash)."""
        part, last = self.parts[number], number == len(self.parts) - 1
        if part == "**":
            yield from self._below(prefix, number, last and not deep, todo)
        elif not _MAGIC.search(part):
            path = prefix + part
            if last:
                if os.path.lexists(os.path.join(self.base, path)):
                    yield path
            else:
                todo.append((path + "/", number + 1, False))
        else:
            fits = _fits(part)
            for entry in self._entries(prefix):
                if fits(entry.name):
                    if last:
                        yield prefix + entry.name
                    elif _is_directory(entry):
                        todo.append((prefix + entry.name + "/", number + 1, False))

    def _below(self, prefix: str, number: int, itself: bool, todo: list[_State]) -> Iterator[str]:
        """Yield for `**` this directory, and all below it that are neither hidden nor links."""
        last = number == len(self.parts) - 1
        if not last:
            todo.append((prefix, number + 1, False))
        elif itself and prefix and os.path.isdir(os.path.join(self.base, prefix)):
            yield prefix
        for entry in self._entries(prefix):
            if entry.name.startswith("."):
                continue
            if last:
                yield prefix + entry.name
            if entry.is_symlink():
                self.passed_links = self.passed_links or _is_directory(entry)
            elif entry.name != RUNS and _is_directory(entry):
                todo.append((prefix + entry.name + "/", number, True))

    def _entries(self, prefix: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self.base, prefix)) as entries:
                for entry in entries:
                    self.looked_at += 1
                    if self.looked_at > self.limit:
                        raise FieldError(
                            f"{self.pattern} looks at more than {self.limit:,} files; start it in"
                            " a narrower directory, or name the files with lines:"
                        )
                    yield entry
        except OSError as error:
            # As in every glob, an unreadable directory counts as empty.
            if error.errno == errno.EACCES:
                self.shut = self.shut or os.path.join(self.base, prefix)
            elif error.errno not in NOTHING_THERE:
                self.sight.unread = f"{os.path.join(self.base, prefix)}: {error.strerror}"


def _components(pattern: str) -> list[str]:
    """Return the pattern's components; an empty last one asks for directories."""
    parts = pattern.split("/")
    kept = [part for part in parts[:-1] if part]
    kept = [part for i, part in enumerate(kept) if part != "**" or kept[i - 1 : i] != ["**"]]
    return kept if parts[-1] == "**" and kept[-1:] == ["**"] else [*kept, parts[-1]]


def _fits(part: str) -> Callable[[str], object]:
    matches = re.compile(fnmatch.translate(part)).match
    hidden = part.startswith(".")
    return lambda name: (hidden or not name.startswith(".")) and matches(name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def home_expanded(pattern: str, home: str) -> str:
    """Expand `~`, with the special characters of the home directory's path escaped."""
    if pattern == "~" or pattern.startswith("~/"):
        return glob.escape(home) + pattern[1:]
    return pattern


def natural(path: str) -> list[list[str | int]]:
    """Return the key that sorts paths as people count: a2 before a10, a.txt before a (1).txt."""
    stem, suffix = os.path.splitext(path)
    return [
        [int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(name))]
        for name in (*stem.split("/"), suffix)
    ]
