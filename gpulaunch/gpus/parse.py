"""Turns the helper's answers (`probe`) into values, and finds what is near a card for the helper.

An answer that is missing or of the wrong type becomes None or a Fault, never 0. Decides nothing.
Only `place` and `links` ask the kernel and the driver, in the helper process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeGuard

from msgspec.structs import replace

from gpulaunch.base.text import numbers_in, ranges
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.machine import CardReading, Fault, Process, ProcessKind

Answer: TypeAlias = Mapping[str, Any]

_ADVICE = {
    "NVMLError_LibraryNotFound": "is the NVIDIA driver installed? In a container: run it with "
    "`--gpus all` (docker) or `--nv` (apptainer). `--simulate N` tries a job file without a card",
    "NVMLError_DriverNotLoaded": "load the driver (`modprobe nvidia`, or reboot); "
    "`nvidia-smi` shows the same",
    "NVMLError_LibRmVersionMismatch": "the driver was updated under a running kernel module: "
    "reload the module or reboot",
    "NVMLLibraryMismatchError": "the driver's library and nvidia-ml-py do not fit: update one",
    "NVMLError_NoPermission": "may this user open the card? See `ls -l /dev/nvidia*`, and the "
    "allocation of a Slurm job or container",
    "NVMLError_GpuIsLost": "the card fell off the bus: reboot, look for Xid 79 in `dmesg`",
    "NVMLError_ResetRequired": "`nvidia-smi --gpu-reset`, or reboot",
    "ModuleNotFoundError": "install nvidia-ml-py into this environment",
}
_UUID = re.compile(r"[\w./-]+", re.ASCII)
_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")
"""What says that a card can do no work. Any other error says that one question has no answer."""
_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# NVML_GPU_RECOVERY_ACTION_*: those that leave the card fit for work until then are absent.
_RECOVERY = {
    1: "it needs a reset",
    2: "the machine needs a reboot",
    4: "it must be drained and reset",
    6: "its bus needs a reset",
    7: "the machine needs a reboot",
}


def machine_fault(answer: Answer) -> Fault | None:
    """Return why no card can be asked about at all; None if cards can."""
    if error := answer.get("error"):
        return fault("", error)
    if number(answer.get("count")) is None:
        return fault("", answer.get("errors", {}).get("count"))
    if answer["count"] == 0:
        return Fault("", "the driver is there and has no card", "is the card plugged in? `lspci`")
    return None


def cuda_version(answer: Answer) -> str | None:
    """Return the CUDA version as text: NVML's 12040 is "12.4"."""
    version = number(answer.get("cuda"))
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def cards(answer: Answer) -> tuple[tuple[Gpu, ...], tuple[Fault, ...]]:
    """Return the card, or in MIG mode its instances, and the faults of those that are unusable."""
    where = f"card {answer['index']}"
    if error := answer.get("error"):
        return (), (fault(where, error),)
    if answer.get("mig_mode") == 1:
        return mig_instances(answer, where)
    if gone := lost(answer):
        return (), (fault(f"{where}, its {gone}", answer["errors"][gone]),)
    return (gpu_of(answer, answer),), ()


def mig_instances(answer: Answer, where: str) -> tuple[tuple[Gpu, ...], tuple[Fault, ...]]:
    if "mig" not in answer:
        return (), (fault(where, answer["errors"].get("mig")),)
    if not answer["mig"]:
        what = "MIG mode is on and it has no instances"
        return (), (
            Fault(where, what, "make some (`nvidia-smi mig -cgi ... -C`) or end it (`-mig 0`)"),
        )
    found, faults = [], []
    for part in answer["mig"]:
        field = lost(part) if is_uuid(part.get("uuid")) else "uuid"
        if field:  # CUDA knows an instance by its UUID alone
            error = part.get("errors", {}).get(field)
            faults.append(fault(f"{where}, a MIG instance, its {field}", error))
        else:
            found.append(gpu_of(part, answer, mig=True))
    return tuple(found), tuple(faults)


def without_nameless(
    gpus: tuple[Gpu, ...], faults: tuple[Fault, ...]
) -> tuple[tuple[Gpu, ...], tuple[Fault, ...]]:
    """Return the cards that a mask can name by UUID, and a fault for each of the others."""
    what = "the driver tells neither its UUID, nor which number CUDA gives it beside other cards"
    odd = [Fault(f"card {gpu.index}", what) for gpu in gpus if gpu.named != gpu.uuid]
    return tuple(gpu for gpu in gpus if gpu.named == gpu.uuid), (*faults, *odd)


def lost(answer: Answer) -> str:
    """Return the field at which the driver says that the card is lost; empty where it does not."""
    errors = answer.get("errors", {}).items()
    return next((name for name, error in errors if error["kind"] in _LOST), "")


def gpu_of(answer: Answer, card: Answer, mig: bool = False) -> Gpu:
    """Return the card, or an instance of the `card`.

    A card whose UUID the driver does not tell is known by its place on the bus, or its index; one
    whose place is not told (Jetson) by its UUID. Memory that is not told is 0.
    """
    bus, uuid, memory = bus_id(card.get("bus")), answer.get("uuid"), answer.get("memory") or {}
    if not is_uuid(uuid):
        uuid = f"PCI-{bus}" if bus else f"INDEX-{card['index']}"
    key = uuid if mig or bus is None else bus
    name = answer.get("name") or "NVIDIA card of unknown name"
    gi, ci = number(answer.get("gi")), number(answer.get("ci"))
    return Gpu(
        uuid,
        card["index"],
        key,
        name,
        number(memory.get("total")) or 0,
        minor=number(card.get("minor")),
        mig=mig,
        part=() if gi is None or ci is None else (gi, ci),
        compute=compute_capability(card.get("compute")),
        numa=number(card.get("numa")),
        cpus=card.get("cpus") or "",
        unified=memory.get("unified") is True,
    )


def is_uuid(told: object) -> TypeGuard[str]:
    """Return True if CUDA_VISIBLE_DEVICES can name a card by what the driver tells as its UUID.

    An empty one would hide all cards from a job, and one with a comma would name two.
    """
    return isinstance(told, str) and _UUID.fullmatch(told) is not None


def compute_capability(value: object) -> tuple[int, ...]:
    match value:
        case [int(major), int(minor)]:
            return major, minor
    return ()


def linked(cards: Sequence[Sequence[Gpu]], answers: Sequence[Answer]) -> tuple[Gpu, ...]:
    """Return all cards, each with those that NVLink joins it with, by what the driver says of each.

    Two are linked if one names the other as a far end, or if both name the same end that is no
    card: a switch, and the switches of a machine join all that are at them. MIG instances have no
    NVLink.
    """
    ends: dict[str, set[str]] = {}  # by the bus id of a whole card
    for gpus, answer in zip(cards, answers, strict=True):
        if gpus and not gpus[0].mig:
            far = {bus_id(end) or end for end in answer.get("links") or ()}
            ends[gpus[0].key] = far
    uuids = {gpu.key: gpu.uuid for gpus in cards for gpu in gpus}
    return tuple(
        replace(gpu, links=tuple(uuids[key] for key in ends if _joined(gpu.key, key, ends)))
        for gpus in cards
        for gpu in gpus
    )


def _joined(one: str, other: str, ends: Mapping[str, set[str]]) -> bool:
    if one == other or one not in ends:
        return False
    direct = other in ends[one] or one in ends[other]
    return direct or bool((ends[one] & ends[other]) - ends.keys())


def bus_id(value: object) -> str | None:
    """Return the bus id in lower case, with the kernel's four digits of domain for NVML's eight."""
    if not isinstance(value, str) or value.count(":") != 2:
        return None
    domain, rest = value.lower().split(":", 1)
    return f"{domain[-4:] if len(domain) == 8 and domain.startswith('0000') else domain}:{rest}"


def look(answer: Answer) -> CardReading:
    """Return a reading of one card; an error of the whole card makes it sick."""
    uuid, errors = answer["uuid"], answer.get("errors", {})
    if error := answer.get("error"):
        if error["kind"] == "Unasked":
            return CardReading(uuid, notes=(error["text"],), unasked=error["text"])
        return CardReading(uuid, sick=str(fault("", error)))
    memory, there = answer.get("memory") or {}, processes(answer)
    unified = memory.get("unified") is True
    return CardReading(
        uuid,
        total=number(memory.get("total")),
        free=number(memory.get("free")),
        used=taken(there, answer) if unified else number(memory.get("used")),
        processes=there,
        compute_mode=_MODES.get(answer.get("compute_mode", -1)),
        sick=sickness(answer),
        notes=notes(answer),
        persistence=flag(answer.get("persistence")),
        utilization=number(answer.get("utilization")),
        temperature=number(answer.get("temperature")),
        power=None if (milliwatts := number(answer.get("power"))) is None else milliwatts / 1000,
        unanswered={name: error["text"] for name, error in errors.items()},
        windows=answer.get("windows") is True,
        unified=unified,
    )


def taken(there: Sequence[Process], answer: Answer) -> int | None:
    """Return what these processes take of unified memory; None where that is not told."""
    each = [process.memory for process in there]
    return None if "processes_C" not in answer or None in each else sum(m or 0 for m in each)


def processes(answer: Answer) -> tuple[Process, ...]:
    """Return each process once; one that draws and computes is listed by the driver as both."""
    kinds: tuple[ProcessKind, ...] = ("G", "C", "M")
    found: dict[int, Process] = {}
    for kind in kinds:
        for entry in answer.get(f"processes_{kind}", ()):
            pid, memory = entry["pid"], number(entry["memory"])
            before = found.get(pid)
            both: ProcessKind = "C+G" if kind == "C" and before else kind
            if memory is None and before:
                memory = before.memory
            found[pid] = Process(pid, both, memory, entry.get("user"), entry.get("command"))
    return tuple(found[pid] for pid in sorted(found))


def sickness(answer: Answer) -> str | None:
    """Return why the card can do no work; None if nothing says so."""
    if gone := lost(answer):
        return str(fault("", answer["errors"][gone]))
    if answer.get("compute_mode") == 2:
        return "its compute mode is PROHIBITED; `nvidia-smi -c DEFAULT` allows work again"
    if answer.get("recovery") in _RECOVERY:
        return f"the driver says that {_RECOVERY[answer['recovery']]}"
    if remapped(answer)[3]:
        return "its memory could not be repaired (row remapping failed): have it replaced"
    return None


def notes(answer: Answer) -> tuple[str, ...]:
    """Return what a person should know of a card that can work."""
    said = []
    if number(answer.get("ecc")):
        said.append(f"{answer['ecc']} uncorrected memory errors since the driver was loaded")
    if remapped(answer)[2]:
        said.append("memory rows wait to be remapped at the next reset")
    if answer.get("retiring") == 1:
        said.append("memory pages wait to be retired at the next reboot")
    return tuple(said)


def remapped(answer: Answer) -> tuple[int, int, int, int]:
    """Return the row remapper's counts: corrected, uncorrected, pending, failed."""
    rows = answer.get("remapped")
    if not isinstance(rows, list) or len(rows) != 4:
        return (0, 0, 0, 0)
    return (rows[0], rows[1], rows[2], rows[3])


def fault(where: str, error: Answer | None) -> Fault:
    if not error:
        return Fault(where, "the driver gave no answer")
    return Fault(where, error["text"], _ADVICE.get(error["kind"], ""))


def number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(value: object) -> bool | None:
    return bool(value) if value in (0, 1) else None


# ── Surroundings of a card: its NUMA node, its CPUs, its NVLinks ──────────────────────────────────

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

    The kernel is asked first (sysfs), then the driver, whose answer is the kernel's. What neither
    knows is left out. -1 for a node means that the firmware tells of none, as in most virtual
    machines.
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
