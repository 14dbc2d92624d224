"""What an attempt's keeper knows of its processes without being asked: /proc, standard library.

The monitor is the parent of an attempt's main process, and of whatever loses its own parent:
what descends from it is the attempt's tree, however it daemonised. It runs one attempt at a time
and waits for all of them, so the kernel adds the CPU time of those that ended to the keeper's own
record: that is exact, to the kernel's 10 ms, and still there when the last of them is gone. Not in
it are processes whose parent ignores SIGCHLD, of which the kernel keeps no account; in it are the
keeper's own looks at logs and outputs, a few ms each.
"""

from __future__ import annotations

import os

from msgspec import Struct

from gpulaunch.agent.proc import children_of, stat_fields

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM, _START = 1, 11, 12, 13, 14, 19
"""Fields of /proc/PID/stat, from the state on."""


class Keeper(Struct, frozen=True):
    """`start` in clock ticks since boot, with the PID its identity. `spent`: the CPU seconds of
    what it had waited for when the attempt began, and of a worker that lived already."""

    pid: int
    start: int
    spent: float


def keeper_of(main: int, pid: int, goes_on: bool = False) -> Keeper | None:
    """Return the keeper of an attempt that has just begun; None if its main process is gone.

    `main` and `pid` are the PIDs of its main process and of the keeper, as the keeper says them.
    `goes_on`: the main process is a worker that has run others before.
    """
    try:
        if int(stat_fields(main)[_PARENT]) != pid:  # the keeper is gone: another inherited it
            return None
        fields = stat_fields(pid)
    except (OSError, IndexError):
        return None
    before = _live(pid) if goes_on else 0.0
    return Keeper(pid, int(fields[_START]), _spent(fields) + before)


def spent_by_all(keeper: Keeper) -> float | None:
    """Return the attempt's CPU seconds, its living processes included; None: the keeper is gone.

    For the end of an attempt whose worker lives on.
    """
    waited = spent_since(keeper)
    return None if waited is None else max(0.0, waited + _live(keeper.pid))


def spent_since(keeper: Keeper) -> float | None:
    """Return the CPU seconds of processes that ended since it began; None: the keeper is gone.

    Negative where a worker lives that had spent more before: its own count makes up for it.
    """
    try:
        fields = stat_fields(keeper.pid)
        if int(fields[_START]) != keeper.start:
            return None
    except (OSError, IndexError):
        return None
    return _spent(fields) - keeper.spent


def _live(pid: int) -> float:
    """Return the CPU seconds of all that live below a process, and of what they waited for."""
    total, todo = 0.0, children_of(pid)
    while todo:
        pid = todo.pop()
        try:
            fields = stat_fields(pid)
        except (OSError, IndexError):
            continue
        total += cpu_of(fields) + _spent(fields)
        todo += children_of(pid)
    return total


def cpu_of(fields: list[bytes]) -> float:
    """Return a process's own CPU seconds, from its /proc/PID/stat from the state on."""
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def _spent(fields: list[bytes]) -> float:
    return (int(fields[_CHILDREN_USER]) + int(fields[_CHILDREN_SYSTEM])) / _TICKS
