"""Whether the disk of runs is nearly full, and what would make room there.

Nothing is measured before a disk is nearly full, and then no more than a bound.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.superseded import superseded
from gpulaunch.gpus.machine import DoctorFinding
from gpulaunch.journal.finding import runs, typed
from gpulaunch.journal.removal import Weight, weigh
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import shell_word, size

NEARLY_FULL = 0.1
"""The part of a disk below which what is free of it is little."""
LARGE = 1 << 30
"""Bytes from which on a run's directory is worth a line."""
LOOK_ENTRIES = 100_000
LOOK_SECONDS = 1.0
"""Files that are looked at, and seconds for which they are, at most, once a disk is nearly full."""

Disk = Callable[[str], os.statvfs_result]


class DiskRoom(Struct, frozen=True):
    """How much of a disk is free, in bytes and as a part of it."""

    free: int
    part: float

    def __str__(self) -> str:
        return f"{size(self.free)} ({self.part:.0%})".replace("%", " %")


def short_room(place: Path, disk: Disk = os.statvfs) -> DiskRoom | None:
    """Return what is free of the disk, where that is little; None where it is not, or unknown."""
    with suppress(OSError):
        found = disk(str(place))
        if found.f_blocks and found.f_bavail < NEARLY_FULL * found.f_blocks:
            return DiskRoom(found.f_bavail * found.f_frsize, found.f_bavail / found.f_blocks)
    return None


def short_room_told(run: RunDir, ledger: Ledger, disk: Disk = os.statvfs) -> str:
    """Return the line at a run's end on a disk that is nearly full; else "".

    What the run takes, what `gpulaunch clean` would free, and the command.
    """
    room = short_room(run.path, disk)
    if room is None:
        return ""
    whole = weigh(str(run.path), LOOK_ENTRIES, LOOK_SECONDS)
    if whole.bytes < LARGE:
        return ""
    left = _superseded(run, ledger)
    where = shell_word(typed(run.path))
    if left.bytes:
        mend = f"gpulaunch clean {where} would free {_told(left)}"
    else:
        mend = "old runs go with gpulaunch clean --runs --older 30d"
    return f"the disk is nearly full, {room} are left: this run takes {_told(whole)}; {mend}"


def _superseded(run: RunDir, ledger: Ledger) -> Weight:
    """Return what the superseded attempts have left, as far as it is looked at."""
    if run.outs.is_symlink():
        return Weight(0)  # it is on another disk, and none of it goes
    total, end = 0, time.monotonic() + LOOK_SECONDS
    for attempt in superseded(ledger):
        if (seconds := end - time.monotonic()) <= 0:
            return Weight(total, whole=False)
        total += weigh(run.out_dir(attempt), LOOK_ENTRIES, seconds).bytes
    return Weight(total)


def _told(weight: Weight) -> str:
    return f"{'' if weight.whole else 'at least '}{size(weight.bytes)}"


def finding(environ: Mapping[str, str], disk: Disk = os.statvfs) -> DoctorFinding | None:
    """Return what `gpulaunch doctor` says of the disk with the working directory's runs."""
    with suppress(OSError):
        if (here := runs(Path.cwd())) and (room := short_room(here[0].path.parent, disk)):
            where = typed(here[0].path.parent)
            what = f"the disk with {where} is nearly full: {room} are left"
            advice = "gpulaunch clean --dry-run, or gpulaunch clean --runs --older 30d --dry-run"
            return DoctorFinding("warning", what, f"{advice}, says what could go")
    return None
