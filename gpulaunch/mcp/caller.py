"""Who called a tool: told how far it has come, and perhaps gone before there is an answer."""

from __future__ import annotations

import socket
from collections.abc import Callable


class Caller:
    """A tool's caller, as the thread that works for it knows it; close it.

    `fileno` is readable once nobody waits for the answer any more.
    """

    def __init__(self, line: socket.socket, progress: Callable[[int, int], object]) -> None:
        self._line = line
        self.progress = progress

    @property
    def gone(self) -> bool:
        """True once nobody waits for the answer: the other end of the line was closed."""
        try:
            return not self._line.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
