"""Detaches a run from its terminal: the supervisor in a session of its own.

parent ──fork──▶ child: setsid; once begun, standard streams away from the terminal
   ▲──────────── "begun", or its exit status where it ended before that ──┘
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gpulaunch import errors
from gpulaunch.files import regular


class DetachedSupervisor:
    """The child of the fork, which keeps the terminal for errors until the run has begun."""

    def __init__(self, channel: int, log: Path) -> None:
        self._channel = channel
        self._log = log

    def begun(self) -> None:
        _redirect(self._log)
        os.write(self._channel, b"begun")
        os.close(self._channel)


def detach(log: Path) -> int | DetachedSupervisor:
    """Fork, before any thread, lock or socket of one side; return the supervisor in the child.

    In the process that the user started: its exit status, 0 once the run is being recorded.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        # The child blocks signals at first; this side does not: Ctrl-C ends its waiting.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(write)
        with open(read, "rb") as channel:
            if channel.read():
                return errors.OK
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else errors.SOME_JOB_FAILED
    os.close(read)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return DetachedSupervisor(write, log)


def _redirect(log: Path) -> None:
    """Redirect standard streams to /dev/null and the run's file, away from the terminal."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)
