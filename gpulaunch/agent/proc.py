"""What /proc says of processes (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable


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


def tracer_of(pid: int) -> int:
    """Return the process that traces this one (a debugger, strace); 0 if none is known."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().split(b"\n")
        return next(int(line.split()[1]) for line in lines if line.startswith(b"TracerPid:"))
    except (OSError, StopIteration, ValueError):
        return 0


def named_unkillable(pids: Iterable[int]) -> str:
    """Return the processes for people, each with what traces it: that keeps a dead one there."""
    return "process " + ", ".join(map(_with_tracer, pids))


def _with_tracer(pid: int) -> str:
    tracer = tracer_of(pid)
    if not tracer:
        return str(pid)
    try:
        with open(f"/proc/{tracer}/comm", encoding="utf-8", errors="replace") as file:
            name = "".join(c if c.isprintable() else "?" for c in file.read().strip())
    except OSError:
        name = "a process"
    return f"{pid} (traced by {name}, pid {tracer})"


def is_frozen(pid: int) -> bool:
    """Tell whether a control group that is frozen has the process; False if unknown.

    Looks at both versions of such groups, where systems and containers mount them.
    """
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            rows = [row.rstrip(b"\n").split(b":", 2) for row in file]
    except OSError:
        return False
    for _, controllers, group in rows:
        if controllers == b"freezer":
            if _holds(b"/sys/fs/cgroup/freezer%s/freezer.state" % group, b"FROZEN"):
                return True
        elif not controllers:
            for mount in (b"/sys/fs/cgroup", b"/sys/fs/cgroup/unified"):
                if _holds(b"%s%s/cgroup.events" % (mount, group), b"frozen 1"):
                    return True
    return False


def is_suspended(pid: int) -> bool:
    """Tell whether a process does nothing until somebody lets it go on; False if unknown."""
    return is_stopped(pid) or is_frozen(pid)


def suspension(pid: int) -> str:
    """Return how a process is suspended, "stopped" or "frozen"; empty if it is not, or unknown."""
    if is_frozen(pid):
        return "frozen"
    return "stopped" if is_stopped(pid) else ""


def hindrance(pid: int) -> str:
    """Return what keeps a process from doing anything, in a word or two; empty for nothing."""
    stuck = state_of(pid) == "D"
    return suspension(pid) or ("stuck in the kernel" if stuck else "")


def _holds(path: bytes, line: bytes) -> bool:
    """Tell whether a small file is there and has this line."""
    try:
        with open(path, "rb") as file:
            return line in file.read().splitlines()
    except OSError:
        return False


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


def own_environment() -> dict[bytes, bytes]:
    """Return this process's environment, less the LC_CTYPE that an interpreter adds by itself.

    It does so in the C locale (PEP 538).
    """
    environ = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = b"\0" + file.read()
    except OSError:
        return environ
    if b"\0LC_CTYPE=" not in given:
        environ.pop(b"LC_CTYPE", None)
    return environ
