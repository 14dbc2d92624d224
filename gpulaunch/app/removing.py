"""Removes what `cleaning` has found: under each run's lock, and gone in one step.

    for each run: its lock taken ─▶ judged anew ─▶ gone by a rename ─▶ lock given back ─▶ deleted

The lock is what `resume` takes: nobody goes on with a run while something of it goes, and one that
lives is left alone. What is gone by its rename is never seen half: who is killed leaves a hidden
directory, which the next look finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from gpulaunch.app.cleaning import CleanPlan, Removable, RunLook, judged, told_error
from gpulaunch.control.server import ControlServer
from gpulaunch.errors import GpulaunchError
from gpulaunch.journal import finding
from gpulaunch.journal.append import claimed
from gpulaunch.journal.finding import typed
from gpulaunch.journal.liveness import own_id, refuse_elsewhere
from gpulaunch.journal.removal import delete, vanish, weigh
from gpulaunch.journal.rundir import RunDir

Step: TypeAlias = Callable[[str], object]


class Removed(Struct, frozen=True):
    """What became of a directory that was to go: `freed` bytes; `left`: why it is there, if so."""

    target: Removable
    freed: int = 0
    left: str = ""


def carry_out(plan: CleanPlan, step: Step = lambda name: None) -> Iterator[Removed]:
    """Remove what the plan has, and yield what became of each directory.

    A run that lives by now, or of which less may go, is left so. `step` is called with the name of
    each step that was done.
    """
    _mend_latest(plan)
    for target in plan.leftovers:
        yield _deleted(target, target.path)
    for one in plan.runs:
        yield from _cleaned(one, plan, step)


def _mend_latest(plan: CleanPlan) -> None:
    for home in plan.homes:
        finding.mend_latest(home)


def _cleaned(look: RunLook, plan: CleanPlan, step: Step) -> Iterator[Removed]:
    """Remove what may still go of a run, and yield what became of each directory."""
    wanted = [target for target in look.targets if not target.obstacle]
    yield from (Removed(t, left=t.obstacle) for t in look.targets if t.obstacle)
    if not wanted:
        return
    gone: list[tuple[Removable, Path]] = []
    kept: dict[Path, Removed] = {}
    try:
        with _held(look.run):
            now = judged(look.run, plan.options, look.named)
            may_go = {target.path for target in now.targets}
            for target in wanted:
                if target.path not in may_go:
                    kept[target.path] = _kept(target, now.left or "it is needed by now")
                    continue
                try:
                    gone.append((target, vanish(target.path, step)))
                except OSError as error:
                    why = f"{typed(target.path)} cannot be removed: {error.strerror}"
                    kept[target.path] = _kept(target, why)
            if gone and plan.options.whole:
                _mend_latest(plan)
                step("mended")
    except (GpulaunchError, OSError) as error:
        done = {target.path for target, _ in gone} | kept.keys()
        kept |= {t.path: _kept(t, told_error(error)) for t in wanted if t.path not in done}
    yield from kept.values()
    for target, hidden in gone:
        yield _deleted(target, hidden)
        step("deleted")


def _kept(target: Removable, why: str) -> Removed:
    """Return that it is left, and why, unless another clean has removed it meanwhile."""
    return Removed(target, left=why if os.path.lexists(target.path) else "")


@contextmanager
def _held(run: RunDir) -> Iterator[None]:
    """Lock a run against `resume`. Raises GpulaunchError where another process has it."""
    refuse_elsewhere(run)
    with ControlServer(own_id(run)), claimed(run):
        yield


def _deleted(target: Removable, path: Path) -> Removed:
    """Delete what has vanished already; return what that has freed."""
    if target.obstacle:
        return Removed(target, left=target.obstacle)
    if left := delete(path):
        return Removed(target, max(0, target.bytes - weigh(str(path)).bytes), left)
    return Removed(target, target.bytes)
