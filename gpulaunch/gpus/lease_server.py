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
import signal
import socket
import sys
from typing import Any

from gpulaunch.farside.proc import is_stopped
from gpulaunch.farside.wire import receive
from gpulaunch.gpus.lease import Lease
from gpulaunch.loop import Loop

LOOK = 2.0
"""Seconds between two looks whether the supervisor is stopped."""
LOOKS = 2


def main() -> None:
    """Serve the supervisor, whose PID is the argument, by the socket that is standard input."""
    # This process ends with its supervisor, not before: jobs on the leased cards may still run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    LeaseServer(socket.socket(fileno=0), int(sys.argv[2])).serve()


class LeaseServer:
    """The supervisor's leases, by the numbers that it gave them."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        control.setblocking(False)
        self._control = control
        self._room = control.dup()  # waited for apart from what comes in
        self._owner = owner
        self._stopped = 0
        self._over = False
        self._leases: dict[int, Lease] = {}
        self._untold: dict[int, bool] = {}  # numbers, and whether each of them is held
        self._loop = Loop()
        self._loop.watch(control.fileno(), self._hear)
        self._loop.call_after("look", LOOK, self._look)

    def serve(self) -> None:
        """Serve until the supervisor is gone."""
        with contextlib.closing(self._loop), self._room:
            while not self._over:
                self._loop.turn()
                self._tell()

    def _look(self) -> None:
        self._loop.call_after("look", LOOK, self._look)
        self._stopped = self._stopped + 1 if is_stopped(self._owner) else 0
        if self._stopped >= LOOKS:
            self._let_go()

    # ── What the supervisor asks ────────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        """Handle one message; the end of file is the supervisor's end."""
        try:
            data, fds = receive(self._control)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._over = True
            return
        message = json.loads(data)
        match message["do"]:
            case "keep":
                self._keep(message, fds)
            case "lend":
                self._lend(message["ids"], fds)
            case "release":
                self._release(message["id"])

    def _keep(self, message: dict[str, Any], fds: list[int]) -> None:
        number = message["id"]
        if len(fds) != message["fds"]:  # too few descriptors here
            for fd in fds:
                socket.close(fd)
            self._untold[number] = False
            return
        sock = socket.socket(fileno=fds[0])
        lease = Lease(message["name"], sock, fds[1] if fds[1:] else None)
        self._leases[number] = lease
        self._loop.watch(lease.fileno(), lambda: self._visited(number, lease))
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

    def _visited(self, number: int, lease: Lease) -> None:
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
        if lease:
            self._loop.unwatch(lease.fileno())
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
        if self._untold:
            self._loop.watch(self._room.fileno(), lambda: None, write=True)
        else:
            self._loop.unwatch(self._room.fileno())


if __name__ == "__main__":
    main()
