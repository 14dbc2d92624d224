"""Leases given to the lease server (`gpus.lease_server`), a process that is not stopped with this.

A lease is this process's own until the server says that it has arrived; then the copies here are
closed. That server gives leases back while this process is stopped.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpulaunch.gpus.lease import Lease
from gpulaunch.gpus.lease_client import LeaseClient, LeaseServerGoneError
from gpulaunch.loop import Loop

MAX_SERVERS = 3
"""Lease servers that are started at most; without one, a stopped launcher keeps its leases."""


@dataclass(slots=True)
class _Entrusted:
    """A lease, what to call when launchers begin or cease to want it, and when it is given back."""

    lease: Lease
    wanted_changed: Callable[[bool], None]
    given_back: Callable[[], None]
    wanted: bool = False

    def set_wanted(self, wanted: bool) -> None:
        if wanted != self.wanted:
            self.wanted = wanted
            self.wanted_changed(wanted)


class EntrustedLeases:
    """The leases that the server has, or is about to have. `start_server` None: it gets none."""

    def __init__(self, loop: Loop, start_server: Callable[[], LeaseClient] | None) -> None:
        self._loop = loop
        self._start_server = start_server
        self._server: LeaseClient | None = None
        self._started = 0
        self._entrusted: dict[int, _Entrusted] = {}

    def __contains__(self, lease: Lease) -> bool:
        return self._number(lease) is not None

    def _number(self, lease: Lease) -> int | None:
        found = (number for number, each in self._entrusted.items() if each.lease is lease)
        return next(found, None)

    def give(
        self,
        lease: Lease,
        wanted_changed: Callable[[bool], None],
        given_back: Callable[[], None],
    ) -> None:
        """Give the lease to the server; where none can be had, this process keeps it."""
        if self._start_server is None or lease.closed:
            return
        try:
            if self._server is None:
                if self._started >= MAX_SERVERS:
                    return
                self._started += 1
                self._server = self._start_server()
                self._loop.watch(self._server.fileno(), self._hear)
            number = self._server.keep(lease)
            self._entrusted[number] = _Entrusted(lease, wanted_changed, given_back)
        except LeaseServerGoneError:
            self._lose_server()
            self.give(lease, wanted_changed, given_back)
        except OSError:  # too few descriptors or processes
            return

    def is_wanted(self, lease: Lease) -> bool:
        """Return whether another launcher waits for this lease, which the server has."""
        return any(each.lease is lease and each.wanted for each in self._entrusted.values())

    def lend(self, leases: Sequence[Lease]) -> socket.socket | None:
        """Return a link that brings copies of these leases; None: the server is gone."""
        assert self._server is not None
        numbers = [number for lease in leases if (number := self._number(lease)) is not None]
        try:
            return self._server.lend(numbers)
        except LeaseServerGoneError:
            self._lose_server()
            return None

    def release(self, lease: Lease) -> None:
        """Give a lease back, wherever it is, or hand it over to the launcher that waits for it."""
        number = self._number(lease)
        if number is None or self._server is None:
            for fd in lease.selectables():
                self._loop.unwatch(fd)
            if not lease.closed:
                lease.hand_over()
            return
        del self._entrusted[number]
        lease.close()  # the server's copy is the one that is handed over
        try:
            self._server.release(number)
        except LeaseServerGoneError:
            self._lose_server()

    def _hear(self) -> None:
        assert self._server is not None
        try:
            states = self._server.on_readable()
        except LeaseServerGoneError:
            self._lose_server()
            return
        for state in states:
            entrusted = self._entrusted.get(state.number)
            if entrusted is None:  # taken out meanwhile
                continue
            if state.held:
                entrusted.lease.close()
                entrusted.set_wanted(state.wanted)
            else:
                del self._entrusted[state.number]
                self._let_go(entrusted)

    def _lose_server(self) -> None:
        """Give the server up, as it is gone, and the leases that it had."""
        self._end_server()
        lost, self._entrusted = self._entrusted, {}
        for entrusted in lost.values():
            self._let_go(entrusted)

    def _let_go(self, entrusted: _Entrusted) -> None:
        entrusted.set_wanted(False)
        entrusted.given_back()

    def _end_server(self) -> None:
        if self._server is not None:
            self._loop.unwatch(self._server.fileno())
            self._server.close()
            self._server = None

    def close(self) -> None:
        """End the server, and with it what it still holds."""
        self._end_server()
