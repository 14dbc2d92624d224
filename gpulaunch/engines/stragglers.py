"""Processes that outlived all their keepers: found by a variable in their environment, and killed.

It takes SIGKILL to supervisor, both keepers and nursery at once to leave any. What has cleared its
environment since, or belongs to another user, is not found.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

PATIENCE = 5.0


def kill_stragglers(run_id: str) -> int:
    """Kill every process of this run; returns how many there were. Waits for their end."""
    marker = f"GPULAUNCH_RUN_ID={run_id}".encode()
    count = 0
    # Again until none is left: one that is killed may have forked a moment before.
    while found := _find(marker):
        count += len(found)
        _kill(found, marker)
        if not _all_gone(found):
            break
    return count


def _find(marker: bytes) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_ours(name, marker)]


def _is_ours(name: str | int, marker: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return marker in file.read().split(b"\0") and int(name) != os.getpid()
    except OSError:
        return False


def _kill(pids: list[int], marker: bytes) -> None:
    for pid in pids:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # The number may have passed on to a stranger; the handle cannot.
                if _is_ours(pid, marker):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _all_gone(pids: list[int]) -> bool:
    """Wait for their end; False where one stays (asleep in the kernel, not ours to kill)."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(PATIENCE * 1000):
                return False
        finally:
            os.close(handle)
    return True
