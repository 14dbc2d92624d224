"""Reserves TCP ports for jobs: by a name among launchers, by a trial bind against all others.

A reservation keeps other launchers off; a stranger may still take the port before the job does.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence

FIRST, LAST = 20_000, 65_535
BACKLOG = 8


class PortLease(socket.socket):
    """A reserved port, free again once every descriptor of this socket is closed."""

    port = 0


def reserve_port(among: Sequence[int] = ()) -> PortLease:
    """Reserve a port that no launcher has and nobody listens on. Raises OSError."""
    ports = among or port_range()
    start = int.from_bytes(os.urandom(4), "little") % len(ports)
    for port in itertools.chain(ports[start:], ports[:start]):
        lease = PortLease(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            lease.bind(b"\0gpulaunch/1/port/%d" % port)
            lease.listen(BACKLOG)
        except OSError:
            lease.close()
            continue
        if is_unused(port):
            lease.port = port
            return lease
        lease.close()
    raise OSError(f"no free TCP port from {ports[0]} to {ports[-1]}")


def port_range() -> range:
    """Return the ports outside the kernel's range of outgoing connections, if it leaves enough."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        low, high = FIRST, FIRST
    if low - FIRST >= 1000:
        return range(FIRST, low)
    if LAST - high >= 1000:
        return range(high + 1, LAST + 1)
    return range(FIRST, LAST + 1)


def is_unused(port: int) -> bool:
    """Tell whether no socket has the port, on any of this machine's IPv4 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))  # refused where another has it on one address
        except OSError:
            return False
    return True
