"""Maps device nodes to cards, so that strict isolation can hide the other cards' nodes.

`look` reads names below /dev, /sys and /proc and opens no node; the rest is pure. Keepers hide the
nodes, in the job's own process.

Sources: the driver's README, "Device nodes"; NVIDIA's MIG User Guide, "Device Nodes and
Capabilities"; nvidia-docker#170 (CUDA and NVML pass over cards whose node is absent).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.model import Gpu

# Every program that computes opens these, whichever its card.
SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
NVIDIA = "0x10de"

Part: TypeAlias = tuple[int, int, int | None]
"""A MIG instance by the card's minor number, GPU instance and compute instance (None: all)."""


class NodesError(GpulaunchError):
    """A card cannot be told apart from the others by its device nodes; the text is one line."""


class Nodes(Struct, frozen=True):
    """The nodes that exist. `drm` maps a path to the PCI bus id of NVIDIA's card behind
    it, `parts` to the MIG instance that it opens, `minors` from a bus id to the card's minor.
    """

    paths: frozenset[str] = frozenset()
    drm: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)
    minors: Mapping[str, int] = field(default_factory=dict)


# ── The look ────────────────────────────────────────────────────────────────────────────────────


def look(root: str = "/") -> Nodes:
    """Return the nodes that exist now; one that cannot be read counts as absent."""
    base = Path(root)
    return Nodes(
        paths=frozenset(
            f"/dev/{folder}{name}"
            for folder in ("", "nvidia-caps/")
            for name in _names(base / "dev" / folder)
            if name.startswith("nvidia") or name == "dxg"
        ),
        drm=dict(_drm(base)),
        parts=dict(_parts(base)),
        minors=dict(_minors(base)),
    )


def _drm(base: Path) -> Iterator[tuple[str, str]]:
    buses = set()
    for name in _names(base / "sys/class/drm"):
        device = base / "sys/class/drm" / name / "device"
        if re.fullmatch(r"(card|renderD)\d+", name) and _text(device / "vendor").strip() == NVIDIA:
            bus = os.path.basename(os.path.realpath(device))
            buses.add(bus)
            yield f"/dev/dri/{name}", bus
    for name in _names(base / "dev/dri/by-path"):
        for bus in buses:
            if name.startswith(f"pci-{bus}-"):
                yield f"/dev/dri/by-path/{name}", bus


def _parts(base: Path) -> Iterator[tuple[str, Part]]:
    """Yield nodes of MIG instances, from lines such as `gpu0/gi1/access 12` (nvidia-cap12)."""
    for line in _text(base / "proc/driver/nvidia-caps/mig-minors").splitlines():
        if found := re.fullmatch(r"gpu(\d+)/gi(\d+)/(?:ci(\d+)/)?access\s+(\d+)", line.strip()):
            minor, gi, ci, number = found.groups()
            part = (int(minor), int(gi), None if ci is None else int(ci))
            yield f"/dev/nvidia-caps/nvidia-cap{number}", part


def _minors(base: Path) -> Iterator[tuple[str, int]]:
    for bus in _names(base / "proc/driver/nvidia/gpus"):
        text = _text(base / "proc/driver/nvidia/gpus" / bus / "information")
        if found := re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE):
            yield bus.lower(), int(found[1])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


# ── What follows ────────────────────────────────────────────────────────────────────────────────


def hidden_from(gpus: Sequence[Gpu], nodes: Nodes) -> tuple[str, ...]:
    """Return the nodes by which a program could use other cards; some may not exist yet.

    For pretend cards, and for none, those of every card. Raises NodesError (see `why_not`).
    """
    real = [gpu for gpu in gpus if not gpu.simulated]
    for gpu in real:
        if why := why_not(gpu, nodes):
            raise NodesError(why)
    minors = {gpu.minor for gpu in real}
    buses = {gpu.key for gpu in real} | {b for b, minor in nodes.minors.items() if minor in minors}
    parts = {part for gpu in real for part in _own_parts(gpu)}
    there = [path for path in nodes.paths if re.fullmatch(r"/dev/nvidia\d+", path)]
    known = [f"/dev/nvidia{minor}" for minor in nodes.minors.values()]
    own = {f"/dev/nvidia{minor}" for minor in minors}
    hidden = {path for path in (*there, *known) if path not in own}
    hidden |= {path for path, bus in nodes.drm.items() if bus not in buses}
    hidden |= {path for path, part in nodes.parts.items() if part not in parts}
    return tuple(sorted(hidden))


def why_not(gpu: Gpu, nodes: Nodes) -> str | None:
    """Return why a job cannot be given this card alone, in one line; None if it can."""
    where = f"GPU {gpu.index} ({gpu.uuid})"
    if "/dev/dxg" in nodes.paths and f"/dev/nvidia{gpu.minor}" not in nodes.paths:
        return f"{where}: under WSL all cards are one node, /dev/dxg, and cannot be hidden singly"
    if gpu.minor is None:
        return f"{where}: the driver does not say which /dev/nvidiaN is this card's"
    for path in (f"/dev/nvidia{gpu.minor}", *SHARED):
        if path not in nodes.paths:
            return (
                f"{where}: {path} does not exist, and nothing inside the isolation can make it:"
                f" `nvidia-modprobe -u -c={gpu.minor}` does"
            )
    if gpu.mig:
        return _why_not_part(gpu, nodes, where)
    return None


def _why_not_part(gpu: Gpu, nodes: Nodes, where: str) -> str | None:
    by_part = {part: path for path, part in nodes.parts.items()}
    for part in _own_parts(gpu):
        if (path := by_part.get(part)) is None or path not in nodes.paths:
            return f"{where}: {path or 'its node'} below /dev/nvidia-caps does not exist"
    if not gpu.part:
        return f"{where}: the driver does not say which MIG instance this is"
    return None


def _own_parts(gpu: Gpu) -> list[Part]:
    if not gpu.part or gpu.minor is None:
        return []
    gi, ci = gpu.part
    return [(gpu.minor, gi, None), (gpu.minor, gi, ci)]
