"""Children of the carrier: how they are started, and waited for."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

from .log import LOG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PR_SET_CHILD_SUBREAPER = 36
SCARCE = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds before a fork is tried again, as in ../native


class Child:
    """A process to wait for. `status`: as `wait` gives it, None while it runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def left(self) -> bool:
        """Tell whether it ended by itself, not by a signal."""
        return self.status is not None and os.WIFEXITED(self.status)

    def code(self) -> int:
        """Return the status of one that has ended as a shell has it: 128 and more for a signal."""
        status = self.status or 0
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def kill(self, number: int) -> None:
        """Signal it and what it started, unless it has ended."""
        if not self.ended():
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has no session yet
                os.kill(self.pid, number)


def spawn(
    argv: list[str], environ: dict[bytes, bytes], held: list[int], words: int | None
) -> Child:
    """Start a program in a session of its own: what the terminal sends, it does not get.

    `words`: where it writes to; None: nowhere. It has none of the job's files, `held`, but the log,
    where that is it. Raises OSError where processes stay scarce.
    """
    pid = fork_patiently()
    if pid:
        return Child(pid)
    try:
        become(argv, environ, held, words)
    finally:
        os._exit(127)


def fork_patiently() -> int:
    """Fork, retrying for a second while processes are scarce. Raises OSError after that."""
    pause = FIRST_PAUSE
    while True:
        try:
            return os.fork()
        except OSError as problem:
            if problem.errno not in SCARCE or pause > LONGEST_PAUSE:
                raise
        time.sleep(pause)
        pause *= 2


def become(
    argv: list[str], environ: dict[bytes, bytes], held: list[int], words: int | None
) -> NoReturn:
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which an interpreter ignores
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    out = null if words is None else words
    for fd, place in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, place)
    for fd in held:
        if fd > LOG:
            os.close(fd)
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        os.write(2, f"gpulaunch: {argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def adopt_orphans() -> None:
    """Have what leaves its parent below come to this process, which can wait for it then."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def inherited() -> list[int]:
    """Return the descriptors that whoever started this program left open for it.

    What an interpreter opens by itself is closed by exec.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return sorted(found)
