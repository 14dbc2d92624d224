"""The package's files as this process began with them, whatever is installed while it lives.

    keep ─▶ a thread reads all of them into memory
    an import, or a program to be started ─▶ here ─▶ is another gpulaunch installed by now, or none?
                                                └─▶ then a copy of what was kept, in a folder

A run lasts for a week, and who upgrades gpulaunch meanwhile replaces what it imports and starts
later; between the two versions there is none for seconds. A process of two versions, or a keeper of
another one than its supervisor, would fail, or do in silence what nobody meant.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TypeAlias

from gpulaunch import __path__ as _package
from gpulaunch.farside import client

KEPT_AFTER = 10.0
"""Seconds until a process reads its files, which is 600 of them: most are over by then."""

Mark: TypeAlias = "tuple[int, int, int] | None"


class OwnFiles:
    """A package's files, from the moment on at which this is made; also the finder of its modules.

    `trouble`: why they could not be kept; `copy`: the folder with what was kept, where it is in
    use. Both are empty at first; `told`, if there is one, is called when one of them changes, in
    any thread.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._name = os.path.basename(package)
        self._mark = _mark_of(package)
        self._files: dict[str, tuple[int, bytes]] = {}
        self._place: str | None = None
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._told: Callable[[], object] | None = None
        self.trouble = ""
        self.copy = ""

    def keep(
        self,
        place: str | None = None,
        told: Callable[[], object] | None = None,
        after: float = 0.0,
    ) -> None:
        """Have a thread read the files, unless one does, after so many seconds.

        `place`: where their copy is to be; None: among temporary files.
        """
        with self._lock:
            self._place, self._told = place, told
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._keep, args=(after,), name="own files", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread can be had
                self._fail(str(error))

    def forget_told(self) -> None:
        """Call nobody any more."""
        with self._lock:
            self._told = None

    def here(self, path: str) -> str:
        """Return where this file or folder of the package is to be found now, as it was.

        That is `path` itself where the package is still installed, where its files are not kept,
        and for what is not of it.
        """
        within = path == self._package or path.startswith(self._package + os.sep)
        if not (within and self._files and (self.copy or self._is_replaced())):
            return path
        return (self._copied() or self._package) + path[len(self._package) :]

    def search_path(self) -> list[str]:
        """Return `sys.path` for a process that is to import the package as it was."""
        package, path = self.here(self._package), list(sys.path)
        return path if package == self._package else [os.path.dirname(package), *path]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the package's module is, if not where it was; None for any other.

        Raises ModuleNotFoundError for one that it does not have: what is installed now may.
        """
        if path is None or not name.startswith(self._name + "."):
            return None
        found = list(map(self.here, path))
        if found == list(path):
            return None
        if (spec := PathFinder.find_spec(name, found)) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec

    def close(self, used: Iterable[str] = ()) -> None:
        """Remove the copy, unless one of these texts names it.

        For a process that ends without Python's own end, or becomes another program.
        """
        if self.copy and not any(self.copy in text for text in used):
            _remove(os.path.dirname(self.copy), os.getpid())

    def _is_replaced(self) -> bool:
        return _mark_of(self._package) != self._mark

    def _keep(self, after: float) -> None:
        if after:
            threading.Event().wait(after)
        try:
            files = dict(_read(self._package))
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror}")
            return
        if self._is_replaced():
            self._fail("another one was installed in its place at that moment")
            return
        self._files = files
        sys.meta_path.insert(0, self)

    def _fail(self, trouble: str) -> None:
        self.trouble = trouble
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            if self._told is not None:
                self._told()

    def _copied(self) -> str:
        """Return the folder that has what was kept; write it unless it is there. "": it fails."""
        with self._lock:
            if not (self.copy and os.path.exists(os.path.join(self.copy, "__init__.py"))):
                self.copy = self._written(self._place) or self._written(None)
                if not self.copy:
                    self._files = {}
                self._tell()
            return self.copy

    def _written(self, place: str | None) -> str:
        """Write what was kept into a new folder; return that, or "" where it cannot be."""
        from tempfile import mkdtemp

        try:
            above = mkdtemp(prefix=".gpulaunch-files-", dir=place)
            atexit.register(_remove, above, os.getpid())
            for name, (mode, data) in self._files.items():
                path = os.path.join(above, self._name, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb") as file:
                    file.write(zlib.decompress(data))
                    os.fchmod(file.fileno(), mode & 0o777)
        except OSError as error:  # a full disk; a run's directory that is gone
            self.trouble = f"{error.filename}: {error.strerror}"
            return ""
        return os.path.join(above, self._name)


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child may end before its parent
        shutil.rmtree(folder, ignore_errors=True)


def _read(package: str) -> list[tuple[str, tuple[int, bytes]]]:
    """Return the package's files by name, each with its mode and content. Raises OSError."""
    found = []
    for folder, folders, names in os.walk(package, onerror=_raise):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                mode, data = os.fstat(file.fileno()).st_mode, zlib.compress(file.read(), 1)
            found.append((os.path.relpath(os.path.join(folder, name), package), (mode, data)))
    return found


def _raise(error: OSError) -> None:
    raise error


def _mark_of(package: str) -> Mark:
    """Return what tells an installation from the next: its first file, which has the version."""
    with suppress(OSError):
        seen = os.stat(os.path.join(package, "__init__.py"))
        return seen.st_ino, seen.st_mtime_ns, seen.st_size
    return None


OWN = OwnFiles(os.path.abspath(_package[0]))
"""Those of this gpulaunch: a process has one program."""

here = OWN.here
search_path = OWN.search_path


def farside_command(python: str, program: str, *arguments: str) -> list[str]:
    """Return the command line of a program of `farside`: see `farside.client.command`."""
    return [here(word) for word in client.command(python, program, *arguments)]
