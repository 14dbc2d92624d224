"""Counts the files that are made below a directory, by the folder in which they are made."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections import Counter
from pathlib import Path

_IN_CREATE, _IN_ISDIR, _IN_Q_OVERFLOW = 0x100, 0x40000000, 0x4000
_HEAD = struct.Struct("iIII")


class Created:
    """While it is entered, `names` counts files by folder, names made by link(2) among them."""

    def __init__(self, folder: Path) -> None:
        self.names: Counter[str] = Counter()
        self._folder = folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(self._libc.inotify_init1(os.O_CLOEXEC))
        self._folders: dict[int, str] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Created:
        self._watch(".")
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        end = self._folder / ".end"
        end.touch()
        self._reader.join()
        end.unlink()
        os.close(self._fd)

    def _watch(self, name: str) -> None:
        path = self._folder / name
        self._folders[self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_CREATE)] = name
        for below in filter(Path.is_dir, list(path.iterdir())):  # made before it was watched
            self._watch(os.path.normpath(os.path.join(name, below.name)))

    def _read(self) -> None:
        while True:
            data = os.read(self._fd, 1 << 16)
            while data:
                folder, mask, _, size = _HEAD.unpack_from(data)
                name = data[_HEAD.size : _HEAD.size + size].rstrip(b"\0").decode()
                data = data[_HEAD.size + size :]
                assert not mask & _IN_Q_OVERFLOW, "files were made faster than they were counted"
                within = self._folders[folder]
                if mask & _IN_ISDIR:
                    self._watch(os.path.normpath(os.path.join(within, name)))
                elif (within, name) == (".", ".end"):
                    return
                else:
                    self.names[within] += 1
