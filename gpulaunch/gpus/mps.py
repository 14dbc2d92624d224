"""CUDA's Multi-Process Service (MPS), as NVIDIA documents it: its program, variables, limits. Pure.

One control daemon (`nvidia-cuda-mps-control`) listens in a directory of its own, and starts one
server (`nvidia-cuda-mps-server`) for each user. Programs that find the directory by a variable are
the server's clients: their kernels run on the card at the same time, not in turns.

Source: "Multi-Process Service", docs.nvidia.com/deploy/mps, and nvidia-cuda-mps-control(1). What a
real one does, `tests/gpu/test_mps.py` tries where there is a card.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from gpulaunch.core.model import Gpu

PROGRAM = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MAX_PIPES_BYTES = 107 - len("/control_privileged")
"""Bytes of the directory's path at most: its sockets' names end in `sun_path`, of 108 (unix(7))."""
_MIB = 2**20


def memory_limit(memory: int) -> str:
    """Return what keeps a client to so many bytes of its only card: whole MiB, rounded up.

    A limit is an integer and G or M, by the card's number as the client sees it.
    """
    return f"0={-(-memory // _MIB)}M"


def find_program(environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of the control program; None where there is none."""
    found = shutil.which(PROGRAM, path=environ.get("PATH", os.defpath))
    return None if found is None else os.path.abspath(found)


def why_not(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> str:
    """Return why jobs cannot share these cards through MPS; empty where they can."""
    if part := next((gpu for gpu in gpus if gpu.mig), None):
        return (
            f"{part.uuid}, of GPU {part.index}, is a MIG instance, and gpulaunch runs MPS on whole"
            " cards alone: leave mps: out, or name whole cards with --gpus"
        )
    if find_program(environ) is None:
        return (
            f"{PROGRAM} is not on PATH: it comes with the driver (Debian, Ubuntu: the package"
            " nvidia-compute-utils-NNN); install it, or leave mps: out"
        )
    return ""
