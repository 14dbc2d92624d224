"""Detaches a run from its terminal: the supervisor in a session of its own.

parent ──fork──▶ child: setsid; once begun, standard streams away from the terminal
   ▲──── "listed" once its jobs are recorded; or its exit status, and its words ──┘

What the run starts has its streams, so they lead to the file before anything is started.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from gpulaunch import errors
from gpulaunch.files import end_of, regular

_LISTED = b"listed"


class DetachedSupervisor:
    """The child of the fork, which keeps the terminal for errors until the run has begun."""

    def __init__(self, channel: int, log: Path) -> None:
        self._channel = channel
        self._log = log

    def goes_on(self, log: Path) -> None:
        """Write into this file once the next run of the same process has begun."""
        self._log = log

    def begun(self) -> None:
        _redirect(self._log)

    def listed(self) -> None:
        if self._channel < 0:
            return  # the run before has told
        with suppress(BrokenPipeError):  # nobody waits any more: Ctrl-C
            os.write(self._channel, _LISTED)
        os.close(self._channel)
        self._channel = -1


def detach(log: Path) -> int | DetachedSupervisor:
    """Fork, before any thread, lock or socket of one side; return the supervisor in the child.

    In the process that the user started: its exit status, 0 once the run's jobs are recorded, so
    that whoever looks next finds them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    before = _size(log)
    pid = os.fork()
    if pid:
        # The child blocks signals at first; this side does not: Ctrl-C ends its waiting.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(write)
        with open(read, "rb") as channel:
            # Not to its end: what the child forks has it open as well.
            if channel.read(len(_LISTED)):
                return errors.OK
        _, status = os.waitpid(pid, 0)
        _repeat(log, before)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else errors.SOME_JOB_FAILED
    os.close(read)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return DetachedSupervisor(write, log)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _repeat(log: Path, before: int) -> None:
    """Say on standard error what the run wrote into its file instead, and why it ended."""
    with suppress(OSError):
        said, _ = end_of(log, max(0, _size(log) - before))
        sys.stderr.write(said.decode(errors="replace"))


def _redirect(log: Path) -> None:
    """Redirect standard streams to /dev/null and the run's file, away from the terminal."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)
