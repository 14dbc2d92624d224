"""Reads a log as it grows into folded lines, and keeps the newest. Never changes a log."""

from __future__ import annotations

import os
from collections import deque

from gpulaunch.digest.tail import Folder
from gpulaunch.files import regular

READ_BYTES = 1 << 16
BEGIN = 1 << 20
"""Bytes before its end from which a long log is read."""
MAX_LINES = 20_000
"""Lines of a log that are kept."""
MAX_READS_PER_LOOK = 64
"""Chunks per look: a log that grows faster than it is read must not freeze the screen."""


class LogTail:
    """A log's newest lines: folded, without colours and with progress bars' last states."""

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self._path = path
        self._fd = -1
        self._at = 0
        self._folder = Folder()
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.cut = False
        self.absent = False
        """It cannot be read (yet)."""
        self.rest = ""
        """An unfinished last line, as it stands."""

    def look(self) -> bool:
        """Read what is new; return True if there is any."""
        if self._fd < 0 and not self._open():
            return False
        new = False
        for _ in range(MAX_READS_PER_LOOK):
            data = self._read()
            if not data:
                break
            new = True
            self._at += len(data)
            text = self._folder.feed(data)
            self.cut = self.cut or len(self.lines) == MAX_LINES
            self.lines.extend(text.splitlines())
        if new:
            self.rest = self._folder.rest
        return new

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            self._fd = regular(self._path, os.O_RDONLY)
        except OSError:
            self.absent = True
            return False
        self.absent = False
        size = os.fstat(self._fd).st_size
        if size > BEGIN:
            self._at, self.cut = size - BEGIN, True
        return True

    def _read(self) -> bytes:
        try:
            return os.pread(self._fd, READ_BYTES, self._at)
        except OSError:
            return b""
