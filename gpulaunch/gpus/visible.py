"""The one place that spells the mask: cards -> CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

Sources: the CUDA C++ Programming Guide, "Environment Variables". CUDA's own order is fastest first
and NVML's is by PCI bus: they agree only under CUDA_DEVICE_ORDER=PCI_BUS_ID, in the job itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpulaunch.core.model import Gpu

if TYPE_CHECKING:
    from gpulaunch.gpus.machine import Machine

MASK = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
MPS_LOGS = "CUDA_MPS_LOG_DIRECTORY"
MANY = 64
Style: TypeAlias = Literal["index", "uuid", "own"]
"""How a mask names cards: by NVML's index, by UUID, or by number among the job's own, where the
others' device nodes are absent."""


def visible(gpus: Sequence[Gpu], style: Style, real: int | None = None) -> dict[str, str]:
    """Return the variables by which a program sees these cards, in this order, and no others.

    A pretend card's number lies beyond the `real` cards of this machine (None: counted here), so
    that a program that looks for it finds none, as on a machine without a card.
    """
    if not gpus:
        return {MASK: ""}
    if gpus[0].simulated:
        beyond = _count_here() if real is None else real
        return {MASK: ",".join(str(beyond + gpu.index) for gpu in gpus), ORDER: PCI_ORDER}
    if style == "uuid" or any(gpu.mig for gpu in gpus):
        named = {MASK: ",".join(gpu.named for gpu in gpus)}
        return named | ({} if all(gpu.named == gpu.uuid for gpu in gpus) else {ORDER: PCI_ORDER})
    indices = [gpu.index for gpu in gpus]
    if style == "own":
        indices = [sorted(indices).index(index) for index in indices]
    return {MASK: ",".join(map(str, indices)), ORDER: PCI_ORDER}


def style_for(machine: Machine) -> tuple[Style, str]:
    """Return how to name this machine's cards in the mask, and why if not by index.

    CUDA numbers only the cards that it can open, NVML all of them: with one that does not open,
    every index behind it may be another card.
    """
    if any(gpu.mig for gpu in machine.gpus):
        return "uuid", "MIG instances have no index"
    if machine.unopened:
        shut = ", ".join(machine.unopened)
        return "uuid", f"{shut} cannot be opened, so that CUDA may count differently"
    return "index", ""


@cache
def _count_here() -> int:
    """Return the number of cards, counted once: it does not change while a program runs."""
    return count_cards()


def count_cards(root: str = "/") -> int:
    """Return how many NVIDIA cards the kernel has, at least as many as CUDA can number."""
    try:
        return len(os.listdir(os.path.join(root, "proc/driver/nvidia/gpus")))
    except OSError:
        # WSL and sandboxes have the device but not the list.
        devices = ("dev/nvidiactl", "dev/dxg")
        return MANY if any(os.path.exists(os.path.join(root, path)) for path in devices) else 0
