"""Opens files that a job may have replaced by something else.

A job may write wherever its user may, its run's directory included: a FIFO, a device or a directory
may stand where a file was. Nothing here waits, and only regular files are ever read or written.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gpulaunch.agent.shared import new_name, sync

MAX_FILE_BYTES = 256 << 20
"""Bytes at most of a file that is read as a whole; a job file has at most a quarter of these."""

PIECE = 1 << 20
"""Bytes that are read of a file at once."""


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


def read_at_most(file: BinaryIO, count: int) -> bytes | None:
    """Return so many bytes of a file, or all; None for a file of the kernel's that would block.

    Takes no more memory than there is to read: one `read(count)` would take all of it at once.
    """
    whole = file.read(min(count, PIECE))
    if whole is None or len(whole) < PIECE:
        return whole
    pieces, left = [whole], count - len(whole)
    while left and (piece := file.read(min(left, PIECE))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def read_bytes(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes:
    """Return a regular file's content. `limit`: MiB, in bytes. Raises OSError, also above it."""
    with open(path, "rb", opener=regular) as file:
        if os.fstat(file.fileno()).st_size <= limit:
            data = read_at_most(file, limit + 1)
            if data is None:  # one of the kernel's own, such as /proc/kmsg
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), os.fspath(path))
            if len(data) <= limit:
                return data
    raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB", os.fspath(path))


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


def locked_directory(path: str, how: int) -> int | None:
    """Lock a directory of this user's; return the descriptor, None where it cannot be had.

    `how`: as flock(2) has it. Whoever finds a directory without a lock may remove it.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(path, flags)
    except OSError:
        return None
    try:
        fcntl.flock(lock, how)
        found = os.fstat(lock)
        # It may have been removed before it was locked.
        if os.path.samestat(found, os.stat(path)) and found.st_uid == os.geteuid():
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


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

    The error names the file. `durable`: it is on the disk when this returns. `mode`: as a rule its
    user's alone.
    """
    folder = os.fsencode(os.path.dirname(path))
    draft = new_name(folder)
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:  # nobody knows the draft's name
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        with open(fd, "wb") as file:
            file.write(data)
        if durable:
            sync(draft)
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(draft)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)  # write(2) knows a descriptor alone
        raise
    if durable:
        sync(folder)


def out_of_reach(path: str | os.PathLike[str]) -> str:
    """Return which directory on the way to a path this user may not enter; empty for none."""
    for parent in reversed(Path(os.path.realpath(path)).parents):
        if os.path.isdir(parent) and not may(parent, os.X_OK):
            return f"this user may not enter {parent}"
    return ""


def may(path: str | os.PathLike[str], mode: int) -> bool:
    """Tell whether this process may open, execute or enter a path, with the rights that it has.

    Plain `os.access` asks for the user alone, and leaves out capabilities that the kernel counts.
    """
    return os.access(path, mode, effective_ids=True)


def user_name(uid: int) -> str:
    """Return the name of a user, or `user NUMBER` if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


def others_may_write(path: str | os.PathLike[str], found: os.stat_result) -> bool:
    """Return True if users besides the owner and root may write to a file or directory.

    A group counts as others, except the private group that many systems give to each user: it has
    the user's name and no other member. `found`: the `lstat` of the path.
    """
    if stat.S_ISLNK(found.st_mode):
        return False  # a link has no rights of its own
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(path, found)


def _is_private_group(path: str | os.PathLike[str], found: os.stat_result) -> bool:
    with suppress(OSError):
        os.getxattr(path, "system.posix_acl_access")
        return False  # with an access list, the group's rights are the most that anybody has
    try:
        user, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except (KeyError, OverflowError):
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def is_nowhere() -> bool:
    """Tell whether the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False
