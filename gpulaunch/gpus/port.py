"""Reserves TCP ports for jobs: by a name among launchers, by a trial bind against all others.

A reservation keeps other launchers off; a stranger may still take the port before the job does.
"""

from __future__ import annotations

import contextlib
import random
import socket
from functools import cache

from gpulaunch.errors import GpulaunchError
from gpulaunch.gpus.names import NameHeldError, bind_name

_FIRST, _LAST = 20_000, 65_535


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


def reserve_port(among: range | None = None) -> PortLease:
    """Reserve a port that no launcher has and nobody listens on. Raises GpulaunchError."""
    ports = among or port_range()
    start = random.randrange(len(ports))
    for offset in range(len(ports)):
        port = ports[(start + offset) % len(ports)]
        try:
            sock = bind_name(f"port/{port}")
        except NameHeldError:
            continue
        if is_unused(port):
            return PortLease(port, sock)
        sock.close()
    raise GpulaunchError(f"no free TCP port from {ports[0]} to {ports[-1]}")


@cache
def port_range() -> range:
    """Return the ports outside the kernel's range of outgoing connections, if it leaves enough."""
    low, high = _FIRST, _FIRST
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
        if low - _FIRST >= 1000:
            return range(_FIRST, low)
        if _LAST - high >= 1000:
            return range(high + 1, _LAST + 1)
    return range(_FIRST, _LAST + 1)


def is_unused(port: int) -> bool:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
