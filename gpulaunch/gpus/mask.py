"""Spells the mask for a job, and reads the mask that this launcher inherited.

The one place that spells it: cards -> CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. What is inherited
becomes the pool: the machine's cards that this launcher may use.

Sources: the CUDA C++ Programming Guide, "Environment Variables", and PyTorch's reading of the same
variable (`torch.cuda._parse_visible_devices`): an invalid entry or -1 ends the list, a repeated one
empties it, and of an entry only the leading digits count. CUDA's own order is fastest first and
NVML's is by PCI bus: they agree only under CUDA_DEVICE_ORDER=PCI_BUS_ID, in the job itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.machine import Machine

MASK = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
MPS_LOGS = "CUDA_MPS_LOG_DIRECTORY"
PCI_ORDER = "PCI_BUS_ID"
MANY = 64
Style: TypeAlias = Literal["index", "uuid", "own"]
"""How a mask names cards: by NVML's index, by UUID, or by number among the job's own, where the
others' device nodes are absent."""
_LEADING_DIGITS = re.compile(r"\+?([0-9]+)")
_WRONG_COMMAS = "，、；;：:"


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


# ── The mask that was inherited ─────────────────────────────────────────────────────────────────


class InheritedPool(Struct, frozen=True):
    """The pool. `why`: what narrowed it ("" if nothing did); `notes`: what looks like a mistake."""

    gpus: tuple[Gpu, ...]
    why: str = ""
    notes: tuple[str, ...] = ()


def pool(machine: Machine, environ: Mapping[str, str]) -> InheritedPool:
    """Return the cards that CUDA_VISIBLE_DEVICES or Slurm gave us, in order; without them, all.

    Raises UsageError where an index may mean two different cards.
    """
    mask = environ.get(MASK)
    if mask is not None:
        return masked(_counted(machine, mask, environ), mask, environ.get(ORDER, ""))
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if given := environ.get(name):
            return by_slurm(machine, name, given)
    return InheritedPool(machine.gpus)


def _counted(machine: Machine, mask: str, environ: Mapping[str, str]) -> Machine:
    """Return the machine with those cards alone that the mask's numbers count.

    A strict job of gpulaunch has numbers from 0 for its own cards. They may be read where NVML
    still names the others, and are told by not being its cards' indices.
    """
    names = environ.get("GPULAUNCH_GPU_UUID", "").split(",")
    own = tuple(gpu for gpu in machine.gpus if gpu.uuid in names)
    if not own or not environ.get("GPULAUNCH_LEASED") or mask.startswith(("GPU-", "MIG-")):
        return machine
    numbers, _ = ordinals(mask)
    return machine if {gpu.index for gpu in own}.issuperset(numbers) else replace(machine, gpus=own)


def masked(machine: Machine, mask: str, order: str) -> InheritedPool:
    why = f"{MASK}={mask}"
    if not mask.strip():
        return InheritedPool((), f"{MASK} is set and empty")
    if mask.startswith(("GPU-", "MIG-")):
        names, notes = uuids(mask)
        return chosen(why, names, notes, machine.gpus)
    indices, notes = ordinals(mask)
    if not indices:
        return InheritedPool((), why, notes)
    candidates = numbered(machine, order, mask)
    found = [candidates[n] for n in indices if n < len(candidates)]
    if len(found) < len(indices):
        first = next(n for n in indices if n >= len(candidates))
        found = [candidates[n] for n in indices[: indices.index(first)]]
        notes = (
            *notes,
            f"{why}: there is no card {first} ({len(candidates)} here), "
            "and what comes after it does not count",
        )
    return InheritedPool(tuple(found), why, notes)


def ordinals(mask: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the numbers that CUDA reads in the mask, and notes for people about the mask."""
    read: list[int] = []
    notes: list[str] = []
    for entry in mask.split(","):
        digits = _LEADING_DIGITS.match(entry.strip())
        if digits is None:
            if entry.strip() != "-1":
                notes.append(
                    f"{MASK}={mask}: {entry.strip()!r} is no card's number: it, and what "
                    "comes after it, does not count"
                )
            break
        if any(comma in entry for comma in _WRONG_COMMAS):
            notes.append(
                f"{MASK}={mask}: {entry.strip()!r} is read as {digits[1]} alone; "
                "only an ASCII comma separates cards"
            )
        if int(digits[1]) in read:
            return [], (f"{MASK}={mask} names card {digits[1]} twice: CUDA then shows none",)
        read.append(int(digits[1]))
    return read, tuple(notes)


def uuids(mask: str) -> tuple[list[str], tuple[str, ...]]:
    prefix = mask[:4]
    read: list[str] = []
    for entry in mask.split(","):
        if entry in read:
            return [], (f"{MASK}={mask} names {entry} twice: CUDA then shows none",)
        if not entry.startswith(prefix):
            note = f"{MASK}={mask}: {entry!r}, and what comes after it, does not count"
            return read, (note,)
        read.append(entry)
    return read, ()


def chosen(
    why: str, names: Sequence[str], notes: tuple[str, ...], gpus: Sequence[Gpu]
) -> InheritedPool:
    """Return the cards of these UUIDs or unambiguous prefixes, up to the first that fits none."""
    found: list[Gpu] = []
    for name in names:
        fits = [gpu for gpu in gpus if gpu.uuid.lower().startswith(name.lower())]
        if len(fits) != 1 or fits[0] in found:
            what = "fits several cards" if len(fits) > 1 else "fits no card here"
            what = "names a card twice" if fits and fits[0] in found else what
            return InheritedPool(tuple(found), why, (*notes, f"{why}: {name} {what}"))
        found.append(fits[0])
    return InheritedPool(tuple(found), why, notes)


def numbered(machine: Machine, order: str, mask: str) -> list[Gpu]:
    """Return the cards in CUDA's order. Raises UsageError if that order cannot be known here.

    CUDA counts the cards that it can open, by default the fastest first: that is the order of the
    bus only among cards of one model.
    """
    known = ", ".join(f"{gpu.uuid} ({gpu.name})" for gpu in machine.gpus)
    if any(gpu.mig for gpu in machine.gpus):
        raise UsageError(f"{MASK}={mask}: MIG instances have no number; name UUIDs: {known}")
    if len({gpu.name for gpu in machine.gpus}) > 1 and order != PCI_ORDER:
        raise UsageError(
            f"{MASK}={mask}: the cards here are of different models, and without "
            f"{ORDER}={PCI_ORDER} CUDA numbers them otherwise than nvidia-smi; name UUIDs: {known}"
        )
    return sorted(machine.gpus, key=lambda gpu: gpu.index)


def by_slurm(machine: Machine, name: str, given: str) -> InheritedPool:
    """Return the cards by Slurm's numbers, which are those of the device files."""
    numbers = [int(entry) for entry in re.findall(r"[0-9]+", given)]
    found = [gpu for n in numbers for gpu in machine.gpus if n == gpu.minor]
    return InheritedPool(tuple(found), f"{name}={given}")
