"""Ends a process as another one ended, for who stands in its place."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def end_as(status: int) -> NoReturn:
    """End as the process that `wait` gave this status of: by its signal, or with its exit code."""
    if os.WIFSIGNALED(status):
        die_by(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def die_by(number: int) -> NoReturn:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other process has dumped its own
    except (ImportError, OSError, ValueError):
        pass
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)
