"""Takes sockets that were passed to this process, and makes timer descriptors."""

from __future__ import annotations

import os
import socket

from gpulaunch.farside.wire import peer
from gpulaunch.gpus.names import BACKLOG, PREFIX, connect_name


def listening_socket(fd: int, name: str) -> socket.socket:
    """Return the passed socket, if it is the one that holds the name. Raises OSError.

    A socket of the same name may be of another kind or network namespace, and exclude nobody here:
    it holds the name only if a connection to the name reaches this process.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    try:
        same = sock.getsockname() == b"\0" + os.fsencode(PREFIX + name)
        if not same or sock.type != socket.SOCK_STREAM:
            raise OSError("another socket than the lease's")
        sock.setblocking(False)
        sock.listen(BACKLOG)  # again, so that SO_PEERCRED names us from now on
        if _holder(name) != (os.getpid(), os.geteuid()):
            raise OSError("another socket holds the lease's name")
    except OSError:
        sock.close()
        raise
    return sock


def _holder(name: str) -> tuple[int, int] | None:
    """Return the PID and user id of the holder of the name in this network namespace; or None."""
    link = connect_name(name)
    if link is None:
        return None
    with link:
        return peer(link)


def timer(seconds: float) -> int:
    """Return a descriptor that is readable after so many seconds (os.timerfd_create is 3.13's)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.timerfd_create(1, os.O_CLOEXEC | os.O_NONBLOCK)  # 1: CLOCK_MONOTONIC
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    spec = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    if libc.timerfd_settime(fd, 0, ctypes.byref(spec), None) < 0:
        os.close(fd)
        raise OSError(ctypes.get_errno(), "timerfd")
    return fd
