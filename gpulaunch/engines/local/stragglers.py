"""Kills processes that outlived all their keepers, found by a variable in their environment.

There are some only where supervisor, both keepers and spawner were killed at once. A process that
has cleared its environment since, or belongs to another user, is not found.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.context import RunContext
from gpulaunch.farside.proc import stat_fields
from gpulaunch.gpus.names import UNKNOWN, have_open, holder_of, listening

KILL_TIMEOUT = 5.0
"""Seconds to wait for the end of a killed process."""
ROUNDS = 50
"""Searches at most, each for what killed processes had forked meanwhile."""


def end_stragglers(context: RunContext, attempt: AttemptId) -> None:
    """Kill the attempt's processes, which live on where all keepers were killed at once; warn."""
    markers = {
        f"GPULAUNCH_RUN_ID={context.run_id}".encode(),
        b"GPULAUNCH_JOB=" + os.fsencode(attempt.job),
        b"GPULAUNCH_ATTEMPT=%d" % attempt.number,
    }
    if count := kill_marked(markers):
        context.warn(attempt.job, f"{count} processes had outlived their keepers: killed")


def alive_without(run: str) -> bool:
    """Tell whether processes of the run's jobs live on, or keepers, after their supervisor's end.

    Its keepers end a job by themselves, which takes its grace.
    """
    keepers = map(holder_of, listening(f"keeper/{run}/"))
    if any(one is not None and one.uid in (os.geteuid(), UNKNOWN.uid) for one in keepers):
        return True
    return bool(_find({f"GPULAUNCH_RUN_ID={run}".encode()}))


def left_below(name: str) -> list[int]:
    """Return the processes below the keepers that hold a name, without the keepers themselves.

    Reads no process's memory: that of a process which is stuck in the kernel may block the reader.
    """
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid))}
    keepers = have_open(name, parents)
    below = {
        pid
        for pid in parents
        if pid not in keepers and not keepers.isdisjoint(_ancestors(pid, parents))
    }
    return sorted(below)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(stat_fields(pid)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def kill_marked(markers: set[bytes]) -> int:
    """Kill all processes with these variables; wait for their end and return how many.

    `markers`: each as `NAME=value`.
    """
    count = 0
    # Repeated until none is found: a process may fork just before it is killed.
    for _ in range(ROUNDS):
        found = _find(markers)
        if not found:
            break
        count += len(found)
        _kill(found, markers)
        if not _all_gone(found):
            break
    return count


def _find(markers: set[bytes]) -> list[int]:
    return [pid for pid in _pids() if _is_ours(pid, markers)]


def _is_ours(pid: int, markers: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return markers.issubset(file.read().split(b"\0")) and pid != os.getpid()
    except OSError:
        return False


def _kill(pids: list[int], markers: set[bytes]) -> None:
    for pid in pids:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # The pid may be another process's by now; the handle cannot be.
                if _is_ours(pid, markers):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _all_gone(pids: list[int]) -> bool:
    """Wait for the end of these processes; False where one stays (as one stuck in the kernel)."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(KILL_TIMEOUT * 1000):
                return False
        finally:
            os.close(handle)
    return True
