"""Holds leases beside the command of `exec`, as native/lease.c does, where that cannot run.

The program: `lease PID MARK FD ...`. It holds the descriptors until the process with that PID, its
parent, has ended, and every process that has MARK, a NAME=VALUE, in its environment.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from .proc import stat_fields

LOOK = 1.0
"""Seconds between two looks at the processes."""
_START = 22 - 3  # the field of /proc/PID/stat, among those from the state on


def main() -> None:
    """Leave a process of its own behind that holds the leases, and exit."""
    command, mark = int(sys.argv[1]), os.fsencode(sys.argv[2])
    kept = {int(fd) for fd in sys.argv[3:]}
    start = _start_of(command)
    if start is None or os.getppid() != command:
        sys.exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:  # of the listing itself
                pass
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    while _start_of(command) == start or _any_with(mark):
        time.sleep(LOOK)


def _start_of(pid: int) -> bytes | None:
    """Return when the process was started; None once it has ended."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return fields[_START] if fields[0] not in (b"Z", b"X") else None


def _any_with(mark: bytes) -> bool:
    """Tell whether a process has this variable in the environment that it was executed with."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        return True
            except OSError:  # another user's, or gone
                pass
    return False
