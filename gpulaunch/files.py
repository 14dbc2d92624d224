"""Opening what may have been replaced: a job may write wherever its user may, its run's directory
included, so that a FIFO, a device or a directory may stand where a file was.

Nothing here waits, and nothing but a regular file is ever read or written.
"""

from __future__ import annotations

import errno
import os
import stat

MAX_FILE_BYTES = 256 << 20
"""Bytes of a file that is read as a whole; a job file has at most a quarter of them."""


def regular(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a regular file; a close-on-exec descriptor. Also an `opener` for the built-in `open`.

    Raises OSError, also for what is no regular file.
    """
    # Not blocking: a FIFO would be waited for until somebody opens its other end.
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All of a regular file. Raises OSError, also where it has more than LARGEST bytes."""
    with open(path, "rb", opener=regular) as file:
        if (
            os.fstat(file.fileno()).st_size <= MAX_FILE_BYTES
            and len(data := file.read(MAX_FILE_BYTES)) < MAX_FILE_BYTES
        ):
            return data
    raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB", os.fspath(path))


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file stands there, for what opens files by itself."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def replace(path: str | os.PathLike[str], data: bytes) -> None:
    """Put a file there in one step, whatever stood there. Raises OSError, leaving nothing behind.

    The new file is readable by its user alone.
    """
    folder, name = os.path.split(os.fspath(path))
    draft = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:  # an earlier process of this number was killed over it
        os.unlink(draft)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def is_nowhere() -> bool:
    """Whether the working directory was deleted: what needs one cannot be done."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False
