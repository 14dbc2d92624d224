"""Waits for files to change, through inotify; reads no file.

inotify reports changes made on this machine, also on network file systems, and not those that
another machine makes there. Where the kernel gives no inotify (a limit of 128 instances a user is
common), `wait` wakes once a second instead, and `polls` is true.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

_IN_MODIFY, _IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x4, 0x80, 0x100
_IN_DELETE_SELF, _IN_MOVE_SELF = 0x400, 0x800
# A deletion while somebody has the file open shows as ATTRIB (the link count changes).
_CHANGES = _IN_MODIFY | _IN_ATTRIB | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE_SELF | _IN_MOVE_SELF
_POLL_SECONDS = 1.0
_BUFFER_BYTES = 1 << 16


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Watch:
    """Wakes when one of the added files changes, or a file in an added directory does."""

    def __init__(self) -> None:
        import ctypes  # most who read a journal wait for nothing

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.polls = self._fd < 0

    def add(self, path: Path) -> None:
        """Watch a file, or a directory for files that appear or change in it."""
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _CHANGES)
        self.polls = self.polls or watch < 0

    def wait(self, timeout: float | None = None, also: Sequence[HasFileno] = ()) -> bool:
        """Sleep until a change or until one of `also` is readable; False after `timeout` s.

        One of `also` with a negative descriptor tells nothing: wakes once a second for its sake.
        """
        polls = self.polls or any(one.fileno() < 0 for one in also)
        longest = timeout
        if polls and (timeout is None or timeout > _POLL_SECONDS):
            longest = _POLL_SECONDS
        poll = select.poll()
        for fd in [*(one.fileno() for one in also), self._fd]:
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        ready = poll.poll(None if longest is None else max(0, round(longest * 1000)))
        self._forget_changes()
        return bool(ready) or longest != timeout

    def _forget_changes(self) -> None:
        with suppress(BlockingIOError):
            while self._fd >= 0:
                os.read(self._fd, _BUFFER_BYTES)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
