"""Who is at the other end of a Unix socket, as the kernel says it."""

from __future__ import annotations

import socket
import struct


def peer(link: socket.socket) -> tuple[int, int]:
    """The PID (0: of another PID namespace) and user id at the other end of a connection.

    For a connection to a listening socket: of the process that called listen last (SO_PEERCRED,
    unix(7)).
    """
    size = struct.calcsize("iII")
    pid, uid, _ = struct.unpack("iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid
