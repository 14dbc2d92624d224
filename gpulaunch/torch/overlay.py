"""A zip archive with some members replaced, without a copy of the others.

An archive's directory is at its end: what replaces a member goes there, before a new directory,
and nothing that lies before is touched or read. So gigabytes of weights stay where they are.
"""

from __future__ import annotations

import errno
import io
import zipfile
from collections.abc import Callable
from typing import IO, Any


class Overlay(io.RawIOBase):
    """A stream's bytes up to where it was first written to, and from there what was written.

    The stream itself is only read, and not closed.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._kept = stream.seek(0, io.SEEK_END)
        self._written = io.BytesIO()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size()}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "a place before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return all that was asked for, less only at the end: callers do not ask twice."""
        left = max(0, self._size() - self._at) if size < 0 else size
        parts = []
        while left and (part := self._part(left)):
            parts.append(part)
            left -= len(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _part(self, size: int) -> bytes:
        if self._at < self._kept:
            self._stream.seek(self._at)
            return self._stream.read(min(size, self._kept - self._at))
        self._written.seek(self._at - self._kept)
        return self._written.read(size)

    def write(self, data: Any) -> int:
        if self._at < self._kept:
            self._kept = self._at
            self._written = io.BytesIO()
        self._written.seek(self._at - self._kept)
        count = self._written.write(data)
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        end = self._at if size is None else size
        if end < self._kept:
            self._kept = end
        self._written.truncate(max(0, end - self._kept))
        return end

    def _size(self) -> int:
        return self._kept + self._written.seek(0, io.SEEK_END)


def replaced(stream: IO[bytes], rewrite: Callable[[zipfile.ZipFile, str], bytes | None]) -> Overlay:
    """Return the archive with what `rewrite` gives in place of each member; None keeps it.

    Raises zipfile.BadZipFile for what is no archive.
    """
    overlay = Overlay(stream)
    if not zipfile.is_zipfile(overlay):  # opened for appending, it would begin a new archive
        raise zipfile.BadZipFile("no zip archive")
    with zipfile.ZipFile(overlay, "a") as archive:
        for member in list(archive.infolist()):
            content = rewrite(archive, member.filename)
            if content is not None:
                archive.infolist().remove(member)
                del archive.NameToInfo[member.filename]
                archive.writestr(zipfile.ZipInfo(member.filename), content)
    overlay.seek(0)
    return overlay
