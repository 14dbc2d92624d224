"""Helpers for people's own code, under gpulaunch or not: "Expected all tensors to be on the same
device" prevented, found and explained.

    check_devices(model, batch)          before the call: names what is on another device
    with first_mixed_device(): ...       during it: the first operation that mixes devices
    print(explain())                     in an `except`: what the traceback's frames held
    load_exported("model.pt2")           a torch.export program, whatever card it was saved on

The only part of gpulaunch that imports torch (2.6 and newer: `pip install 'gpulaunch[torch]'`);
no other part imports it. Never changes what it looks at.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gpulaunch.torch needs torch 2.6 or newer in this interpreter, and finds none: install "
        "the torch that fits your driver, or pip install 'gpulaunch[torch]'",
        name="torch",
    ) from None

from gpulaunch.torch.check import check_devices
from gpulaunch.torch.exported import load_exported
from gpulaunch.torch.mixed import first_mixed_device
from gpulaunch.torch.tensors import DeviceMismatchError, ExportedProgramError, explain

__all__ = [
    "DeviceMismatchError",
    "ExportedProgramError",
    "check_devices",
    "explain",
    "first_mixed_device",
    "load_exported",
]
