"""Unix sockets: who is at the other end, by the kernel, and messages with descriptors."""

from __future__ import annotations

import socket
import struct
from array import array


def peer(link: socket.socket) -> tuple[int, int]:
    """Return the PID (0: in another PID namespace) and user id at a connection's other end.

    For a connection to a listening socket, these are of the process that called listen last
    (SO_PEERCRED, unix(7)).
    """
    size = struct.calcsize("iII")
    pid, uid, _ = struct.unpack("iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def receive(link: socket.socket, size: int = 1, most: int = 4) -> tuple[bytes, list[int]]:
    """Receive up to `size` bytes and up to `most` descriptors, which are close-on-exec.

    Stands for socket.recv_fds, whose flags Python 3.11 ignores. Raises OSError.
    """
    fds = array("i")
    room = socket.CMSG_LEN(most * fds.itemsize)
    received, ancillary, _, _ = link.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return received, list(fds)
