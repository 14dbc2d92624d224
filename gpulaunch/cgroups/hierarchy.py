"""Where this process is among the kernel's cgroups, and how much memory that leaves it.

Looks only, and never raises: what cannot be read limits nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")
_CACHE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Hierarchy(Struct, frozen=True):
    """The hierarchy that limits memory: its version, where it is mounted, and this process's own.

    A machine that has both versions limits memory by the first.
    """

    version: int
    mount: Path
    own: Path

    @property
    def upwards(self) -> Iterator[Path]:
        """Yield this process's cgroup and those above it, as far as they are to be seen."""
        yield self.own
        if self.own != self.mount:
            yield from (above for above in self.own.parents if above.is_relative_to(self.mount))


def find(proc: Path = _PROC) -> Hierarchy | None:
    """Return the hierarchy that limits memory; None where there is none."""
    places = dict(re.findall(r"^\d+:([^:\n]*):(/.*)$", read(proc / "self/cgroup"), re.MULTILINE))
    unified: Hierarchy | None = None
    for kind, root, mount, options in _mounts(proc):
        if kind == "cgroup" and "memory" in options:
            mine = next((at for names, at in places.items() if "memory" in names.split(",")), None)
            if mine is not None:
                return Hierarchy(1, mount, _below(mount, root, mine))
        elif kind == "cgroup2" and "" in places and unified is None:
            own = _below(mount, root, places[""])
            if "memory" in read(own / "cgroup.controllers").split():
                unified = Hierarchy(2, mount, own)
    return unified


@cache
def memory_of_machine(proc: Path = _PROC) -> int | None:
    """Return the bytes that this process's like may use: all of the machine's, or a cgroup's limit.

    None where the kernel does not tell.
    """
    total = of_meminfo("MemTotal", proc)
    limits = [] if total is None else [total]
    limits += [limit for limit, _ in _limits(proc)]
    return min(limits, default=None)


def memory_available(proc: Path = _PROC) -> int | None:
    """Return the bytes that a new program may use now: the machine's, or what a cgroup leaves.

    None where the kernel does not tell.
    """
    available = of_meminfo("MemAvailable", proc)
    left = [] if available is None else [available]
    left += [max(0, limit - _kept(place)) for limit, place in _limits(proc)]
    return min(left, default=None)


def of_meminfo(field: str, proc: Path = _PROC) -> int | None:
    """Return a field of /proc/meminfo, in bytes; None where the kernel does not tell it."""
    found = re.search(rf"^{field}: +(\d+) kB$", read(proc / "meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _limits(proc: Path) -> Iterator[tuple[int, Path]]:
    """Yield each limit of memory, in bytes, that holds for this process, with its cgroup."""
    hierarchy = find(proc)
    if hierarchy is not None:
        name = "memory.limit_in_bytes" if hierarchy.version == 1 else "memory.max"
        for place in hierarchy.upwards:
            text = read(place / name).strip()
            if text.isdecimal():  # else it is `max`
                yield int(text), place


def _kept(place: Path) -> int:
    """Return the bytes that a cgroup uses and that the kernel would not drop for others."""
    used = read(place / "memory.current").strip() or read(place / "memory.usage_in_bytes").strip()
    cache = _CACHE.search(read(place / "memory.stat"))
    return (int(used) if used.isdecimal() else 0) - (int(cache[1]) if cache else 0)


def read(path: Path) -> str:
    """Return the text of a small file of the kernel's; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):
        return ""


def _mounts(proc: Path) -> Iterator[tuple[str, str, Path, list[str]]]:
    """Yield kind, root, place and options of each mount (proc_pid_mountinfo(5))."""
    for line in read(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) >= 6 and len(rest) >= 3:
            root, place = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), f) for f in fields[3:5])
            yield rest[0], root, Path(place), rest[2].split(",")


def _below(mount: Path, root: str, place: str) -> Path:
    """Return where a cgroup is to be seen; the mount itself where it is not, as in a container."""
    inside = root == "/" or place == root or place.startswith(root + "/")
    found = mount / os.path.relpath(place, root) if inside else mount
    return found if found.is_dir() else mount
