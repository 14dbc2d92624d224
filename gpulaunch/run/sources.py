"""Looks at the sources of `foreach` for a run that follows them: which files are complete.

    there before, unchanged for `settle` seconds ────────▶ counts ──▶ gone
    new ──▶ waits ── unchanged for `settle` seconds ─────▶ counts

A file that counts goes on to count until it is gone, whatever is written to it: its job may be
running, or wait for another try. After the first look, times are this machine's monotonic clock and
never a file's: a file server's clock may be another.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.base.errors import JobFileError
from gpulaunch.jobfile.globs import NOTHING_THERE, sight_of
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import Following, ForeachSource, NothingYet

SETTLE = 5.0
"""Seconds for which a file must have been unchanged, where `--settle` says nothing."""
LOOK_EVERY = (2.0, 15.0)
"""Seconds between two looks, at least and at most; looking may take a twentieth of the time."""
_FOLDER_ENTRIES = 10_000
"""Entries at most that are looked at in a directory that a glob matches."""

Stamp: TypeAlias = "tuple[int, ...]"
"""What shows that a file changed. The first number is its size in bytes."""


class Counted(Struct, frozen=True):
    """What one look found: `jobfile.source.Counting`.

    `still`: the files that count. `lists`: how each list of items is. `complete`: all files count,
    and everything could be read. `next_look`: in how many seconds to look again.
    """

    still: Mapping[str, Stamp] = field(default_factory=dict)
    lists: Mapping[str, Stamp] = field(default_factory=dict)
    complete: bool = False
    next_look: float = 0.0

    def counts(self, path: str) -> bool:
        return path in self.still

    def whole(self, path: str, size: int) -> bool:
        """Tell whether the list is still, and has as many bytes as it had then."""
        stamp = self.still.get(path)
        return stamp is not None and stamp[0] == size

    def same_as(self, other: Counted) -> bool:
        """Tell whether a job file reads the same by both: each change of a list counts."""
        return self.still.keys() == other.still.keys() and self.lists == other.lists


class _Found(Struct):
    """What the sources hold now. `complete`: everything could be read."""

    files: dict[str, Stamp] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)
    complete: bool = True


class SourceLook:
    """Looks at sources, and knows since when each file is unchanged. For one thread at a time.

    `mono` and `utc`: this machine's clocks, in seconds.
    """

    def __init__(
        self,
        settle: float | None = None,
        mono: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self._settle = SETTLE if settle is None else settle
        self._mono = mono
        self._utc = utc
        self._sources: tuple[ForeachSource, ...] = ()
        self._seen: dict[str, tuple[Stamp, float]] = {}
        self._still: set[str] = set()

    def look(self, sources: tuple[ForeachSource, ...]) -> Counted:
        """Look at these sources once. Of sources that it did not know, old files count at once.

        What cannot be read now stays as it was.
        """
        began = self._mono()
        known, self._sources = self._sources == sources, sources
        found = _found(sources)
        now = self._mono()
        seen = {} if found.complete else dict(self._seen)
        for path, stamp in found.files.items():
            before, since = self._seen.get(path, (None, now))
            if before is None and not known and self._utc() - stamp[1] / 1e9 >= self._settle:
                since = now - self._settle
            elif before != stamp:
                since = now
            seen[path] = stamp, since
        self._seen = seen
        return self._counted(found, began, now)

    def _counted(self, found: _Found, began: float, now: float) -> Counted:
        """Let the files count whose time has come; a list counts only while it is unchanged."""
        due = {path: since + self._settle for path, (_, since) in self._seen.items()}
        counting = self._still - found.lists
        self._still = {path for path, at in due.items() if at <= now or path in counting}
        waiting = [at for path, at in due.items() if path not in self._still]
        least, most = LOOK_EVERY
        soonest = min(least, min(waiting, default=now + least) - now)
        return Counted(
            {path: self._seen[path][0] for path in self._still},
            {path: self._seen[path][0] for path in found.lists if path in self._seen},
            found.complete and not waiting,
            min(max(20 * (now - began), soonest), most),
        )


def first_plan(read: Callable[[Following], Plan], settle: float | None, more: bool = True) -> Plan:
    """Return the plan of what counts now. `read` reads the job file; `more` as in Following.

    Raises JobFileError for a file without anything to follow.
    """
    plan = read(Following(NothingYet()))
    if not plan.sources:
        why = "nothing to follow: no job has foreach: over files, lines, a CSV or a FASTA file"
        raise JobFileError([plan.mistake(("jobs",), why)])
    return read(Following(SourceLook(settle).look(plan.sources), more))


def _found(sources: tuple[ForeachSource, ...]) -> _Found:
    found = _Found()
    for source in sources:
        for path in _paths_of(source, found):
            if path not in found.files:
                _take(path, found)
    return found


def _paths_of(source: ForeachSource, found: _Found) -> Iterator[str]:
    if source.file:
        found.lists.add(source.pattern)
        yield source.pattern
        return
    try:
        sight = sight_of(source.pattern, source.base)
    except FieldError:  # too many files: whoever reads the job file is told of it
        found.complete = False
        return
    found.complete = found.complete and not sight.unread
    for match in sight.matches:
        yield os.path.join(source.base, match)


def _take(path: str, found: _Found) -> None:
    """Note how a file is now, unless it is gone."""
    try:
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode):
            seen = os.stat(path) if os.path.exists(path) else seen
    except OSError as error:
        found.complete = found.complete and error.errno in NOTHING_THERE
        return
    found.files[path] = _folder_stamp(path, seen) if stat.S_ISDIR(seen.st_mode) else _stamp(seen)


def _stamp(seen: os.stat_result) -> Stamp:
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino


def _folder_stamp(path: str, seen: os.stat_result) -> Stamp:
    """Return how a directory is with what it holds, as far as that is looked at."""
    count = size = 0
    newest, changed = seen.st_mtime_ns, seen.st_ctime_ns
    todo = [path]
    while todo and count < _FOLDER_ENTRIES:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                count += 1
                its = entry.stat(follow_symlinks=False)
                size += its.st_size
                newest, changed = max(newest, its.st_mtime_ns), max(changed, its.st_ctime_ns)
                if stat.S_ISDIR(its.st_mode):
                    todo.append(entry.path)
    return size + count, newest, changed, seen.st_ino
