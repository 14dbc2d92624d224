"""The keepers' end of their socket pairs."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence

from ..wire import receive, send


class KeeperChannel:
    """The keepers' end of a SEQPACKET pair: one JSON value a message."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)

    def receive(self) -> tuple[dict[str, object] | None, list[int]]:
        """Return the next message and its descriptors; None when the supervisor is gone.

        A peer that died with unread messages of ours shows as ECONNRESET, not as an end of file.
        """
        try:
            data, fds = receive(self.socket)
        except ConnectionError:
            return None, []
        return (json.loads(data) if data else None), fds

    def send(self, message: dict[str, object], fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone; the end is in its file
            send(self.socket, message, fds, socket.MSG_DONTWAIT)
