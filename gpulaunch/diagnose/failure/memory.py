"""What a message of a card that ran out of memory tells in numbers. Pure."""

from __future__ import annotations

import re

from gpulaunch.core.causes import MemoryUse

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"(\d{1,15}(?:\.\d{1,6})?) ?([KMGT]?)(?:iB|B|bytes|b)\b"
_ASKED = (
    re.compile(rf"[Tt]ried to allocate {_SIZE}"),  # torch
    re.compile(rf"[Oo]ut of memory while trying to allocate {_SIZE}"),  # XLA
    re.compile(rf"Failed to allocate request for {_SIZE}"),  # XLA
    re.compile(rf"\ballocating {_SIZE}"),  # ggml, CuPy
)
# torch: "GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free."; before 2.1:
# "(GPU 0; 6.00 GiB total capacity; 3.49 GiB already allocated; 1.04 GiB free; 3.50 GiB reserved".
_TOTAL = re.compile(rf"total capac\w{{0,2}}ty of {_SIZE}|\(GPU \d{{1,3}}; {_SIZE} total capacity")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use")
_OLD = re.compile(rf"; {_SIZE} already allocated; {_SIZE} free; {_SIZE} (reserved|cached)")
_VLLM = re.compile(
    r"Free memory on device[^(\n]{0,20}\((\d{1,6}\.?\d{0,4})/(\d{1,6}\.?\d{0,4}) GiB\)"
)

SUBSTANTIAL = 1 << 30
"""Less than this is what idle processes leave on a card."""
CONTEXT = 3 << 29
"""What a process's CUDA context and libraries may take beside what torch counts: 1.5 GiB."""


def numbers_of(message: str) -> MemoryUse:
    asked = next((_bytes(*m.groups()) for m in (r.search(message) for r in _ASKED) if m), None)
    vllm = _VLLM.search(message)
    if vllm:
        free, size = (int(float(vllm[i]) * (1 << 30)) for i in (1, 2))
        return MemoryUse(asked, size, None, max(0, size - free))
    total = _first(_TOTAL, message)
    own = _first(_OWN, message)
    others = [(int(pid), _bytes(size, unit)) for pid, size, unit in _OTHER.findall(message)]
    if own is None and others:
        # In a container torch cannot tell its own PID, and names itself as if it were another.
        largest = max(others, key=lambda other: other[1])
        others.remove(largest)
        own = largest[1]
    if others:
        pids = tuple(pid for pid, _ in others)
        return MemoryUse(asked, total, own, sum(size for _, size in others), pids)
    return MemoryUse(asked, total, own, _left_over(message, total))


def _left_over(message: str, total: int | None) -> int | None:
    """Return what the old message leaves over: neither free, nor torch's, nor a context's."""
    old = _OLD.search(message)
    if old is None or total is None:
        return None
    allocated, free, kept = (_bytes(old[i], old[i + 1]) for i in (1, 3, 5))
    # "reserved" contains what is allocated; the older "cached" comes on top of it.
    own = max(allocated, kept) if old[7] == "reserved" else allocated + kept
    return max(0, total - free - own - CONTEXT)


def _first(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    if found is None:
        return None
    size, unit = [group for group in found.groups() if group is not None][:2]
    return _bytes(size, unit)


def _bytes(size: str, unit: str) -> int:
    return int(float(size) * _UNITS[unit])
