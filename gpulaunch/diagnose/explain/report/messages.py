"""What a device error's message is about.

The messages are torch's own: `aten/src/ATen/TensorUtils.cpp`, `ATen/core/.../check_device`,
`torch/_subclasses/fake_tensor.py`, `torch/serialization.py`, `torch/cuda/__init__.py`, and Triton's
launcher (`python/triton/.../driver.c`), as of torch 1.8 to 2.13.
"""

from __future__ import annotations

import re

from .objects import mro

MIXED, ORDINAL, LOADED, NO_GPU, SAME_CARD, MEMORY, KERNEL = (
    "mixed", "ordinal", "loaded", "no_gpu", "same_card", "memory", "kernel",
)  # fmt: skip

# First match wins: what a message is about, from what it says most precisely.
KINDS = [
    (LOADED, r"Attempting to deserialize object on (?:a )?\w+ device"),
    (LOADED, r"We ran into an error when deserializing the saved file"),
    (MIXED, r"[Ee]xpected (?:all tensors|tensors|all input tensors|\w+ and \w+|[\w, ]+) to be on "
            r"(?:the )?same device"),
    (MIXED, r"tensors? (?:must|need to) (?:all )?be on (?:the )?same device"),
    (MIXED, r"(?:must|to) (?:be on|have|be in) (?:the )?same device\b"),
    (MIXED, r"(?:Input|input) and \w+ tensors are not at the same device"),
    (MIXED, r"should be (?:either )?on (?:cpu or on )?the same device"),
    (MIXED, r"on the same device as the indexed tensor"),
    (MIXED, r"but expected (?:it|them) to be on (?:GPU|CPU|CUDA)"),
    (MIXED, r"is on (?:CPU|GPU), but expected"),
    (MIXED, r"Expected a '\w+' device type for generator but found"),
    (MIXED, r"Expected object of (?:device|backend) type \w+ but got (?:device|backend) type"),
    (MIXED, r"found two different devices"),
    (MIXED, r"expected \w+ to be on (?:the )?(?:same device|cpu)"),
    (MIXED, r"Input type \(.*?\) and (?:weight|bias) type \(.*?\) should be the same"),
    (MIXED, r"module must have its parameters and buffers on device"),
    (MIXED, r"input module (?:parameters locate in|must be on the same type of devices)"),
    (MIXED, r"only work with single-device/multiple-device GPU modules"),
    (MIXED, r"No backend type associated with device type"),
    (MIXED, r"Tensors must be CUDA and dense"),
    (MIXED, r"can't convert \S+ device type tensor to numpy"),
    (MIXED, r"storage of a tensor on device .* to a storage on different device"),
    (MIXED, r"Pointer argument \(at \d+\) cannot be accessed from Triton"),
    (MIXED, r"\b\w+ must be (?:on CUDA|a CUDA tensor|on a CUDA device)"),
    (MIXED, r"Cannot copy out of meta tensor"),
    (ORDINAL, r"invalid device ordinal"),
    (ORDINAL, r"Invalid (?:peer )?device id\b"),
    (ORDINAL, r"CUDA out of range|device >= 0 && device < num_gpus"),
    (NO_GPU, r"Torch not compiled with CUDA enabled"),
    (NO_GPU, r"PyTorch (?:is not linked with support for cuda|was compiled without CUDA|"
             r"not compiled with CUDA)"),
    (NO_GPU, r"No CUDA GPUs are available"),
    (NO_GPU, r"Found no NVIDIA driver on your system"),
    (NO_GPU, r"no CUDA-capable device is detected"),
    (NO_GPU, r"CUDA driver initialization failed"),
    (SAME_CARD, r"Duplicate GPU detected"),
    (MEMORY, r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    (KERNEL, r"device-side assert triggered|an illegal memory access was encountered"),
]  # fmt: skip

# Two halves of one message: the same kind of device on both sides is a matter of dtype.
INPUT_AND = re.compile(r"Input type \((.*?)\) and (?:weight|bias) type \((.*?)\)")


def kind_of(text: str) -> str | None:
    """Return what a message is about; None when it is about no device."""
    for kind, pattern in KINDS:
        if re.search(pattern, text):
            halves = INPUT_AND.search(text)
            if halves and len({accelerated(half) for half in halves.groups()}) < 2:
                continue
            return kind
    return None


def accelerated(type_name: str) -> bool:
    """Tell whether `torch.cuda.FloatTensor` or `CUDABFloat16Type` is not on the CPU."""
    return bool(re.search(r"(?i)cuda|hip|xpu|npu|mps|hpu", type_name))


def message(exc: BaseException) -> str:
    """Return what an exception was raised with, bounded: str() of several would be their repr."""
    return "\n".join(arg for arg in exc.args if str in mro(type(arg)))[:200_000]


def summary(text: str) -> str:
    """Return the recognised line of a message, which may hold a whole traceback."""
    for line in reversed(text.splitlines()):
        if kind_of(line):
            return line.strip()
    return (text.strip().splitlines() or [""])[0]
