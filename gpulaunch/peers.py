"""Who is at the other end of a Unix socket, as the kernel says it, and what comes from there."""

from __future__ import annotations

import socket
import struct
from array import array


def peer(link: socket.socket) -> tuple[int, int]:
    """The PID (0: of another PID namespace) and user id at the other end of a connection.

    For a connection to a listening socket: of the process that called listen last (SO_PEERCRED,
    unix(7)).
    """
    size = struct.calcsize("iII")
    pid, uid, _ = struct.unpack("iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def receive(link: socket.socket, size: int = 1, most: int = 4) -> tuple[bytes, list[int]]:
    """Take in what was said, `size` bytes of it, and the descriptors passed, at most so many.

    As socket.recv_fds, whose flags Python 3.11 ignores: what comes here survives no exec. Raises
    OSError.
    """
    fds = array("i")
    room = socket.CMSG_LEN(most * fds.itemsize)
    said, ancillary, _, _ = link.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return said, list(fds)
