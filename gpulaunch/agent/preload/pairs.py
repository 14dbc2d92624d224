"""Forks keeper pairs from a preload server, each with a child that becomes one job.

    server ──fork──▶ guardian ──fork──▶ monitor ──fork──▶ forker, exits ──os.fork──▶ child
                        └─exec─▶ keepers   └─exec─▶ keepers                  └─launch─▶ job

The guardian and the monitor become the compiled keepers (`../native`): an exec keeps children and
descriptors. The forker exists so that the hooks of imports run at one fork alone, the job's, where
they hold up nobody else; the monitor adopts its child. A pair has one such child: once that has
become a job, the pair is not used again.

The server is what the spawner is for other pairs (`../native/spawner.c`): it holds a pair's
descriptors until no process of the pair is left.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from .. import kernel
from ..launch import LaunchOrder
from ..wire import PROTOCOL, UNKNOWN_PROTOCOL, KeeperChannel, MessageFields, receive

BROKEN = 70
"""The exit status of a keeper that could not become one."""


class ContinueInChild(BaseException):
    """Unwinds the server's frames in a forked child that goes on as the job, without an exec."""


class PairHandle:
    """A pair as the server knows it, with the descriptors held until no process of it is left."""

    def __init__(self, monitor: int, fds: list[int]) -> None:
        self.monitor = monitor
        self.monitor_start = kernel.started_at(monitor) if monitor else -1
        self.fds = fds

    def close(self) -> None:
        """Close the descriptors, the socket last: leases are free when the supervisor sees that."""
        for fd in reversed(self.fds):
            os.close(fd)


class PairForker:
    """The server's loop. `keepers` is the compiled program, `environment` what jobs start from.

    `opened`: the descriptors that imports opened, which jobs keep. `fork` forks keepers, and calls
    no hook of imports. `at_fork` calls the hooks for a child, which may take `limit` seconds.
    `go_on` turns the child into its job, and raises ContinueInChild.
    """

    def __init__(
        self,
        control: int,
        keepers: bytes,
        environment: dict[bytes, bytes],
        opened: set[int],
        fork: Callable[[], int],
        at_fork: Callable[[], None],
        limit: float,
        go_on: Callable[[LaunchOrder, int, list[int]], None],
    ) -> None:
        self.control: KeeperChannel | None = KeeperChannel(control)
        self.keepers = keepers
        self.environment = environment
        self.opened = opened
        self.fork = fork
        self.at_fork = at_fork
        self.limit = limit
        self.go_on = go_on
        self.waker = kernel.Waker()
        self.pairs: dict[int, PairHandle] = {}
        self.broken: list[PairHandle] = []
        self.nap: float | None = None

    # ── The server ──────────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        """Fork pairs and reap them until the supervisor and every pair are gone."""
        while self.control or self.pairs or self.broken:
            poller = select.poll()
            poller.register(self.waker.fd, select.POLLIN)
            if self.control:
                poller.register(self.control.fd, select.POLLIN)
            ready = dict(poller.poll(None if self.nap is None else self.nap * 1000))
            self.waker.clear()
            self.reap()
            if self.control and self.control.fd in ready:
                self.answer(self.control)

    def answer(self, control: KeeperChannel) -> None:
        message, fds = control.receive()
        if message is None:
            os.close(control.socket.detach())
            self.control = None
            return
        if (message.next(), message.next()) != (b"pair", b"%d" % PROTOCOL):
            os._exit(UNKNOWN_PROTOCOL)
        try:
            if len(fds) != int(message.next()):  # the kernel dropped some: too many open files
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.fork_pair(fds, alive=message.flag())
        except OSError:
            # Out of descriptors or processes. The supervisor sees the pair's end of file and asks
            # again.
            sys.excepthook(*sys.exc_info())
            for fd in fds:
                os.close(fd)

    def fork_pair(self, fds: list[int], alive: bool) -> None:
        """Fork a pair. Raises OSError if it cannot be forked."""
        forked, write = os.pipe()
        try:
            pid = kernel.fork_patiently(self.fork)
        except OSError:
            os.close(forked)
            os.close(write)
            raise
        if pid == 0:
            run_child(lambda: self.become_guardian(fds, alive, write))
        os.close(write)
        monitor = int(os.read(forked, 32) or 0)
        os.close(forked)
        self.pairs[pid] = PairHandle(monitor, fds)

    def reap(self) -> None:
        """Reap dead children, continue stopped ones, kill adopted ones that are no keepers."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                kernel.send_signal(pid, signal.SIGCONT)
            elif pid in self.pairs:
                pair = self.pairs.pop(pid)
                if status == 0:  # the guardian proved that nothing is left
                    pair.close()
                else:
                    self.broken.append(pair)
        if self.broken:
            self.sweep()

    def sweep(self) -> None:
        mine = [pid for pid in kernel.children() if pid not in self.pairs]
        monitors = {
            pair.monitor
            for pair in self.broken
            if pair.monitor in mine and kernel.started_at(pair.monitor) == pair.monitor_start
        }
        for pid in monitors:
            # It may be stopped, and its guardian, which would have continued it, is dead.
            kernel.send_signal(pid, signal.SIGCONT)
        strangers = [pid for pid in mine if pid not in monitors]
        for pid in strangers:
            kernel.send_signal(pid, signal.SIGKILL)
        if strangers:
            self.nap = min((self.nap or 0.0005) * 2, 1.0)
            return
        for pair in self.broken:
            if pair.monitor not in monitors:
                pair.close()
        self.broken = [pair for pair in self.broken if pair.monitor in monitors]
        self.nap = None

    # ── A pair ──────────────────────────────────────────────────────────────────────────────────

    def become_guardian(self, fds: list[int], alive: bool, forked: int) -> None:
        """Fork the monitor, tell its process id through `forked`, and become the guardian."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.close_all_but({0, 1, 2, forked, *fds} | self.opened)
        guardian, server = os.getpid(), os.getppid()
        os.setsid()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        channel, name = fds[0], fds[1] if alive else -1
        leases = [kernel.lift(fd) for fd in fds[2 if alive else 1 :]]
        monitor = kernel.fork_patiently(self.fork)
        if monitor == 0:
            os.close(forked)
            told = [guardian, server, self.limit]
            run_child(lambda: self.become_monitor(told, channel, name, leases))
        os.write(forked, b"%d" % monitor)
        self.execute("guardian", [monitor], [channel, name, *leases])

    def become_monitor(
        self, told: Sequence[float], channel: int, name: int, leases: list[int]
    ) -> None:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        monitor = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        if kernel.fork_patiently(self.fork) == 0:
            ours.close()
            os.close(channel)
            run_child(lambda: self.become_forker(theirs, monitor, leases))
        self.execute("monitor", told, [channel, ours.fileno(), name, *leases])

    def execute(self, which: str, told: Sequence[float], fds: Sequence[int]) -> None:
        for fd in fds:
            if fd >= 0:
                os.set_inheritable(fd, True)
        argv = [self.keepers, which.encode(), *(str(word).encode() for word in (*told, *fds))]
        os.execve(self.keepers, argv, self.environment)

    # ── A job ───────────────────────────────────────────────────────────────────────────────────

    def become_forker(self, link: socket.socket, monitor: int, leases: list[int]) -> None:
        """Fork the child that becomes the job, with all hooks of forks; return in no process."""
        settle_in(monitor)
        forker = os.getpid()
        if kernel.fork_patiently(os.fork):
            os._exit(0)
        while os.getppid() == forker:
            time.sleep(0.0002)
        settle_in(monitor)
        self.at_fork()
        link.sendall(b"%d\n" % os.getpid())
        launch, pipe = await_launch(link)
        try:
            self.go_on(launch, pipe, leases)
        except Exception as problem:
            os.write(pipe, f"{type(problem).__name__}: {problem}".encode("utf-8", "replace"))


def run_child(main: Callable[[], None]) -> None:
    """Call what a forked child does, then exit. Only ContinueInChild comes through."""
    try:
        main()
    except ContinueInChild:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(BROKEN)


def settle_in(parent: int) -> None:
    """Begin a forked child of whatever use: its own session, and no life without its parent."""
    os.setsid()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(127)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def await_launch(link: socket.socket) -> tuple[LaunchOrder, int]:
    """Return the launch that comes through the link, and the pipe for words about its start.

    This process has the job's output and directory then. It ends if no whole launch comes: the
    monitor has no use for it, or who was to send the launch was killed.
    """
    data, fds = receive(link)
    while part := link.recv(1 << 16):
        data += part
    link.close()
    try:
        fields = MessageFields(data)
        fields.next()
        launch = LaunchOrder(fields)
        pipe, log, cwd = fds
    except ValueError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.fchdir(cwd)
    return launch, pipe
