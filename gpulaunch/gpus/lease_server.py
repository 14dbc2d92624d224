"""The process that keeps a run's leases: a supervisor that is stopped cannot close its own copies.

    supervisor (`lease_client`)               this process
    keep, with the lease ─── SCM_RIGHTS ───▶  a copy of its own; answers those who wait for it
    lend, with a socket ───────────────────▶  the leases go into that socket (a new pair's spawner)
    release ───────────────────────────────▶  handed over to one who wants it, else closed
                     ◀── how each lease is ─  {"id": 3, "held": true, "wanted": false}
    end of file ───────────────────────────▶  the end

When the supervisor is stopped (Ctrl-Z, SIGSTOP; proc(5)) at LOOKS looks in a row, this process
closes all leases. It hands them to nobody: where a job runs, its keepers hold the lease as well,
and the card is free when they are gone. Pairs of keepers without a job leave likewise (`keeper`).
Running jobs are not touched, and a supervisor that goes on asks for its cards again.

Never looks at a card, and takes no lease by itself.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sys
import time
from typing import Any

from gpulaunch.farside.proc import is_stopped
from gpulaunch.farside.wire import receive
from gpulaunch.gpus.lease import Lease

LOOK = 2.0
"""Seconds between two looks whether the supervisor is stopped."""
LOOKS = 2
_ROOM = 8  # descriptors that one message brings at most


def main() -> None:
    """Serve; the arguments are the supervisor's PID and the descriptor of the control socket."""
    owner, control = int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
    # This process ends with its supervisor, not before: jobs on the leased cards may still run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    LeaseServer(control, owner).serve()


class LeaseServer:
    """The supervisor's leases, by the numbers that it gave them."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        control.setblocking(False)
        self._control = control
        self._owner = owner
        self._leases: dict[int, Lease] = {}
        self._by_descriptor: dict[int, int] = {}
        self._untold: dict[int, bool] = {}  # numbers, and whether each of them is held
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Serve until the supervisor is gone."""
        look_at, stopped = time.monotonic() + LOOK, 0
        while True:
            for fd, event in self._poll.poll(max(0.0, look_at - time.monotonic())):
                if fd in self._by_descriptor:
                    self._visited(self._by_descriptor[fd])
                elif event & ~select.EPOLLOUT and fd == self._control.fileno() and not self._hear():
                    return
            if time.monotonic() >= look_at:
                stopped = stopped + 1 if is_stopped(self._owner) else 0
                if stopped >= LOOKS:
                    self._let_go()
                look_at = time.monotonic() + LOOK
            self._tell()

    # ── What the supervisor asks ────────────────────────────────────────────────────────────────

    def _hear(self) -> bool:
        """Handle one message; return False if the supervisor is gone."""
        try:
            message, fds = self._receive()
        except BlockingIOError:
            return True
        except OSError:
            return False
        if message is None:
            return False
        match message["do"]:
            case "keep":
                self._keep(message, fds)
            case "lend":
                self._lend(message["ids"], fds)
            case "release":
                self._release(message["id"])
        return True

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        data, fds = receive(self._control, 65536, _ROOM)
        return (json.loads(data) if data else None), fds

    def _keep(self, message: dict[str, Any], fds: list[int]) -> None:
        number = message["id"]
        if len(fds) != message["fds"]:  # too few descriptors here
            for fd in fds:
                socket.close(fd)
            self._untold[number] = False
            return
        sock = socket.socket(fileno=fds[0])
        lease = Lease(message["key"], message["name"], sock, fds[1] if fds[1:] else None)
        self._leases[number] = lease
        for fd in lease.selectables():
            self._by_descriptor[fd] = number
            self._poll.register(fd, select.EPOLLIN)
        self._untold[number] = True

    def _lend(self, numbers: list[int], fds: list[int]) -> None:
        """Send copies of these leases through the link; if one is missing, only close it."""
        if not fds:
            return
        with socket.socket(fileno=fds[0]) as link, contextlib.suppress(KeyError, OSError):
            link.setblocking(False)
            lent = [fd for number in numbers for fd in self._leases[number].filenos()]
            socket.send_fds(link, [bytes([len(lent)])], lent)

    def _release(self, number: int) -> None:
        if lease := self._forget(number):
            lease.hand_over()
            self._untold.pop(number, None)

    # ── What it tells ───────────────────────────────────────────────────────────────────────────

    def _visited(self, number: int) -> None:
        lease = self._leases[number]
        before = lease.wanted
        if lease.on_readable() != before:
            self._untold[number] = True

    def _let_go(self) -> None:
        for number in list(self._leases):
            if lease := self._forget(number):
                lease.close()
                self._untold[number] = False

    def _forget(self, number: int) -> Lease | None:
        lease = self._leases.pop(number, None)
        for fd in lease.selectables() if lease else ():
            del self._by_descriptor[fd]
            self._poll.unregister(fd)
        return lease

    def _tell(self) -> None:
        """Send each lease's newest state: a supervisor that is stopped reads nothing meanwhile."""
        for number, held in list(self._untold.items()):
            wanted = held and self._leases[number].wanted
            try:
                said = {"id": number, "held": held, "wanted": wanted}
                self._control.send(json.dumps(said).encode(), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError:  # the supervisor is gone: its end of file comes next
                self._untold.clear()
                break
            del self._untold[number]
        more = select.EPOLLOUT if self._untold else 0
        self._poll.modify(self._control.fileno(), select.EPOLLIN | more)


if __name__ == "__main__":
    main()
