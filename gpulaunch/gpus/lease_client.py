"""Gives leases to the lease server (`lease_server`), a process that is not stopped with this one.

A lease is this process's own until the server says that it has arrived; then the copies here are
closed. That server gives leases back while this process is stopped. It is not started before the
first lease has been held for a while: a short run is over by then.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from gpulaunch.farside.wire import send
from gpulaunch.gpus.lease import Lease
from gpulaunch.helper_process import Helper, command
from gpulaunch.loop import Loop

MAX_SERVERS = 3
"""Lease servers that are started at most; without one, a stopped launcher keeps its leases."""
SERVED_AFTER = 0.1
"""Seconds from the first lease until a server is started; till then a stopped launcher keeps it."""
END_TIMEOUT = 2.0
"""Seconds that the server may take, at the end, to hand over what was released last."""


class _Entrusted(Struct):
    """A lease, what to call when launchers begin or cease to want it, and when it is given back."""

    lease: Lease
    wanted_changed: Callable[[bool], None]
    given_back: Callable[[], None]
    wanted: bool = False

    def set_wanted(self, wanted: bool) -> None:
        if wanted != self.wanted:
            self.wanted = wanted
            self.wanted_changed(wanted)

    def let_go(self) -> None:
        self.set_wanted(False)
        self.given_back()


class EntrustedLeases:
    """The leases that the server has, or is about to have. `served` false: it gets none.

    `after`: seconds from the first lease until the server is started.
    """

    def __init__(self, loop: Loop, served: bool = True, after: float = SERVED_AFTER) -> None:
        self._loop = loop
        self._after = after
        self._starts_left = MAX_SERVERS if served else 0
        self._server = Helper(loop, self._hear, lambda status: self._lose(), socket.SOCK_SEQPACKET)
        self._serves = False
        self._soon: list[_Entrusted] | None = [] if served else None
        self._count = 0
        self._entrusted: dict[int, _Entrusted] = {}

    @property
    def pid(self) -> int | None:
        """The server's process."""
        return self._server.pid

    def __contains__(self, lease: Lease) -> bool:
        return self._number(lease) is not None

    def _number(self, lease: Lease) -> int | None:
        found = (number for number, each in self._entrusted.items() if each.lease is lease)
        return next(found, None)

    def give(
        self, lease: Lease, wanted_changed: Callable[[bool], None], given_back: Callable[[], None]
    ) -> None:
        """Give the lease to the server; where none can be had, this process keeps it."""
        given = _Entrusted(lease, wanted_changed, given_back)
        if self._soon is None:
            self._give(given)
            return
        if not self._soon:
            self._loop.call_after(self, self._after, self._give_those)
        self._soon.append(given)

    def _give_those(self) -> None:
        soon, self._soon = self._soon or [], None
        for given in soon:
            given.wanted = given.lease.wanted
            self._give(given)

    def _give(self, given: _Entrusted) -> None:
        if given.lease.closed or not self._has_server():
            return
        self._count += 1
        fds = given.lease.filenos()
        said = {"do": "keep", "id": self._count, "name": given.lease.name, "fds": len(fds)}
        if self._send(said, fds):
            self._entrusted[self._count] = given
            self._loop.unwatch(given.lease.fileno())  # who waits for it comes to the server now
        else:
            self._give(given)

    def _has_server(self) -> bool:
        """Return whether there is a server; start one if there is none, and may be another."""
        if self._server.link is None and self._starts_left:
            self._starts_left -= 1
            try:
                self._server.start(command("gpulaunch.gpus.lease_server"), None, cwd="/")
                self._serves = False
            except OSError:  # too few descriptors or processes
                return False
        return self._server.link is not None

    def is_wanted(self, lease: Lease) -> bool:
        """Return True if another launcher wants this lease, which the server has."""
        return any(each.wanted for each in self._entrusted.values() if each.lease is lease)

    def lend(self, leases: Sequence[Lease]) -> socket.socket | None:
        """Return a link that brings copies of all these leases; None: the server is gone.

        The link brings one message with as many descriptors as its byte says; an end of file
        without it: the leases are gone. Raises OSError.
        """
        numbers = [number for lease in leases if (number := self._number(lease)) is not None]
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if self._send({"do": "lend", "ids": numbers}, [theirs.fileno()]):
                return link
        link.close()
        return None

    def release(self, lease: Lease) -> None:
        """Give a lease back, wherever it is, or hand it over to the launcher that waits for it."""
        number = self._number(lease)
        if number is not None:
            del self._entrusted[number]
            lease.close()  # the server's copy is the one that is handed over
            self._send({"do": "release", "id": number})
        elif not lease.closed:
            self._loop.unwatch(lease.fileno())
            lease.hand_over()

    def _send(self, message: dict[str, object], fds: Sequence[int] = ()) -> bool:
        """Send a message to the server; False: it is gone, or hangs, and is killed."""
        assert self._server.link is not None
        try:
            send(self._server.link, message, fds, socket.MSG_NOSIGNAL)
        except OSError:
            self._server.kill()
            self._lose()
            return False
        return True

    def _hear(self, data: bytes) -> None:
        """Take in how a lease is, which the server says whenever that changes."""
        self._serves = True
        state = json.loads(data)
        entrusted = self._entrusted.get(state["id"])
        if entrusted is None:  # taken out meanwhile
            return
        if state["held"]:
            entrusted.lease.close()
            entrusted.set_wanted(state["wanted"])
        else:
            del self._entrusted[state["id"]]
            entrusted.let_go()

    def _lose(self) -> None:
        """Give up the leases that the server had, as it is gone."""
        lost, self._entrusted = self._entrusted, {}
        for entrusted in lost.values():
            entrusted.let_go()

    def close(self) -> None:
        """End the server, and with it what it still holds.

        One that has not begun to serve hands nothing over: it is not waited for. Who waits for a
        lease sees the hang-up then.
        """
        self._loop.forget(self)
        if self._serves:
            self._server.finish(END_TIMEOUT)
        else:
            self._server.close()
