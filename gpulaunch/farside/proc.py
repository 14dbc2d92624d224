"""What /proc says of processes (proc(5))."""

from __future__ import annotations

import os


def stat_fields(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, the third, after the last `)`.

    The process's name before the state may hold anything, brackets too. Raises OSError.
    """
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096).rpartition(b")")[2].split()
    finally:
        os.close(file)


def state_of(pid: int) -> str:
    """Return the process's state as one letter; empty if it cannot be read."""
    try:
        return stat_fields(pid)[0].decode()
    except (OSError, IndexError):
        return ""


def is_stopped(pid: int) -> bool:
    """Tell whether a process is suspended, by job control or a debugger; False if unknown."""
    return state_of(pid) in ("T", "t")


def children_of(pid: int) -> list[int]:
    """Return the children of all the process's threads, as far as the kernel shows them."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(number) for number in file.read().split()]
    except OSError:
        return found  # it has ended, or a kernel without CONFIG_PROC_CHILDREN
    return found
