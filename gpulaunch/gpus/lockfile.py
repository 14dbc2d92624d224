"""The second layer of a lease: a locked file, for containers with a network namespace of their own.

Owns the files `<GPULAUNCH_LEASE_DIR>/<key>.lock`. They are never removed, and their presence means
nothing: the lock, held through open descriptors, is the lease. Everybody may write to the
directory, so anything may stand in a file's place: nothing is opened there in a way that waits, and
a lock that is unfit is a trouble of its card alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from gpulaunch.errors import UsageError

VARIABLE = "GPULAUNCH_LEASE_DIR"
# Never waits: a FIFO for its writer, a file for the end of another's fcntl(F_SETLEASE).
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_TRIES = 100


class UnfitLockError(OSError):
    """A lock that cannot be taken though nobody holds it; the text says why and what to do.

    An OSError, since whoever takes a lease is ready for one: it is that card's trouble alone.
    """

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path} {found}: remove it, or ask its owner to")


def check(directory: str | None, source: str = VARIABLE) -> None:
    """Raise UsageError if the directory, which `source` names, cannot be used for locks."""
    if directory and not (os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{source}={directory}: expected a directory that everybody who uses the cards may "
            "write to (mode 1777)"
        )


def lock(directory: str, key: str) -> int | None:
    """Lock the key's file; return its read-only descriptor, None if another process holds it.

    Raises UnfitLockError where the lock's path holds something else, or cannot be reached.
    """
    path = _path(directory, key)
    try:
        for _ in range(_MAX_TRIES):
            fd = _open(path)
            try:
                if not _take(fd, path):
                    os.close(fd)
                    return None
                if _same_file(fd, path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # somebody removed the file meanwhile: this lock excludes nobody
    except UnfitLockError:
        raise
    except OSError as error:
        raise UnfitLockError(path, f"cannot be locked ({error.strerror})") from error
    raise UnfitLockError(path, "is removed all the time")


def holds(fd: int, directory: str, key: str) -> bool:
    """Tell whether a descriptor that was passed to this process holds the key's lock."""
    path = _path(directory, key)
    try:
        return _same_file(fd, path) and _take(fd, path)
    except OSError:
        return False


def _path(directory: str, key: str) -> str:
    return os.path.join(directory, key.replace("/", "_") + ".lock")


def _take(fd: int, path: str) -> bool:
    """Lock an open file; return False if it is locked through another descriptor."""
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        raise UnfitLockError(path, f"is {_KINDS.get(stat.S_IFMT(kind), 'no file')}")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket"}
_UNOPENED = {errno.ELOOP: "is a symbolic link", errno.ENXIO: "is a socket or a device"}


def _open(path: str) -> int:
    """Open the file, or create it; fs.protected_regular refuses O_CREAT on another user's file."""
    for _ in range(_MAX_TRIES):
        try:
            return os.open(path, _LOOK)
        except FileNotFoundError:
            _create(path)
        except OSError as error:
            if error.errno in _UNOPENED:
                raise UnfitLockError(path, _UNOPENED[error.errno]) from error
            raise
    raise UnfitLockError(path, "is removed all the time")


def _create(path: str) -> None:
    try:
        fd = os.open(path, _MAKE)
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
