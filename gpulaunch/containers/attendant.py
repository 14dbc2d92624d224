"""The process between the pulling helper and an engine's client: whatever happens, all of it ends.

    helper ──▶ attendant ──▶ client ──▶ what the client starts (newuidmap, tar, mksquashfs ...)

Standard input is a socket whose other end the helper alone holds, and never writes to: its end is
the helper's, by whatever death. The client is interrupted then, as by Ctrl-C, at which apptainer
removes what it has unpacked; after GRACE it is killed, with all below it, and so is
what a client leaves that something else has killed: its orphans come to the attendant, a subreaper.
One that exits leaves what it means to leave: podman its pause process, which holds the namespaces
of all containers of a user. Where the attendant itself is killed, the kernel kills the client
(PR_SET_PDEATHSIG), and its orphans are left.

Exits as the client did: with its status, or with 128 and the number of its signal.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import NoReturn

from gpulaunch.agent.kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Waker,
    children,
    has_ended,
    prctl,
    send_signal,
)

GRACE = 3.0
"""Seconds for a client to clean up after an interrupt."""
CANNOT_EXECUTE = 127


def main() -> None:
    """Run a client; arguments: the helper's PID, the command line in JSON."""
    line = json.loads(sys.argv[3])
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    waker = Waker()
    client = _started(line)
    if _ended_before_the_helper(client, waker):
        end = os.waitid(os.P_PID, client, os.WEXITED | os.WNOWAIT)
        if end is not None and end.si_code == os.CLD_EXITED:
            os._exit(end.si_status)
    else:
        _interrupt(client, waker)
    os._exit(_status_after_sweep(client))


def _started(line: list[str]) -> int:
    parent = os.getpid()
    client = os.fork()
    if not client:
        _become(line, parent)
    return client


def _become(line: list[str], parent: int) -> NoReturn:
    """Turn this process into the client, which has nobody to ask for a password."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(line[0], line)
    except OSError as error:
        os.write(2, f"{line[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_EXECUTE)


def _ended_before_the_helper(client: int, waker: Waker) -> bool:
    """Wait for the client's end or the helper's; return whether it was the client's."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(waker.fd, select.POLLIN)
    while not has_ended(client):
        ready = [fd for fd, _ in poller.poll()]
        waker.clear()
        if 0 in ready:
            return False
        for pid in children():
            if pid != client:
                os.waitpid(pid, os.WNOHANG)
    return True


def _interrupt(client: int, waker: Waker) -> None:
    """Interrupt the client and all in its group; return when it has ended or its time is up."""
    end = time.monotonic() + GRACE
    if not send_signal(-client, signal.SIGINT):
        send_signal(client, signal.SIGINT)  # it has not come to its setsid
    poller = select.poll()
    poller.register(waker.fd, select.POLLIN)
    while not has_ended(client) and (left := end - time.monotonic()) > 0:
        poller.poll(left * 1000)
        waker.clear()


def _status_after_sweep(client: int) -> int:
    """Kill all that is left and reap it; return the client's status.

    A dead child's children are this process's before it can be reaped: when there is none to wait
    for, no descendant is left.
    """
    status = 0
    while True:
        for pid in children():
            send_signal(pid, signal.SIGKILL)
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == client:
            code = os.waitstatus_to_exitcode(ended)
            status = code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
