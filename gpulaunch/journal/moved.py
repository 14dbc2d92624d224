"""Finds files whose folder was renamed, moved or copied together with a run.

/data/proj/gpulaunch-runs/X      where the run was
/home/ann/p2/gpulaunch-runs/X    where it is: /data/proj has become /home/ann/p2,
/data/proj/jobs.yaml             and this is /home/ann/p2/jobs.yaml
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RUNS = "gpulaunch-runs"


def follow(path: str, was: str, now: str) -> str:
    """Return where a file is after its run moved from `was` to `now`; unchanged if only there."""
    if was == now or not path:
        return path
    old, new = _roots(Path(was), Path(now))
    for each in (path, os.path.realpath(path)):
        with suppress(ValueError):
            moved = new / Path(each).relative_to(old)
            if moved.exists() or not os.path.exists(path):
                return str(moved)
    return path


def usual_place(cwd: str, now: str) -> str:
    """Return where a run that was begun in `cwd` must have been, where no manifest says it."""
    runs, name = os.path.split(now)
    if os.path.basename(runs) != RUNS:
        return now
    return os.path.join(os.path.realpath(cwd), RUNS, name)


def _roots(was: Path, now: Path) -> tuple[Path, Path]:
    """Return the folder's old and new path: both paths without their common end."""
    while was.name and was.name == now.name:
        was, now = was.parent, now.parent
    return was, now
