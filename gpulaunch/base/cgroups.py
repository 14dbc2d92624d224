"""The kernel's control groups (cgroups): what memory this process may use, and limits of jobs.

    place ── gpulaunch-RUN ─┬─ job-fold-1.1 ◀─ the job enters it before its program starts
                            └─ job-fold-2.1

Each job with a limit has a cgroup of its own, where this user may make one. The kernel keeps the
limit, and kills in that cgroup alone. The keepers stay outside, and end a job as ever: nothing
rests on cgroups but the limit. What a killed launcher leaves is empty once its keepers are done,
and is removed by the next run that makes cgroups in the same place. Looking never raises: what
cannot be read limits nothing.

Sources: cgroups(7); the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
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


# ── Limits of jobs ────────────────────────────────────────────────────────────────────────────────

PREFIX = "gpulaunch-"
PROCS = "cgroup.procs"
"""A cgroup's list of processes: who writes 0 into it, enters."""
_TRIAL_TIMEOUT = 10.0
_ENTER = 'echo 0 > "$0"'
_BY_SYSTEMD = (
    "start gpulaunch below systemd's manager of your services, whose cgroups are yours:"
    " `systemd-run --user --scope gpulaunch run ...`"
)
_BY_ADMIN = (
    "have a writable cgroup, or one with systemd's Delegate=yes; memory: reserves all the same"
)


class Unlimited(Struct, frozen=True):
    """No job's memory can be limited here: why, and what a person can do."""

    why: str
    advice: str = _BY_ADMIN


class UsedMemory(Struct, frozen=True):
    """What a cgroup tells of its memory: its limit, the most that was used, None where not told.

    `kills`: processes that the kernel killed there for want of memory.
    """

    limit: int
    peak: int | None
    kills: int


def place_of(hierarchy: Hierarchy | None) -> Path | Unlimited:
    """Return the directory below which this user may make cgroups that limit memory.

    In the second version only leaves have processes, so it is one above this process's own.
    """
    if hierarchy is None:
        return Unlimited("no cgroups that limit memory are mounted")
    if hierarchy.version == 1:
        if os.access(hierarchy.own, os.W_OK):
            return hierarchy.own
        return Unlimited(f"{hierarchy.own} is not this user's to write")
    for place in hierarchy.upwards:
        # Who moves a process has to be allowed to do so in the nearest cgroup above both places.
        ours = os.access(place, os.W_OK) and os.access(place / PROCS, os.W_OK)
        if ours and _hands_on_memory(place, may_change=place != hierarchy.own):
            return place
        if read(place / "memory.max").strip() not in ("", "max"):
            return Unlimited(f"{place} limits gpulaunch itself, and jobs are not to evade that")
    session = "/user.slice/" in f"{hierarchy.own}/" and "/user@" not in str(hierarchy.own)
    why = f"no cgroup above {hierarchy.own} is this user's to write"
    return Unlimited(why, _BY_SYSTEMD) if session else Unlimited(why)


def _hands_on_memory(place: Path, may_change: bool) -> bool:
    """Tell whether cgroups below may limit memory; see to it where the place only has to say so."""
    control = place / "cgroup.subtree_control"
    if "memory" in read(control).split():
        return True
    if not may_change or "memory" not in read(place / "cgroup.controllers").split():
        return False
    return _wrote(control, "+memory")


class RunCgroups:
    """The cgroups of one run, or of one `exec`: a directory, and one below it for each process."""

    def __init__(self, place: Path, name: str, version: int) -> None:
        self.directory = place / f"{PREFIX}{name}"
        self._version = version
        self._made: dict[str, int] = {}

    @classmethod
    def open(
        cls, name: str, live: Collection[str] = (), hierarchy: Hierarchy | None = None
    ) -> RunCgroups | Unlimited:
        """Make the run's directory, and try it with a process; return why that cannot be, if so.

        `live`: names that are in use; the empty directories of all others are removed.
        """
        hierarchy = hierarchy or find()
        place = place_of(hierarchy)
        if isinstance(place, Unlimited) or hierarchy is None:
            return place if isinstance(place, Unlimited) else Unlimited("")
        remove_left(place, {name, *live})
        made = cls(place, name, hierarchy.version)
        try:
            made.directory.mkdir(mode=0o755, exist_ok=True)
            if hierarchy.version == 2:
                (made.directory / "cgroup.subtree_control").write_text("+memory")
            made._try()
        except (OSError, subprocess.SubprocessError) as error:
            made.close()
            return Unlimited(f"{made.directory} cannot be used: {_said(error)}")
        return made

    def _try(self) -> None:
        self.make("trial", 64 << 20)
        line = ["sh", "-c", _ENTER, self.procs("trial")]
        subprocess.run(line, check=True, capture_output=True, timeout=_TRIAL_TIMEOUT)
        self.remove("trial")

    def procs(self, name: str) -> str:
        """Return the file by which a process enters the cgroup."""
        return str(self._of(name) / PROCS)

    def make(self, name: str, memory: int) -> None:
        """Make a cgroup whose processes may use so many bytes together, swap included.

        Raises OSError.
        """
        directory = self._of(name)
        directory.mkdir(mode=0o755, exist_ok=True)
        self._made[name] = memory
        if self._version == 1:
            _limit(directory, memory, "memory.limit_in_bytes")
            _limit(directory, memory, "memory.memsw.limit_in_bytes", optional=True)
        else:
            _limit(directory, memory, "memory.max")
            _limit(directory, 0, "memory.swap.max", optional=True)
            # The job as a whole: one that lost a part of itself may hang for ever.
            _limit(directory, 1, "memory.oom.group", optional=True)

    def used(self, name: str) -> UsedMemory | None:
        """Return what the cgroup tells of its memory; None for one that was not made."""
        if name not in self._made:
            return None
        directory, first = self._of(name), self._version == 1
        peak = read(directory / ("memory.max_usage_in_bytes" if first else "memory.peak")).strip()
        events = read(directory / ("memory.oom_control" if first else "memory.events"))
        counts = dict(line.split(" ", 1) for line in events.splitlines() if " " in line)
        kills = int(counts.get("oom_kill", "0"))
        return UsedMemory(self._made[name], int(peak) if peak.isdecimal() else None, kills)

    def remove(self, name: str) -> None:
        """Remove the cgroup, unless a process is left in it."""
        _remove(self._of(name))
        self._made.pop(name, None)

    def close(self) -> None:
        """Remove the run's directory and what is below it, where no process is left there."""
        _remove(self.directory)

    def _of(self, name: str) -> Path:
        return self.directory / f"job-{name}"  # a name of the kernel's own files has no such begin


def left_in(place: Path, live: Collection[str]) -> list[Path]:
    """Return the directories of runs that are not `live`."""
    return [
        path
        for path in _directories(place, PREFIX)
        if (name := path.name[len(PREFIX) :]) not in live and not _lives(name)
    ]


def _lives(name: str) -> bool:
    """Tell whether this is named by a process that lives, as that of an `exec` is."""
    what, _, pid = name.partition("-")
    return what in ("exec", "doctor") and os.path.exists(f"/proc/{pid}")


def remove_left(place: Path, live: Collection[str]) -> None:
    """Remove the directories of runs that are not `live`, where no process is left there."""
    for path in left_in(place, live):
        _remove(path)


def _remove(directory: Path) -> None:
    for path in _directories(directory):
        _remove(path)  # a job may have had some of its own
    with suppress(OSError):
        directory.rmdir()


def _directories(place: Path, prefix: str = "") -> Iterator[Path]:
    with suppress(OSError):
        yield from [p for p in place.iterdir() if p.name.startswith(prefix) and p.is_dir()]


def _limit(directory: Path, value: int, name: str, optional: bool = False) -> None:
    """Write a limit. Raises OSError, unless it is optional: not every kernel has that file."""
    try:
        with open(directory / name, "r+") as file:
            file.write(str(value))
    except OSError:
        if not optional:
            raise


def _wrote(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _said(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return error.stderr.decode(errors="replace").strip() or "no process may enter it"
    return getattr(error, "strerror", None) or str(error)
