"""What is near a card: its NUMA node, its CPUs, the cards at the other ends of its NVLinks.

The kernel is asked first (`numa_node` and `local_cpulist` of a PCI device in sysfs), then the
driver, in the helper process alone (`probe`); its answer is the kernel's. What neither knows is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpulaunch.text import numbers_in, ranges

SYSFS_VARIABLE = "GPULAUNCH_SYSFS"
"""Names the directory in which the kernel tells of devices, where that is not /sys."""
SWITCH = "switch"
"""Stands for the far end of a link that goes to an NVSwitch."""
_MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_ENABLED = 1  # NVML_FEATURE_ENABLED
_NO_CARDS = {1: "", 2: SWITCH}  # NVML_NVLINK_DEVICE_TYPE_IBMNPU (a CPU), _SWITCH
_WORD = 64  # bits of an element of NVML's set of CPUs
_WORDS = 64  # of such a set: 4096 CPUs, of which Linux's usual kernels have at most 8192


def sysfs(environ: Mapping[str, str]) -> str:
    return environ.get(SYSFS_VARIABLE) or "/sys"


def numa_nodes(environ: Mapping[str, str]) -> int:
    """Return how many NUMA nodes of this machine have CPUs; 1 where the kernel does not say."""
    return max(1, len(numbers_in(line_of(f"{sysfs(environ)}/devices/system/node/has_cpu"))))


def place(bus: str, nvml: Any, handle: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `numa` and `cpus` (as the kernel writes a list) of a card, as far as they are known.

    -1 for a node means that the firmware tells of none, as in most virtual machines.
    """
    folder = f"{sysfs(environ)}/bus/pci/devices/{bus_of_kernel(bus)}"
    node, cpus = line_of(f"{folder}/numa_node"), line_of(f"{folder}/local_cpulist")
    found: dict[str, Any] = {}
    if node.isdigit():
        found["numa"] = int(node)
    if cpus or (cpus := _drivers_cpus(nvml, handle)):
        found["cpus"] = cpus
    return found


def bus_of_kernel(bus: str) -> str:
    """Return the bus id as the kernel spells it: in small letters, with four digits of domain."""
    domain, colon, rest = bus.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def line_of(path: str) -> str:
    """Return the first line of one of the kernel's files; empty where it is not there."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except (OSError, ValueError):
        return ""


def _drivers_cpus(nvml: Any, handle: Any) -> str:
    try:
        words = nvml.nvmlDeviceGetCpuAffinity(handle, _WORDS)
    except Exception:  # too old, not supported: it is not known then
        return ""
    return ranges(
        number * _WORD + bit
        for number, word in enumerate(words)
        for bit in range(_WORD)
        if word >> bit & 1
    )


def links(nvml: Any, handle: Any) -> list[str]:
    """Return the far ends of the card's NVLinks that are up: bus ids of cards, or SWITCH.

    Raises what the driver says where it has none.
    """
    found: dict[str, None] = {}
    for link in range(_MAX_LINKS):
        try:
            up = nvml.nvmlDeviceGetNvLinkState(handle, link) == _ENABLED
        except Exception:
            if link == 0:
                raise
            break  # the card has no more
        if up:
            found[_far_end(nvml, handle, link)] = None
    return [end for end in found if end]


def _far_end(nvml: Any, handle: Any, link: int) -> str:
    with suppress(Exception):  # older than R470: then the switch's bus id is told
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
        if kind in _NO_CARDS:
            return _NO_CARDS[kind]
    try:
        bus = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
    except Exception:
        return ""
    return bus.decode(errors="replace") if isinstance(bus, bytes) else str(bus)
