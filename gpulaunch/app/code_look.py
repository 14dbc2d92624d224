"""Looks at files with the code of jobs, and takes what the kernel tells of them: which changed.

A change is another content; where a file is large, another size or time. inotify tells of changes
made on this machine. On a file system that other machines change, and where the kernel gives no
more watches, all files are looked at now and then. Starts no thread and waits for nothing:
`code_watch` does.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from hashlib import blake2s
from typing import TypeAlias

from msgspec import Struct

from gpulaunch import inotify

SLOW_LOOK = 15.0
"""Seconds between two looks at files of which inotify does not tell all."""
TOLD_AT_MOST_EVERY = 60.0
"""Seconds between two changes of one file that are told: who tries something saves often."""
MAX_FILE_BYTES = 1 << 20
"""Bytes of a file whose content is compared; of a larger one, its size and time are."""
MAX_FILES = 1000
"""Files that are followed."""
_MASK = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.CREATE | inotify.ONLY_DIRECTORY


_Seen: TypeAlias = tuple[int, int, int, int]


class CodeNews(Struct, frozen=True):
    """A file became another one at `utc`; `groups` are the entries of the jobs that run it."""

    path: str
    utc: float
    groups: frozenset[int]


class _Known(Struct):
    """How a file was last. `told`: when (monotonic) its last change was, `-inf` for never."""

    seen: _Seen
    content: bytes
    groups: set[int]
    told: float = float("-inf")


class CodeLook:
    """Knows files, and tells which of them have changed. Waits for nothing, starts no thread.

    `mono` and `utc`: this machine's clocks, in seconds.
    """

    def __init__(
        self,
        mono: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self._mono, self._utc = mono, utc
        self._known: dict[str, _Known] = {}
        self._inotify = inotify.Inotify()
        self._directories: dict[str, int | None] = {}
        self._slow = False
        self._put_off = False

    def fileno(self) -> int:
        """Return inotify's descriptor, -1 where there is none."""
        return self._inotify.fileno()

    def close(self) -> None:
        self._inotify.close()

    @property
    def due(self) -> float | None:
        """In how many seconds to look without a word of the kernel's; None: not before that."""
        if self._put_off:
            return TOLD_AT_MOST_EVERY
        return SLOW_LOOK if self._slow else None

    def follow(self, files: Mapping[str, set[int]], since: float | None) -> list[CodeNews]:
        """Follow more files; return news of those that changed after `since` (UTC; None: none)."""
        news = []
        for path, groups in files.items():
            if path in self._known:
                self._known[path].groups |= groups
            elif len(self._known) < MAX_FILES and (known := _stamp(path)) is not None:
                changed = known.seen[1] / 1e9
                self._known[path] = known
                known.groups = set(groups)
                self._watch(os.path.dirname(path))
                if since is not None and since < changed <= self._utc():
                    known.told = self._mono()
                    news.append(CodeNews(path, changed, frozenset(groups)))
        return news

    def heard(self) -> bool:
        """Tell whether the kernel has told of one of the files since the last call."""
        names = {
            (self._directories[os.path.dirname(path)], os.path.basename(path))
            for path in self._known
        }
        found = False
        for change in self._inotify.changes():
            lost = bool(change.mask & inotify.OVERFLOW)
            found = found or lost or (change.watch, change.name) in names
        return found

    def look(self) -> list[CodeNews]:
        """Return what has changed since the last look. A file that is gone for now is left out."""
        news = []
        self._put_off = False
        for path, known in self._known.items():
            if _seen(path) in (known.seen, None):
                continue
            if self._mono() - known.told < TOLD_AT_MOST_EVERY:
                self._put_off = True
                continue
            now = _stamp(path)
            if now is None:
                continue
            if now.content != known.content:
                known.told = self._mono()
                news.append(CodeNews(path, self._utc(), frozenset(known.groups)))
            known.seen, known.content = now.seen, now.content
        return news

    def _watch(self, directory: str) -> None:
        if directory not in self._directories:
            watch = self._inotify.add(directory, _MASK)
            self._directories[directory] = watch
            self._slow = self._slow or watch is None or inotify.others_change(directory)


def _seen(path: str) -> _Seen | None:
    try:
        its = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(its.st_mode):
        return None
    # No program sets the time of the inode's own change.
    return its.st_size, its.st_mtime_ns, its.st_ino, its.st_ctime_ns


def _stamp(path: str) -> _Known | None:
    """Return how a file is now; None where it is none, or cannot be read."""
    seen = _seen(path)
    if seen is None:
        return None
    if seen[0] > MAX_FILE_BYTES:
        return _Known(seen, repr(seen).encode(), set())
    try:
        with open(path, "rb") as file:
            return _Known(seen, blake2s(file.read(MAX_FILE_BYTES)).digest(), set())
    except OSError:
        return None
