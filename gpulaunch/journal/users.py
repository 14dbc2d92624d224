"""Keeps a run's directory in its place while a command that was started by hand works in it.

    exec --job: shared ─┐
    clean: exclusive ───┴▶ a lock on the directory itself

The supervisor has no part in it: commands by hand neither hinder a run nor one another. The kernel
gives the lock back with the last process that has it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gpulaunch.errors import UsageError
from gpulaunch.journal.finding import typed
from gpulaunch.journal.rundir import RunDir

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def use(run: RunDir, tell: Callable[[str], object]) -> int:
    """Keep the run's directory from being removed, as long as the returned descriptor is open.

    Waits, and says so by `tell`, while something is being removed there. Raises UsageError where
    the run is gone.
    """
    with suppress(FileNotFoundError):
        fd = os.open(run.path, _FLAGS)
        _share(fd, lambda: tell(f"waits until gpulaunch clean is done with {typed(run.path)}"))
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(run.path)):
                return fd
        os.close(fd)
    raise UsageError(f"{run.path} was removed or moved meanwhile")


def _share(fd: int, wait: Callable[[], object]) -> None:
    with suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(fd, fcntl.LOCK_SH)


@contextmanager
def unused(run: RunDir) -> Iterator[None]:
    """Keep commands from being started by hand in the run. Raises UsageError while one runs."""
    fd = os.open(run.path, _FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError("a command of it runs, by exec --job, or another clean") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(fd)
