"""Files on a file system that machines share: what was written elsewhere, and claims.

A file is written under another name in its directory, then linked or renamed: a reader sees a whole
file or none.
"""

from __future__ import annotations

import binascii
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence


def look_anew(folder: bytes | str) -> None:
    """Open a directory, which makes an NFS client ask its server for what is there now."""
    try:
        os.close(os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        pass


def sync(path: bytes | str) -> None:
    """Flush a file or a directory to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.EBADF):  # not every file system can
            raise
    finally:
        os.close(fd)


def new_name(folder: bytes) -> bytes:
    """Return a name in the directory that no file has: for a draft."""
    return os.path.join(folder, b".new-" + binascii.hexlify(os.urandom(12)))


def claim(
    paths: Sequence[bytes],
    record: Mapping[str, object],
    link: Callable[[bytes, bytes], None] = os.link,
) -> list[bool]:
    """Claim attempts by their files in one directory; return for each whether it is ours now.

    Durable when it returns. Raises OSError; some may be claimed then.

    INVARIANT: of all claimants of an attempt, on any machine, only one gets True, and no reader
    sees half a file: link(2) either makes the name of a finished file or finds it taken.
    """
    folder = os.path.dirname(paths[0])
    draft = new_name(folder)
    won: list[bool] = []
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        for path in paths:
            won.append(_links(draft, path, 1 + sum(won), link))
        if any(won):
            sync(folder)
    finally:
        os.unlink(draft)
    return won


def _links(draft: bytes, path: bytes, names: int, link: Callable[[bytes, bytes], None]) -> bool:
    """Link the draft, which has so many names, to `path`; return False if that is taken."""
    try:
        link(draft, path)
    except OSError as problem:
        # NFS repeats a request whose answer was lost, and then finds its own link: link(2).
        if os.stat(draft).st_nlink > names:
            return True
        if problem.errno == errno.EEXIST:
            return False
        raise
    return True
