"""Reserves TCP ports for jobs, as leases."""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.errors import GpulaunchError
from gpulaunch.farside import ports


def reserve_port(among: Sequence[int] = ()) -> ports.PortLease:
    """Reserve a port that no launcher has and nobody listens on. Raises GpulaunchError."""
    try:
        return ports.reserve_port(among)
    except OSError as problem:
        raise GpulaunchError(str(problem)) from None
