"""A forked child, from the keeper's side: handed a job, heard until its exec, reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence

from . import host
from .kernel import has_ended, send_signal

READY = b"\0"  # through the child's pipe: hooks at forks have returned


class ForkedChild:
    """A forked child that waits to hear which job it is to become, and becomes it.

    The kernel kills it when its keeper dies; it exits when the keeper closes its link. `forker`:
    `pid` is that of a process which is to fork it. `ready_by`: when hooks must have let it go.
    """

    def __init__(
        self,
        pid: int,
        link: socket.socket | None = None,
        pipe: int | None = None,
        forker: bool = False,
    ) -> None:
        self.pid = pid
        self.link = link
        self.pipe = pipe
        self.forker = forker
        self.words = b""
        self.ready_by: float | None = None

    @classmethod
    def fork(cls, become: Callable[[socket.socket, int], None], forker: bool) -> ForkedChild:
        """Fork a child, which calls `become` with its link and its pipe.

        Raises OSError if processes or descriptors are scarce.
        """
        with contextlib.ExitStack() as stack:
            link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(theirs.close)
            on_failure = stack.enter_context(contextlib.ExitStack())
            on_failure.callback(link.close)
            read, write = os.pipe()
            stack.callback(os.close, write)
            on_failure.callback(os.close, read)
            pid = host.fork()
            if pid == 0:
                on_failure.close()
                stack.pop_all()  # a job that goes on here unwinds this frame and keeps its files
                become(theirs, write)
            os.set_blocking(read, False)
            on_failure.pop_all()
        return cls(pid, link, read, forker)

    def begin(self, file: int, pipes: Sequence[int] = ()) -> bool:
        """Hand the child its job, and for a worker the pipes of items and answers.

        Returns False if the child was dead; it is reaped then.
        """
        assert self.link is not None
        fds = struct.pack(f"{1 + len(pipes)}i", file, *pipes)
        try:
            self.link.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError:  # it was killed meanwhile
            self.reap()
            return False
        finally:
            self.link.close()
        return True

    def read(self) -> bool:
        """Read what has come through the pipe; return True at its end."""
        assert self.pipe is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                words = os.read(self.pipe, 65536)
                self.words += words
                if not words:
                    return True
        return False

    def hear(self) -> bool:
        """Take the forker's line and READY from what was read; return True if READY was there.

        The line is the process id of the job, which is this keeper's child once the forker is gone.
        """
        number, line, rest = self.words.partition(b"\n")
        if self.forker and line and has_ended(self.pid):
            self.forker, self.pid, self.words = False, int(number), rest
        if self.ready_by is None or self.forker or not self.words.startswith(READY):
            return False
        self.ready_by, self.words = None, self.words[len(READY) :]
        return True

    def close(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def is_dead(self) -> bool:
        """Whether a child that has no job yet is dead; it is reaped then."""
        if not has_ended(self.pid) or (self.meet_child() and not has_ended(self.pid)):
            return False
        if self.link:
            self.link.close()
        self.reap()
        return True

    def meet_child(self) -> bool:
        """Put an ended forker's child in its place; return True if there is one."""
        if not self.forker:
            return False
        forker = self.pid
        self.read()
        self.hear()
        if not self.forker:
            os.waitpid(forker, 0)
        return not self.forker

    def reap(self) -> None:
        if has_ended(self.pid):
            self.meet_child()
        self.close()
        send_signal(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
