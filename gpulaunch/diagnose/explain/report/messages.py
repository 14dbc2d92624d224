"""Which error among several is a device error, and what its message is about.

The messages are torch's own: `aten/src/ATen/TensorUtils.cpp`, `ATen/core/.../check_device`,
`torch/_subclasses/fake_tensor.py`, `torch/serialization.py`, `torch/cuda/__init__.py`, and Triton's
launcher (`python/triton/.../driver.c`), as of torch 1.8 to 2.13.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING

from .search import TracebackStep, continued, steps
from .tensors import PER_CONTAINER, SOURCE_SIZE, mro, of

if TYPE_CHECKING:
    from types import TracebackType


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


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────


def recognised(
    exc: BaseException | None, tb: TracebackType | None
) -> tuple[str, BaseException, list[TracebackStep]] | None:
    """Return the device error among an exception, its causes, contexts and members; its frames."""
    if exc is None or type(exc).__module__ == "gpulaunch.torch.tensors":
        return None  # the latter say all of it themselves
    # (exception, frames from the outermost one)
    todo: deque[tuple[BaseException, list[TracebackStep]]] = deque([(exc, steps(tb))])
    seen: set[int] = set()
    best: tuple[str, BaseException, list[TracebackStep]] | None = None
    while todo and len(seen) < 200:
        error, way = todo.popleft()
        if id(error) in seen:
            continue
        seen.add(id(error))
        kind = kind_of(message(error))
        if kind == LOADED and "ran into an error" in message(error) and not baked_in(way)[1]:
            kind = None  # torch.export.load says no more; nothing in the file is about a card.
        # The innermost of a chain of wrappers that repeat its text has the frames.
        if kind and (best is None or (best[0] == kind and is_inner(error, best[1]))):
            best = (kind, error, way)
        for inner in (error.__cause__, error.__context__, *members(error)):
            if isinstance(inner, BaseException):
                todo.append((inner, continued(way, steps(inner.__traceback__))))
    return best


def is_inner(error: BaseException, outer: BaseException) -> bool:
    """Tell whether `error` is where `outer` comes from. A pickled one has lost its frames."""
    return error.__traceback__ is not None and (
        error is outer.__cause__ or error is outer.__context__
    )


def members(exc: BaseException) -> list[BaseException]:
    """Those of an ExceptionGroup (also of the backport)."""
    if not any(of(base, "__name__") == "BaseExceptionGroup" for base in mro(type(exc))):
        return []
    found = getattr(exc, "exceptions", ())
    return list(found)[:50] if isinstance(found, (tuple, list)) else []


# ── The cards that this process sees, and those that an exported program names ──────────────────

# Of a device in torch.export's archives (torch/_export/serde/schema.py).
RECORD = re.compile(r'"type": ?"(cuda|hip|xpu|npu|hpu)", ?"index": ?(\d{1,4})\b')


def baked_in(way: list[TracebackStep]) -> tuple[str, list[str]]:
    """Return the file that torch.export.load was given, and its cards that are not here."""
    for step in way:
        if step.frame.f_globals.get("__name__") == "torch.export" and step.function == "load":
            file = step.frame.f_locals.get("f")
            if type(file) is str:
                return file, absent_cards(file)
    return "", []


def absent_cards(file: str) -> list[str]:
    """Cards that a program's JSON records name and that this process does not see, by the mask."""
    import zipfile

    found: set[tuple[str, int]] = set()
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist()[:PER_CONTAINER]:
                if member.filename.endswith(".json") and member.file_size < SOURCE_SIZE:
                    text = archive.read(member).decode("utf-8", "replace")
                    found.update((kind, int(index)) for kind, index in RECORD.findall(text))
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return []
    return [f"{kind}:{index}" for kind, index in sorted(found) if index >= (visible() or 1)]


def visible() -> int | None:
    """How many cards the mask names; None where there is none."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if mask is None else len([part for part in mask.split(",") if part.strip()])


def seen_cards() -> str:
    number = visible()
    if number is None:
        return "the cards that torch counts from cuda:0"
    if number == 0:
        return "no card"
    return "one card, cuda:0" if number == 1 else f"{number} cards, cuda:0 to cuda:{number - 1}"
