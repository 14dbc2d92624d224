"""Limits of jobs' memory, each by a cgroup of its own, where this user may make one.

    place ── gpulaunch-RUN ─┬─ job-fold-1.1 ◀─ the job enters it before its program starts
                            └─ job-fold-2.1

A limit is kept by the kernel, which kills in that cgroup alone. The keepers stay outside, and end a
job as ever: nothing rests on cgroups but the limit. What a killed launcher leaves is empty once its
keepers are done, and is removed by the next run that makes cgroups in the same place.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gpulaunch.cgroups.hierarchy import Hierarchy, find, read

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
