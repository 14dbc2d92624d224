"""Looks at the sources of `foreach`, and takes what the kernel tells of them: which files count.

    inotify's changes ─┐
    a look at all ─────┴▶ SourceLook ─▶ Stillness ─▶ Counted

inotify tells of changes made on this machine. On a file system that other machines change, behind
links, and where the kernel gives no more watches, everything is looked at every 2 to 15 seconds.
Starts no thread and waits for nothing: `following` does.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct, field

from gpulaunch import inotify
from gpulaunch.app.stillness import Stamp, Stillness
from gpulaunch.jobfile.globs import Sight, sight_of
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.sources import ForeachSource

SLOW_LOOK = (2.0, 15.0)
"""Seconds between two looks at everything, at least and at most; a look may take a twentieth."""
_FOLDER_ENTRIES = 10_000
"""Entries at most that are looked at in a directory that a glob matches."""
_ROUNDS = 5
"""Looks at most until no directory is new: each watches what the one before has found."""
_COMES = inotify.CREATE | inotify.MOVED_TO
_GOES = inotify.DELETE | inotify.MOVED_FROM
_WRITTEN = inotify.CREATE | inotify.MODIFY | inotify.CLOSE_WRITE
_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_MASK = _COMES | _GOES | _WRITTEN | _SELF | inotify.ATTRIB | inotify.ONLY_DIRECTORY


class Counted:
    """What counted at one moment: `jobfile.sources.Counting`. Never changes."""

    def __init__(self, still: Mapping[str, Stamp]) -> None:
        self._still = still

    def __len__(self) -> int:
        return len(self._still)

    def __iter__(self) -> Iterator[str]:
        return iter(self._still)

    def counts(self, path: str) -> bool:
        return path in self._still

    def whole(self, path: str, size: int) -> bool:
        """Tell whether the list is still, and has as many bytes as it had then."""
        stamp = self._still.get(path)
        return stamp is not None and stamp.size == size


class _Places(Struct):
    """Where matches may appear, as the last look has found it. Directories end in a slash.

    `ends`, `ways`: as in Sight. `folders`: matches that are directories, by that directory.
    `lists`: the lists of items, by their paths.
    """

    ends: dict[str, list[Callable[[str], object]]] = field(default_factory=dict)
    ways: set[str] = field(default_factory=set)
    folders: dict[str, str] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)
    matches: list[str] = field(default_factory=list)
    unread: bool = False

    def take(self, source: ForeachSource, sight: Sight) -> None:
        for prefix, fits in sight.ends.items():
            self.ends.setdefault(os.path.join(source.base, prefix), []).extend(fits)
        self.ways.update(os.path.join(source.base, prefix) for prefix in sight.ways)
        self.matches += [os.path.join(source.base, match) for match in sight.matches]
        self.unread = self.unread or bool(sight.unread)

    def directories(self) -> dict[str, None]:
        found = dict.fromkeys((*self.ends, *sorted(self.ways), *self.folders))
        return found | dict.fromkeys(os.path.dirname(path) + "/" for path in self.lists)


class SourceLook:
    """Looks at sources, and takes what inotify tells of them. Starts no thread, waits for nothing.

    `mono` and `utc`: this machine's clocks, in seconds.
    """

    def __init__(
        self,
        settle: float,
        mono: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self._stillness = Stillness(settle)
        self._mono = mono
        self._utc = utc
        self._inotify = inotify.Inotify()
        self._sources: tuple[ForeachSource, ...] = ()
        self._places = _Places()
        self._watched: dict[int, set[str]] = {}
        self._devices: dict[int, bool] = {}
        self._stale = False
        self._slow = False
        self._next_look: float | None = None

    def fileno(self) -> int:
        """Return inotify's descriptor, -1 where there is none."""
        return self._inotify.fileno()

    def close(self) -> None:
        self._inotify.close()

    def changes(self) -> Iterator[inotify.Change]:
        """Yield what inotify has told since the last call."""
        return self._inotify.changes()

    @property
    def waiting(self) -> int:
        return self._stillness.waiting

    def counted(self) -> Counted:
        """Return a copy of what counts, which is no news any more."""
        self._stillness.taken()
        return Counted(dict(self._stillness.still))

    def due(self) -> float | None:
        """Return when to call `turn` next, if nothing is told before; None: not before that."""
        times = [at for at in (self._next_look, self._stillness.due()) if at is not None]
        return min(times, default=None)

    def follow(self, sources: tuple[ForeachSource, ...]) -> None:
        """Watch these sources, and look at them once; what is there was there before."""
        self._sources = sources
        self._look(frozenset(), begins=True)

    def look_anew(self) -> None:
        """Have the next turn look at everything, whatever is told."""
        self._stale = True

    def turn(self, changes: Iterable[inotify.Change]) -> bool:
        """Take these changes, and look where it is time; tell whether what counts has changed."""
        files, moved = self._sort(changes)
        now = self._mono()
        if self._stale or (self._next_look is not None and now >= self._next_look):
            self._look(moved)
        for path, how in files.items():
            self._see(path, now, how)
        for path in self._stillness.ripe(now):
            self._see(path, now)  # inotify does not tell all: what is mapped, what others write
        return self._stillness.told(now)

    # ── what inotify tells ──────────────────────────────────────────────────────────────────────

    def _sort(self, changes: Iterable[inotify.Change]) -> tuple[dict[str, int], frozenset[str]]:
        """Return what happened to which match, and the directories that came by rename.

        Of a match, all that happened since it last came by rename.
        """
        files: dict[str, int] = {}
        moved: set[str] = set()
        for change in changes:
            if change.mask & (inotify.OVERFLOW | _SELF):
                self._stale = True
            for directory in self._watched.get(change.watch, ()) if change.name else ():
                path = directory + change.name
                if self._is_way(directory, path, change.mask):
                    self._stale = True
                    if change.mask & inotify.MOVED_TO:
                        moved.add(path + "/")
                if path in self._places.lists or self._matches(directory, change.name):
                    before = 0 if change.mask & inotify.MOVED_TO else files.get(path, 0)
                    files[path] = before | change.mask
                if (folder := self._places.folders.get(directory)) is not None:
                    files[folder] = files.get(folder, 0) | inotify.MODIFY
        return files, frozenset(moved)

    def _is_way(self, directory: str, path: str, mask: int) -> bool:
        """Tell whether a directory came or went through which a pattern leads."""
        if directory not in self._places.ways or not mask & (_COMES | _GOES):
            return False
        return bool(mask & inotify.IS_DIRECTORY) or os.path.islink(path)

    def _matches(self, directory: str, name: str) -> bool:
        return any(fits(name) for fits in self._places.ends.get(directory, ()))

    # ── looking ─────────────────────────────────────────────────────────────────────────────────

    def _see(self, path: str, now: float, how: int = 0) -> None:
        """Look at one match, or one list, and take how it is now."""
        stamp = self._stamp(path)
        if stamp is None:
            self._stillness.gone(path, now)
        elif how & inotify.MOVED_TO and not how & _WRITTEN:
            self._stillness.moved_in(path, stamp, now)
        else:
            self._stillness.seen(path, stamp, now, written=bool(how & _WRITTEN))

    def _look(self, moved: frozenset[str], begins: bool = False) -> None:
        """Look at everything. `moved`: directories that came by rename, with all they hold."""
        began = self._mono()
        self._stale = self._slow = False
        for _ in range(_ROUNDS):
            self._places = self._found()
            self._stillness.lists = self._places.lists
            if not self._watch_all():
                break
        now = self._mono()
        known = self._stillness.known
        for path in (*self._places.matches, *self._places.lists):
            if path in known:
                self._see(path, now)
            elif begins:
                self._see_first(path, now)
            else:
                came = any(path.startswith(directory) for directory in moved)
                self._see(path, now, inotify.MOVED_TO if came else 0)
        if not self._places.unread:
            self._stillness.only((*self._places.matches, *self._places.lists), now)
        least, most = SLOW_LOOK
        took = self._mono() - began
        self._next_look = now + min(max(20 * took, least), most) if self._slow else None

    def _see_first(self, path: str, now: float) -> None:
        stamp = self._stamp(path)
        if stamp is not None:
            self._stillness.began(path, stamp, self._utc() - stamp.mtime / 1e9, now)

    def _found(self) -> _Places:
        found = _Places()
        for source in self._sources:
            if source.file:
                found.lists.add(source.pattern)
                continue
            try:
                found.take(source, sight_of(source.pattern, source.base))
            except FieldError:  # too many files: whoever reads the job file is told of it
                found.unread = True
        for path in found.matches:
            if os.path.isdir(path):
                found.folders[path.rstrip("/") + "/"] = path
        return found

    def _stamp(self, path: str) -> Stamp | None:
        """Return how a match is now; None where it is gone."""
        try:
            seen = os.lstat(path)
        except OSError:
            return None
        if stat.S_ISLNK(seen.st_mode):
            self._slow = True  # what it leads to changes without a word
            with suppress(OSError):
                seen = os.stat(path)
        if stat.S_ISDIR(seen.st_mode):
            return self._folder_stamp(path, seen)
        return Stamp(seen.st_size, seen.st_mtime_ns, seen.st_ino)

    def _folder_stamp(self, path: str, seen: os.stat_result) -> Stamp:
        """Return how a directory is with what it holds, as far as that is looked at."""
        count = size = 0
        newest = seen.st_mtime_ns
        todo = [path]
        while todo and count < _FOLDER_ENTRIES:
            with suppress(OSError), os.scandir(todo.pop()) as entries:
                for entry in entries:
                    count += 1
                    its = entry.stat(follow_symlinks=False)
                    size, newest = size + its.st_size, max(newest, its.st_mtime_ns)
                    if stat.S_ISDIR(its.st_mode):
                        todo.append(entry.path)
                        self._slow = True  # only the directory itself is watched
        return Stamp(size + count, newest, seen.st_ino)

    # ── watching ────────────────────────────────────────────────────────────────────────────────

    def _watch_all(self) -> bool:
        """Watch the places, and nothing else; return whether one of them was not watched before."""
        before = {directory for some in self._watched.values() for directory in some}
        watched: dict[int, set[str]] = {}
        for directory in self._places.directories():
            there = directory
            while not os.path.isdir(there):
                there = os.path.dirname(there.rstrip("/")).rstrip("/") + "/"
                self._places.ways.add(there)
            if self._others_change(there):
                self._slow = True
            watch = self._inotify.add(there, _MASK)
            if watch is None:
                self._slow = True
            else:
                watched.setdefault(watch, set()).add(there)
        for watch in self._watched.keys() - watched.keys():
            self._inotify.remove(watch)
        self._watched = watched
        return any(directory not in before for some in watched.values() for directory in some)

    def _others_change(self, directory: str) -> bool:
        try:
            device = os.stat(directory).st_dev
        except OSError:
            return False
        if device not in self._devices:
            self._devices[device] = inotify.others_change(directory)
        return self._devices[device]
