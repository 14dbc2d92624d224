"""What the workers on real cards do; torch is imported there alone."""

from __future__ import annotations

import os
from typing import Any

state: dict[str, Any] = {}


def load(size: int) -> None:
    import torch

    torch.manual_seed(7)
    state["weights"] = torch.randn(size, size, dtype=torch.float64).to("cuda:0")


def product(seed: int) -> tuple[float, float, int, str, str]:
    """The sum of a product there, the same on the CPU, and what the worker sees."""
    import torch

    weights = state["weights"]
    torch.manual_seed(seed)
    other = torch.randn(*weights.shape, dtype=torch.float64)
    there = (weights @ other.to("cuda:0")).sum().item()
    here = (weights.cpu() @ other).sum().item()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return there, here, torch.cuda.device_count(), str(weights.device), uuid


def array(size: int) -> Any:
    return state["weights"].new_full((size,), 3.0).cpu().numpy()


def die_with_memory(size: int) -> None:
    import torch

    held = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    os._exit(held.numel() % 7 + 1)
