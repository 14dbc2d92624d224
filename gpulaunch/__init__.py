"""gpulaunch: one job list, one command, every job on its own GPU."""

__version__ = "0.1.0"

__all__ = ["__version__"]
