"""The spawner, which forks pairs of keepers, and the guardian, the first of each pair.

Both hold a pair's descriptors until no process below them is left.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys

from ..proc import own_environment
from ..wire import PROTOCOL, UNKNOWN_PROTOCOL, KeeperChannel, receive
from . import kernel
from .host import opened, run_keeper
from .monitor import Monitor
from .start import Station, fork_patiently
from .sweep import Sweep


class PairHandle:
    """A pair as the spawner knows it, with the descriptors held until no process of it is left."""

    def __init__(self, monitor: int, fds: list[int]) -> None:
        self.monitor = monitor
        self.monitor_start = kernel.started_at(monitor) if monitor else -1
        self.fds = fds

    def close(self) -> None:
        """Close the descriptors, the socket last: leases are free when the supervisor sees that."""
        for fd in reversed(self.fds):
            os.close(fd)


class AwaitedPair:
    """A pair to be forked once its leases have come through a link."""

    def __init__(self, fds: list[int], alive: bool, gives_back: bool) -> None:
        self.link = socket.socket(fileno=fds.pop())
        self.fds = fds
        self.alive = alive
        self.gives_back = gives_back

    def take(self) -> bool:
        """Receive the leases; return True if all of them have come."""
        try:
            said, fds = receive(self.link)
        except OSError:
            said, fds = b"", []
        self.link.close()
        self.fds += fds
        return bool(said) and len(fds) == said[0]

    def decline(self) -> None:
        """Tell the supervisor that no pair is forked, and close its descriptors."""
        channel = KeeperChannel(self.fds[0])
        channel.send({"is": "left"})
        channel.socket.close()
        for fd in self.fds[1:]:
            os.close(fd)


class SpawnServer:
    def __init__(self, control: int) -> None:
        self.control: KeeperChannel | None = KeeperChannel(control)
        self.environment = own_environment()
        self.waker = kernel.Waker()
        self.pairs: dict[int, PairHandle] = {}
        self.broken: list[PairHandle] = []
        self.awaited: dict[int, AwaitedPair] = {}
        self.nap: float | None = None

    def serve(self) -> None:
        """Fork pairs and reap them until the supervisor and every pair are gone."""
        while self.control or self.pairs or self.broken or self.awaited:
            poller = select.poll()
            poller.register(self.waker.fd, select.POLLIN)
            for fd in self.awaited:
                poller.register(fd, select.POLLIN)
            if self.control:
                poller.register(self.control.fd, select.POLLIN)
            ready = dict(poller.poll(None if self.nap is None else self.nap * 1000))
            self.waker.clear()
            self.reap()
            for fd in self.awaited.keys() & ready.keys():
                self.fork_awaited(self.awaited.pop(fd))
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
            alive, link, gives_back = message.flag(), message.flag(), message.flag()
            if link:
                awaited = AwaitedPair(fds, alive, gives_back)
                self.awaited[awaited.link.fileno()] = awaited
            else:
                self.fork_pair(fds, alive, gives_back)
        except OSError:
            # Out of descriptors or processes. The supervisor sees the pair's end of file and asks
            # again.
            sys.excepthook(*sys.exc_info())
            for fd in fds:
                os.close(fd)

    def fork_awaited(self, awaited: AwaitedPair) -> None:
        """Fork a pair whose leases have come; else tell the supervisor that they have not."""
        try:
            if awaited.take():
                self.fork_pair(awaited.fds, awaited.alive, awaited.gives_back)
                return
        except OSError:
            sys.excepthook(*sys.exc_info())
        awaited.decline()

    def fork_pair(self, fds: list[int], alive: bool, gives_back: bool) -> None:
        """Fork a pair. Raises OSError if it cannot be forked."""
        forked, write = os.pipe()
        try:
            pid = fork_patiently()
        except OSError:
            os.close(forked)
            os.close(write)
            raise
        if pid == 0:
            run_keeper(lambda: guardian(fds, alive, gives_back, write, self.environment), status=70)
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


def run(control: int) -> None:
    """Turn this process into the spawner, with the socket `control`; return when it may exit."""
    kernel.become_keeper("keeper-spawner", {control})
    os.chdir("/")
    spawner = SpawnServer(control)
    gc.collect()
    gc.freeze()  # forked keepers share these objects, and no collection copies their pages
    spawner.serve()


def guardian(
    fds: list[int], alive: bool, gives_back: bool, forked: int, environment: dict[bytes, bytes]
) -> None:
    """Run the guardian: fork the monitor, hold its descriptors, wait for its end. Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.close_all_but({0, 1, 2, forked, *fds} | opened)
    os.setsid()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    channel = KeeperChannel(fds[0])
    leases = [kernel.lift(fd) for fd in fds[2 if alive else 1 :]]
    watch, watched = os.pipe()  # the monitor reads: end of file when the guardian is gone
    monitor = fork_patiently()
    if monitor == 0:
        os.close(watched)
        os.close(forked)
        run_keeper(
            lambda: Monitor(Station(channel, leases, environment), watch, gives_back).serve(),
            Sweep(channel).to_the_end,
            status=0,
        )
    os.close(watch)
    os.write(forked, b"%d" % monitor)
    os.close(forked)
    kernel.rename("keeper-guardian")
    wait_for(monitor)
    Sweep(channel).to_the_end()
    os._exit(0)


def wait_for(monitor: int) -> None:
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            kernel.send_signal(pid, signal.SIGCONT)  # a stopped monitor would keep no time limit
        elif pid == monitor:
            return
