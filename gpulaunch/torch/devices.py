"""Devices as values: which one a name means, whether two are one. Never makes a tensor."""

from __future__ import annotations

import torch

# What an index-less "cuda" means is the current card: asking for it must not start CUDA.
_CPU_LIKE = ("cpu", "meta")


def normal(device: torch.device | str | int) -> torch.device:
    """Return `device` with its index; cpu and meta have none.

    Raises RuntimeError where it names no device.
    """
    given = torch.device(device)
    if given.type in _CPU_LIKE:
        return torch.device(given.type)
    return given if given.index is not None else torch.device(given.type, current(given.type))


def current(kind: str) -> int:
    """Return the current card's index, 0 where that kind of device is not in use yet."""
    if kind == "cuda" and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0


def is_card(device: torch.device) -> bool:
    """Tell whether a device is an accelerator: neither the CPU nor without data."""
    return device.type not in _CPU_LIKE


def same(left: torch.device, right: torch.device) -> bool:
    """Tell whether tensors of these devices are on one, an index left out being the current one."""
    return bool(left == right) or normal(left) == normal(right)


def shape_of(tensor: torch.Tensor) -> tuple[int | str, ...] | None:
    """None where it has none: lazy parameters, nested tensors."""
    try:
        return tuple(size if type(size) is int else str(size) for size in tensor.shape)
    except RuntimeError:
        return None


def dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def may_stay(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is read as a number, on any device: on the CPU, without dimensions."""
    return tensor.device.type == "cpu" and shape_of(tensor) == ()
