"""The kernel's word that files change: inotify, and the file systems where it says too little.

Owns the one descriptor; reads no file. See inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

from msgspec import Struct

MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO = 0x2, 0x4, 0x8, 0x40, 0x80
CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x100, 0x200, 0x400, 0x800
OVERFLOW, IGNORED, ONLY_DIRECTORY, IS_DIRECTORY = 0x4000, 0x8000, 0x1000000, 0x40000000
_HEAD = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16

ELSEWHERE = frozenset(
    {
        0x6969,  # NFS
        0x0BD00BD0,  # Lustre
        0x65735546,  # FUSE: sshfs, s3fs, GlusterFS, virtiofs
        0xFF534D42,  # CIFS
        0xFE534D42,  # SMB 2 and 3
        0x517B,  # SMB 1
        0x01021997,  # 9p: WSL, virtual machines
        0x00C36400,  # Ceph
        0x47504653,  # GPFS
        0x19830326,  # BeeGFS
        0x5346414F,  # AFS
        0xAAD7AAEA,  # PanFS
        0x013111A8,  # IBRIX
    }
)
"""`f_type` (statfs(2)) of file systems that other machines change, and inotify does not tell."""


class Change(Struct, frozen=True):
    """What happened to `name` in the watched directory `watch`; to itself where `name` is ''."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One instance. `fileno` is readable when there are changes; -1 where the kernel gives none."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def add(self, path: str, mask: int) -> int | None:
        """Watch a path, or change its mask; return the watch's number, None where it failed."""
        if self._fd < 0:
            return None
        added = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
        return None if added < 0 else added

    def remove(self, watch: int) -> None:
        self._libc.inotify_rm_watch(self._fd, watch)

    def changes(self) -> Iterator[Change]:
        """Yield what has happened since the last call, in order; does not wait."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                name = data[at : at + length].split(b"\0", 1)[0]
                at += length
                yield Change(watch, mask, os.fsdecode(name))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def others_change(path: str) -> bool:
    """Tell whether other machines may change what is there without inotify telling of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = ctypes.create_string_buffer(512)  # struct statfs has 120 bytes; f_type is the first
    if libc.statfs(os.fsencode(path), found):
        return False
    return ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF in ELSEWHERE
