"""The second layer of a lease: a locked file, for containers with a network namespace of their own.

Owns the files `<GPULAUNCH_LEASE_DIR>/<key>.lock`. They are never removed and mean nothing by their
presence: the lock, held through open descriptors, is the lease.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping

from gpulaunch.errors import UsageError

VARIABLE = "GPULAUNCH_LEASE_DIR"


def check(environ: Mapping[str, str]) -> None:
    """Raises UsageError where a directory is named that cannot be used."""
    directory = environ.get(VARIABLE)
    if directory and not (os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{VARIABLE}={directory}: expected a directory that everybody who uses the cards may "
            "write to (mode 1777)"
        )


def lock(directory: str, key: str) -> int | None:
    """A read-only, close-on-exec descriptor that holds the key's lock; None: another holds it.

    Raises UsageError when the directory cannot be used.
    """
    path = os.path.join(directory, key.replace("/", "_") + ".lock")
    try:
        while True:
            fd = _open(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(fd, path):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # somebody removed the file in between: this lock excludes nobody
    except OSError as error:
        raise UsageError(
            f"{VARIABLE}={directory}: {error.strerror} at {path}; it must be a directory that "
            "everybody who uses the cards may write to (mode 1777)"
        ) from error


def _open(path: str) -> int:
    """Open without O_CREAT first: fs.protected_regular refuses it on another user's file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            _create(path)


def _create(path: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return
    try:
        os.fchmod(fd, 0o644)  # whatever the umask: other users lock it through a read-only open
    finally:
        os.close(fd)


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
