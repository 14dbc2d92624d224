"""Measures what lies below a directory, and removes it so that it is gone in one step.

    renamed to a hidden name beside it ─▶ gone, for everybody ─▶ its files, one by one

Who is killed in between leaves the hidden directory, which `leftovers` finds. Follows no symbolic
link, and removes nothing of a directory in which something is mounted: that is somebody else's.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct

from gpulaunch.agent.shared import sync
from gpulaunch.base.files import user_name
from gpulaunch.base.text import clip

REMOVED = ".gpulaunch-removed-"
"""How the names of directories begin that are being removed."""
MAX_PATH_CHARACTERS = 300
"""Characters of a path that are told where it keeps a directory from being removed."""
_MOUNTS = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Weight(Struct, frozen=True):
    """What a directory takes of its disk, in bytes. `whole`: all of it was looked at.

    `obstacle`: why not all of it can be removed, empty where nothing is known to keep it.
    """

    bytes: int
    whole: bool = True
    obstacle: str = ""


def weigh(directory: str, entries: int | None = None, seconds: float | None = None) -> Weight:
    """Return what a directory takes. `entries`, `seconds`: how far that is looked at, at most.

    What has several names counts where the last of them is: nothing is free before that one goes.
    Raises nothing: what cannot be looked at counts as nothing, and so does what a link leads to.
    """
    return _Scale(entries, seconds).weigh(directory)


class _Scale:
    """Adds up one directory."""

    def __init__(self, entries: int | None, seconds: float | None) -> None:
        self._left = entries
        self._end = None if seconds is None else time.monotonic() + seconds
        self._names: dict[int, int] = {}  # of a file with several: how many were seen
        self._bytes = 0
        self._whole = True
        self._obstacle = ""

    def weigh(self, directory: str) -> Weight:
        try:
            its = os.lstat(directory)
        except OSError:
            return Weight(0)
        if stat.S_ISLNK(its.st_mode):
            return Weight(its.st_blocks * 512)
        device = its.st_dev
        if place := mounted_in(directory):
            self._hinder(_mounted(place))
        todo = [directory]
        while todo and not self._over():
            self._enter(todo.pop(), device, todo)
        whole = self._whole and not todo
        return Weight(self._bytes, whole, self._obstacle)

    def _over(self) -> bool:
        spent = self._left is not None and self._left <= 0
        return spent or (self._end is not None and time.monotonic() > self._end)

    def _enter(self, directory: str, device: int, todo: list[str]) -> None:
        try:
            its = os.lstat(directory)
            if its.st_dev != device:
                self._hinder(_mounted(directory))
                return
            self._bytes += its.st_blocks * 512
            with os.scandir(directory) as entries:
                empty = True
                for entry in entries:
                    empty = False
                    self._add(entry, todo)
        except OSError as error:
            self._whole = False
            if error.errno not in (errno.ENOENT, errno.EACCES) or not _is_ours(directory):
                self._hinder(f"{_told(directory)} cannot be read: {error.strerror}")
            return
        if not (
            empty
            or os.access(directory, os.W_OK | os.X_OK, effective_ids=True)
            or its.st_uid == os.geteuid()
        ):
            owner = user_name(its.st_uid)
            self._hinder(f"{_told(directory)} holds files and belongs to {owner}")

    def _add(self, entry: os.DirEntry[str], todo: list[str]) -> None:
        if self._left is not None:
            self._left -= 1
        if entry.is_dir(follow_symlinks=False):
            todo.append(entry.path)
            return
        with suppress(FileNotFoundError):
            its = entry.stat(follow_symlinks=False)
            if its.st_nlink > 1:
                seen = self._names[its.st_ino] = self._names.get(its.st_ino, 0) + 1
                if seen != its.st_nlink:
                    return
            self._bytes += its.st_blocks * 512

    def _hinder(self, why: str) -> None:
        self._obstacle = self._obstacle or why


def _is_ours(path: str) -> bool:
    """Tell whether a path belongs to this user, or is gone."""
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return True


def mounted_in(directory: str | Path) -> str:
    """Return where something is mounted at or below a directory; empty where nothing is.

    By the kernel's table (proc_pid_mountinfo(5)): what lies in a directory that is bound to another
    place has the same device as all around it, and would be removed there as well.
    """
    top = os.fsencode(os.path.realpath(directory))
    with suppress(OSError), open(_MOUNTS, "rb") as table:
        for line in table:
            place = _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), line.split(b" ", 5)[4])
            if place == top or place.startswith(top.rstrip(b"/") + b"/"):
                return os.fsdecode(place)
    return ""


def _mounted(place: str) -> str:
    return f"something is mounted at {_told(place)}"


def _told(path: str | Path) -> str:
    return clip(str(path), MAX_PATH_CHARACTERS)


def vanish(directory: Path, step: Callable[[str], object] = lambda name: None) -> Path:
    """Rename a directory to a hidden name beside it, and return that: it is gone. Raises OSError.

    `step` is called with each step's name once that is done.
    """
    if place := mounted_in(directory):
        raise OSError(errno.EBUSY, _mounted(place))
    hidden = directory.with_name(f"{REMOVED}{os.urandom(6).hex()}")
    os.rename(directory, hidden)
    step("renamed")
    with suppress(OSError):  # a power cut may bring the old name back, whole or in part
        sync(os.fsencode(directory.parent))
    return hidden


def delete(directory: Path) -> str:
    """Remove a directory with all that it holds; return why something of it is left, if so.

    Somebody else may be removing it as well.
    """
    if place := mounted_in(directory):
        return _mounted(place)
    left = _removed(directory)
    if left:
        _make_writable(directory)  # a program may have protected its own results
        left = _removed(directory)
    return left


def leftovers(directory: Path) -> list[Path]:
    """Return what was being removed from a directory when that was cut short."""
    return [Path(entry.path) for entry in _hidden(directory)]


def _hidden(directory: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            ours = entry.name.startswith(REMOVED) and _is_ours(entry.path)
            if ours and entry.is_dir(follow_symlinks=False):
                yield entry


def _removed(directory: Path) -> str:
    """Remove what can be removed; return what could not, and why: the first of these."""
    found: list[str] = []

    def hear(path: str | Path, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):
            why = getattr(error, "strerror", None) or str(error)
            found.append(f"{_told(path)} cannot be removed: {why}")

    try:
        _remove_tree(directory, hear)
    except RecursionError:
        return f"{directory} is nested too deeply: rm -r removes it"
    return found[0] if found and os.path.lexists(directory) else ""


def _remove_tree(directory: Path, hear: Callable[[str | Path, BaseException], None]) -> None:
    """Remove a directory, by descriptors: nothing that is put in its way leads out of it."""
    if sys.version_info >= (3, 12):
        shutil.rmtree(directory, onexc=lambda _, path, error: hear(path, error))
        return

    def hear_all(_: Any, path: str | Path, error: tuple[Any, BaseException, TracebackType]) -> None:
        hear(path, error[1])

    shutil.rmtree(directory, onerror=hear_all)


def _make_writable(directory: Path) -> None:
    """Give this user leave to write in all of its own directories."""
    todo = [str(directory)]
    while todo:
        with suppress(OSError):
            path = todo.pop()
            mode = os.lstat(path).st_mode
            if not stat.S_ISDIR(mode):
                continue
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IMODE(mode) | stat.S_IRWXU)
            with os.scandir(path) as entries:
                todo += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
