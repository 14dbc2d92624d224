"""Opens files that a job may have replaced by something else.

A job may write wherever its user may, its run's directory included: a FIFO, a device or a directory
may stand where a file was. Nothing here waits, and only regular files are ever read or written.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from gpulaunch.farside.shared import new_name, sync

MAX_FILE_BYTES = 256 << 20
"""Bytes at most of a file that is read as a whole; a job file has at most a quarter of these."""


def regular(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return a close-on-exec descriptor. An `opener` for `open`, too.

    Raises OSError, also for what is no regular file.
    """
    return _opened(path, flags, mode)[0]


def _opened(
    path: str | os.PathLike[str], flags: int, mode: int = 0o600
) -> tuple[int, os.stat_result]:
    # Not blocking: opening a FIFO would wait until its other end is opened.
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return fd, found
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return a regular file's content. Raises OSError, also above MAX_FILE_BYTES."""
    with open(path, "rb", opener=regular) as file:
        if (
            os.fstat(file.fileno()).st_size <= MAX_FILE_BYTES
            and len(data := file.read(MAX_FILE_BYTES)) < MAX_FILE_BYTES
        ):
            return data
    raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB", os.fspath(path))


def end_of(path: str | os.PathLike[str], window: int) -> tuple[bytes, bool]:
    """Return a regular file's last `window` bytes, and whether there are more. Raises OSError.

    Reads once, what is there at that moment: a file that grows or shrinks meanwhile does no harm.
    """
    fd, found = _opened(path, os.O_RDONLY)
    try:
        start = max(0, found.st_size - window)
        return (os.pread(fd, window, start) if found.st_size else b""), start > 0
    finally:
        os.close(fd)


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Tell whether the path is a regular file; for libraries that open files by themselves."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def replace(
    path: str | os.PathLike[str], data: bytes, durable: bool = False, mode: int = 0o600
) -> None:
    """Write a file in one step, replacing what stood there. After an OSError nothing is changed.

    `durable`: it is on the disk when this returns. `mode`: as a rule its user's alone.
    """
    folder = os.fsencode(os.path.dirname(path))
    draft = new_name(folder)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        if durable:
            sync(draft)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    if durable:
        sync(folder)


def is_nowhere() -> bool:
    """Tell whether the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False
