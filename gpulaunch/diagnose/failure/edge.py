"""What is read at the edge: the end of a log, the kernel's kills for want of memory, room on disks.

Reads in bounded time and memory. Every source is optional: what cannot be read is None or empty,
and decides nothing. Never raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gpulaunch.base.files import end_of

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
WINDOW = 64 * 1024
_BAR = re.compile(
    r".{0,200}?(?:\d{1,3}%\||\d+(?:/\d+|it) ?\[\d+:\d\d|[━╸╺█▏▎▍▌▋▊▉]{3}|\[[=>#.-]{8,} *\]).*"
)


class Counters(Struct, frozen=True):
    """Processes killed for want of memory: on the whole host, and in this process's cgroup.

    None where the kernel does not tell. `later - earlier` is the rise between two looks.
    """

    host: int | None = None
    cgroup: int | None = None

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(_rise(self.host, earlier.host), _rise(self.cgroup, earlier.cgroup))

    @property
    def rose(self) -> bool:
        return (self.host or 0) > 0 or (self.cgroup or 0) > 0


class Room(Struct, frozen=True):
    """The bytes that an unprivileged process may still write to the file system of `path`."""

    path: str
    free: int


def counters(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Counters:
    """`oom_kill` of /proc/vmstat (Linux 4.13), and of the cgroup's memory events (v2, else v1)."""
    return Counters(_count(proc / "vmstat", "oom_kill"), _of_cgroup(proc, cgroups))


def rooms(paths: Iterable[str]) -> tuple[Room, ...]:
    """Return the room of each file system that a path is on; nothing for an absent path."""
    found: dict[int, Room] = {}
    for path in paths:
        try:
            device, system = os.stat(path).st_dev, os.statvfs(path)
        except (OSError, ValueError):
            continue
        found.setdefault(device, Room(path, system.f_bavail * system.f_frsize))
    return tuple(found.values())


def _rise(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


def _count(path: Path, key: str) -> int | None:
    found = re.search(rf"^{key} (\d+)$", _text(path), re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def _of_cgroup(proc: Path, cgroups: Path) -> int | None:
    # v1: `4:memory:/user.slice`; v2: `0::/user.slice`. A hybrid system has both: memory is v1's.
    places = dict(re.findall(r"^\d+:([^:\n]*):(/.*)$", _text(proc / "self/cgroup"), re.MULTILINE))
    for names, place in places.items():
        if "memory" in names.split(","):
            # In a container the path is the host's, and its own group is mounted at the root.
            return _first(cgroups / "memory", place, "memory.oom_control")
    if "" in places:
        return _first(cgroups, places[""], "memory.events")
    return None


def _first(root: Path, place: str, name: str) -> int | None:
    inner = _count(root / place.lstrip("/") / name, "oom_kill")
    return inner if inner is not None else _count(root / name, "oom_kill")


def _text(path: Path) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(64 * 1024)
    except (OSError, ValueError):
        return ""


def tail(path: str | os.PathLike[str], window: int = WINDOW) -> str:
    """Return the log's last `window` bytes as text; empty where it cannot be read.

    A file cut out of its middle reads as NULs there; they are left out.
    """
    try:
        data, cut = end_of(path, window)
    except (OSError, ValueError):
        return ""
    return _whole_lines(data, cut).replace(b"\0", b"").decode("utf-8", "replace")


def _whole_lines(data: bytes, cut: bool) -> bytes:
    """Without the rest of a line whose beginning is not there, unless there is nothing else."""
    if not cut:
        return data
    _, newline, rest = data.partition(b"\n")
    return rest if newline and rest.strip() else data


def is_bar(line: str) -> bool:
    """Tell whether the line is a state of a progress bar (tqdm, rich, keras, pip and their kin)."""
    return _BAR.fullmatch(line) is not None
