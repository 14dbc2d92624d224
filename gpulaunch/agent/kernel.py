"""What is asked of the kernel: about processes, signals and descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable

from .proc import stat_fields

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
# Keepers block all signals but these. They block rather than ignore them, so that one call gives a
# job its defaults, and a TERM that comes between fork and exec stays pending instead of being lost.
HEARD_SIGNALS = {
    signal.SIGCHLD, signal.SIGCONT,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP,
}  # fmt: skip
SCARCE = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}

libc = ctypes.CDLL(None, use_errno=True)


LEASES_FROM = 100  # descriptor numbers from here on: programs do not use them themselves


def prctl(option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), 0):
        raise OSError(ctypes.get_errno(), "prctl")


def become_keeper(title: str, kept: set[int]) -> None:
    """Turn this process, just executed, into one that adopts orphans and keeps these files alone.

    It has a job's signal handlers, the defaults, whatever it inherited.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - HEARD_SIGNALS)
    rename(title)
    close_all_but({0, 1, 2} | kept)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def rename(title: str) -> None:
    """Change this process's name and command line in `ps`.

    The original command line holds the package's path, and `pkill -f gpulaunch` must not kill
    supervisor and keepers together.
    """
    name = title.encode()
    libc.prctl(PR_SET_NAME, ctypes.c_char_p(name[:15]), 0, 0, 0)
    start, end = (int(number) for number in stat_fields("self")[45:47])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name, min(len(name), end - start - 1))


def started_at(pid: int) -> int:
    """Return the process's start in clock ticks since boot, which with its id identifies it; or -1.

    -1: there is no such process.
    """
    try:
        return int(stat_fields(pid)[19])
    except OSError:
        return -1


def fork_patiently(fork: Callable[[], int]) -> int:
    """Fork, retrying for two seconds while processes are scarce. Raises OSError after that."""
    pause = 0.01
    while True:
        try:
            return fork()
        except OSError as problem:
            if problem.errno not in SCARCE or pause > 1.0:
                raise
        time.sleep(pause)
        pause *= 2


def children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:
            return [int(number) for number in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == me]


def _parent(name: str) -> int:
    try:
        return int(stat_fields(name)[1])
    except OSError:
        return -1


def has_ended(pid: int) -> bool:
    """Tell whether a direct child has ended, reaped or not."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def send_signal(pid: int, number: int) -> bool:
    """Signal a direct child, or (negative) the group of one that is not reaped yet.

    Returns False if no process got it: there is no such group yet, or it belongs to another user
    by now (setuid).
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


class Waker:
    """A descriptor that becomes readable when a child ends, for `poll`."""

    def __init__(self) -> None:
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def clear(self) -> None:
        try:
            while len(os.read(self.fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass


def lift(fd: int) -> int:
    """Move an open file to a descriptor number that programs do not use themselves; return it."""
    high = copy_high(fd)
    os.close(fd)
    return high


def copy_high(fd: int) -> int:
    """Copy a descriptor to LEASES_FROM or above; with a low limit, to the upper half of it."""
    allowed = os.sysconf("SC_OPEN_MAX")  # the soft limit (getconf(3)); -1: there is none
    least = min(LEASES_FROM, allowed // 2) if allowed >= 0 else LEASES_FROM
    copy: int = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    return copy
