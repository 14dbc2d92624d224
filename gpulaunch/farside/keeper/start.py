"""The job's first moments: a child forked ahead, which becomes the job."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import time
from collections.abc import Callable

from ..wire import Any, raw, raw_all, raw_dict, read_spec
from . import host
from .child import READY, ForkedChild
from .isolation import isolate
from .kernel import PR_SET_PDEATHSIG, SCARCE, copy_high, prctl
from .program import Refusal, enter, execute, stdio
from .station import Station

# In a preload server: turns a forked child into its job. It raises ContinueInChild, or returns if
# the child is to exec.
go_on_as_job: Callable[[dict[str, Any], Station, dict[bytes, bytes]], None] | None = None
FULL = b"\1"  # begins a refusal for want of room on the disk: no failure of the job's


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
            spec, pipes = await_spec(link)
        if pipes:
            pipe = copy_high(pipe)
            answers = copy_high(pipes[1])
            os.dup2(pipes[0], 0)
            os.dup2(answers, 3)
        stdio(raw(spec["log"]))
        if spec["hidden"] is not None:
            isolate(raw_all(spec["hidden"]))
        enter(raw(spec["cwd"]))
        for name in raw_all(spec["env_unset"]):
            environment.pop(name, None)
        environment.update(raw_dict(spec["env_set"]))
        if go_on_as_job is not None and spec.get("main") and not station.exec_only:
            go_on_as_job(spec, station, environment)
        execute(raw_all(spec["argv"]), environment)
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


def await_spec(link: socket.socket) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the command and a worker's pipes; exit if the keeper closes the link instead."""
    flags = socket.MSG_CMSG_CLOEXEC
    said, ancillary, got, _ = link.recvmsg(1, socket.CMSG_SPACE(3 * 4), flags)
    if not said:
        os._exit(127)
    if not ancillary or got & socket.MSG_CTRUNC:
        raise Refusal(os.strerror(errno.EMFILE))
    fds = ancillary[0][2]
    file, *pipes = struct.unpack(f"{len(fds) // 4}i", fds[: len(fds) // 4 * 4])
    return read_spec(file), tuple(pipes)


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
