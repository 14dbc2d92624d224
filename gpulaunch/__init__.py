"""gpulaunch: one job list, one command, every job on its own GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.executor import GpuExecutor as GpuExecutor

__version__ = "0.1.0"

__all__ = ["GpuExecutor", "__version__"]


def __getattr__(name: str) -> object:
    """Import GpuExecutor at its first use, so that the command line never imports it."""
    if name == "GpuExecutor":
        from gpulaunch.executor import GpuExecutor

        return GpuExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
