"""Reserves TCP ports for jobs, as leases, and keeps some for the next jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulaunch.errors import GpulaunchError
from gpulaunch.farside import ports


def reserve_port(among: Sequence[int] = ()) -> ports.PortLease:
    """Reserve a port that no launcher has and nobody listens on. Raises GpulaunchError."""
    try:
        return ports.reserve_port(among)
    except OSError as problem:
        raise GpulaunchError(str(problem)) from None


class PortPool:
    """Ports of this launcher's jobs. One that a job gave back is kept for a later job."""

    def __init__(self) -> None:
        self._kept: list[ports.PortLease] = []

    def take(self) -> ports.PortLease:
        """Return a port that is to be given back. Raises GpulaunchError."""
        return self._kept.pop() if self._kept else reserve_port()

    def give_back(self, leases: Iterable[ports.PortLease]) -> None:
        """Keep the ports, but not one that something of its job's connections still occupies."""
        for lease in leases:
            if ports.is_unused(lease.port):
                self._kept.append(lease)
            else:
                lease.close()

    def close(self) -> None:
        """Give the kept ports to other launchers."""
        for lease in self._kept:
            lease.close()
        self._kept.clear()
