"""The guardian: forks the monitor, holds what it holds, and sweeps after it."""

from __future__ import annotations

import os
import signal

from .channel import KeeperChannel
from .host import opened, run_keeper
from .kernel import PR_SET_CHILD_SUBREAPER, close_all_but, lift, prctl, rename, send_signal
from .monitor import Monitor
from .start import fork_patiently
from .station import Station
from .sweep import Sweep


def guardian(
    fds: list[int], alive: bool, gives_back: bool, forked: int, environment: dict[bytes, bytes]
) -> None:
    """Run the guardian: fork the monitor, hold its descriptors, wait for its end. Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    close_all_but({0, 1, 2, forked, *fds} | opened)
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    channel = KeeperChannel(fds[0])
    leases = [lift(fd) for fd in fds[2 if alive else 1 :]]
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
    rename("keeper-guardian")
    wait_for(monitor)
    Sweep(channel).to_the_end()
    os._exit(0)


def wait_for(monitor: int) -> None:
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            send_signal(pid, signal.SIGCONT)  # a stopped monitor would keep no time limit
        elif pid == monitor:
            return
