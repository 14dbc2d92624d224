"""A child forked ahead, which becomes a job: the keeper's side of it, and its first moments."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence

from ..launch import LaunchOrder
from ..wire import Any, KeeperChannel, receive_fields, send_fields
from . import host
from .isolation import isolate
from .kernel import PR_SET_PDEATHSIG, SCARCE, copy_high, has_ended, prctl, send_signal
from .program import Refusal, enter, execute, join_cgroup, stdio
from .worker import WorkerPipes

READY = b"\0"  # through the child's pipe: hooks at forks have returned
# In a preload server: turns a forked child into its job. It raises ContinueInChild, or returns if
# the child is to exec.
go_on_as_job: Callable[[LaunchOrder, dict[str, Any], Station, dict[bytes, bytes]], None] | None = (
    None
)
ELSEWHERE = b"\2"  # through it: the job runs on other CPUs than it was to have
FULL = b"\1"  # begins a refusal for want of room on the disk: no failure of the job's


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

    def begin(self, launch: LaunchOrder, pipes: Sequence[int] = ()) -> bool:
        """Hand the child its job, and for a worker the pipes of items and answers.

        Returns False if the child was dead; it is reaped then.
        """
        assert self.link is not None
        try:
            send_fields(self.link, launch.message, pipes)
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
        """Tell whether a child that has no job yet is dead; it is reaped then."""
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


class Station:
    """The pair's socket and leases, what jobs start from, and what stays between attempts.

    `spare`: a child forked ahead; `spare_at`: when one is to be. `exec_only`: jobs exec although
    this interpreter could run them. `start`: when the monitor started, in clock ticks since boot.
    """

    def __init__(
        self, channel: KeeperChannel, leases: list[int], environment: dict[bytes, bytes]
    ) -> None:
        self.channel = channel
        self.leases = leases
        self.environment = environment
        self.worker: WorkerPipes | None = None
        self.spare: ForkedChild | None = None
        self.spare_at: float | None = None
        self.exec_only = False
        self.start = -1

    def reap_worker(self, pid: int) -> bool:
        """Forget the worker if it was the process just reaped, and close its pipes; True if so."""
        if self.worker is None or self.worker.pid != pid:
            return False
        self.worker.close()
        self.worker = None
        return True


def fork_child(station: Station) -> ForkedChild:
    """Fork a child that waits for its job. Raises OSError if that cannot be now."""
    me = os.getpid()
    forks = host.at_fork is not None and not station.exec_only
    return ForkedChild.fork(lambda link, pipe: become_job(station, me, link, pipe), forks)


def become_job(station: Station, parent: int, link: socket.socket, pipe: int) -> None:
    """Turn the forked child into its job. Never returns; writes errors in words to the pipe."""
    continues = False
    try:
        settle_in(parent)
        if host.at_fork is not None and not station.exec_only:
            go_on_in_child(parent, pipe)
            host.at_fork()
            os.write(pipe, READY)
        for fd in station.leases:
            os.set_inheritable(fd, True)
        environment = dict(station.environment)
        with link:
            launch, pipes = await_launch(link)
        join_cgroup(launch.cgroup)
        if launch.cpus and not run_on(launch.cpus):
            os.write(pipe, ELSEWHERE)
        stdio(launch.log)
        if launch.hidden is not None:
            isolate(launch.hidden)  # which opens the standard input anew: before a worker's
        if pipes:
            pipe = copy_high(pipe)
            answers = copy_high(pipes[1])
            os.dup2(pipes[0], 0)
            os.dup2(answers, 3)
        enter(launch.cwd)
        for name in launch.env_unset:
            environment.pop(name, None)
        environment.update(launch.env_set)
        if go_on_as_job is not None and launch.main and not station.exec_only:
            go_on_as_job(launch, launch.main, station, environment)
        execute(launch.argv, environment)
    except host.ContinueInChild:
        continues = True
        raise
    except Refusal as problem:
        os.write(pipe, (FULL if problem.full else b"") + str(problem).encode("utf-8", "replace"))
    except BaseException as problem:
        os.write(pipe, f"{type(problem).__name__}: {problem}".encode("utf-8", "replace"))
    finally:
        if not continues:
            os._exit(127)


def go_on_in_child(parent: int, pipe: int) -> None:
    """Fork again, in a forker, which exits; return in the child once it is the keeper's own."""
    forker = os.getpid()
    pid = fork_patiently(os.fork)
    if pid:
        os.write(pipe, b"%d\n" % pid)
        os._exit(0)
    while os.getppid() == forker:
        time.sleep(0.0002)
    settle_in(parent)


def await_launch(link: socket.socket) -> tuple[LaunchOrder, list[int]]:
    """Return the command and a worker's pipes; exit if the keeper closes the link instead."""
    try:
        message, pipes = receive_fields(link)
    except OSError as problem:
        raise Refusal(problem.strerror or str(problem)) from None
    if message is None:
        os._exit(127)
    message.next()
    launch = LaunchOrder(message)
    if launch.item is not None and len(pipes) != 2:  # the kernel dropped some
        raise Refusal(os.strerror(errno.EMFILE))
    return launch, pipes


def run_on(cpus: Sequence[int]) -> bool:
    """Keep this process and what it starts to these CPUs; False where none of them is allowed now.

    The kernel leaves out those that a cpuset has taken away since.
    """
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError, OverflowError):
        return False
    return True


def settle_in(parent: int) -> None:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the keeper died before the line above
        os._exit(127)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def fork_patiently(by: Callable[[], int] | None = None) -> int:
    """Fork, retrying for two seconds while processes are scarce. Raises OSError after that."""
    by, pause = by or host.fork, 0.01
    while True:
        try:
            return by()
        except OSError as problem:
            if problem.errno not in SCARCE or pause > 1.0:
                raise
        time.sleep(pause)
        pause *= 2
