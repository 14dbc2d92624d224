"""Reserves TCP ports for jobs, as leases."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gpulaunch.errors import GpulaunchError
from gpulaunch.farside import ports


class PortLease:
    """A reserved port, free again once every descriptor of it is closed."""

    def __init__(self, port: int, sock: socket.socket) -> None:
        self.port = port
        self._sock = sock

    def __enter__(self) -> PortLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


def reserve_port(among: Sequence[int] = ()) -> PortLease:
    """Reserve a port that no launcher has and nobody listens on. Raises GpulaunchError."""
    try:
        return PortLease(*ports.reserve_port(among))
    except OSError as problem:
        raise GpulaunchError(str(problem)) from None
