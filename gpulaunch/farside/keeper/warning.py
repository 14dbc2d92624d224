"""Which processes of a job are sent its warning: those that take the signal.

A signal that a process neither handles nor waits for would end it. So the main process gets the
warning if it takes that signal, else its nearest descendants that do: a shell that waits for its
command, `torchrun` and `uv run` hand nothing on. Below one that takes it nobody gets it as well:
forked helpers inherit handlers. Nothing is sent where no process takes it.
"""

from __future__ import annotations

import os
import signal

from ..proc import children_of

ALWAYS = 1 << (signal.SIGVTALRM - 1)
"""Handled only by what handles all signals, as bash with a trap on EXIT, which they end."""


def warn(pid: int, number: int) -> int:
    """Send the signal where it is taken, from the job's main process on; return to how many."""
    return _warn(pid, number, None)


def _warn(pid: int, number: int, parent: int | None) -> int:
    held = _held(pid) if parent is not None else None
    try:
        caught, blocked = _taken(pid, parent)
        takes = (caught | blocked) >> (number - 1) & 1
        general = caught & ALWAYS and number != signal.SIGVTALRM
        if takes and not general:
            return _send(pid, held, number)
        below = sum(_warn(child, number, pid) for child in children_of(pid))
        return below if below or not takes else _send(pid, held, number)
    finally:
        if held is not None:
            os.close(held)


def _held(pid: int) -> int | None:
    """Return a descriptor of the process, whose number cannot become another's; None: too old."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):  # it has ended; Python 3.8, Linux before 5.3
        return None


def _taken(pid: int, parent: int | None) -> tuple[int, int]:
    """Return the signals that the process handles, and those that it blocks to wait for them.

    None for one that has ended, or has another parent: it is another process by now.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file if b":" in line)
        if parent is not None and int(fields[b"PPid"]) != parent:
            return 0, 0
        return int(fields[b"SigCgt"], 16), int(fields[b"SigBlk"], 16)
    except (OSError, KeyError, ValueError):
        return 0, 0


def _send(pid: int, held: int | None, number: int) -> int:
    try:
        if held is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(held, number)
    except OSError:  # it has ended, or is another user's
        return 0
    return 1
