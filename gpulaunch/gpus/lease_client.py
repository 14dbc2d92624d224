"""Hands the supervisor's leases to the process that keeps them (`lease_server`).

Owns that process and the socket to it. Waits for the process only at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from gpulaunch.errors import GpulaunchError
from gpulaunch.gpus.lease import Lease
from gpulaunch.helper_process import command, start

END_LIMIT = 2.0


class LeaseServerGoneError(GpulaunchError):
    """The process that kept the leases has died, and its copies of them with it."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The state of lease `number`: `held` by the server or closed, and `wanted` by a launcher."""

    number: int
    held: bool
    wanted: bool


@dataclass(slots=True)
class LentLeases:
    """The leases for a new pair: descriptors, and a link through which others come.

    The link brings one message with as many descriptors as its byte says; an end of file without
    it: the leases are gone.
    """

    descriptors: list[int]
    link: socket.socket | None = None

    def __enter__(self) -> LentLeases:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.link is not None:
            self.link.close()


class LeaseClient:
    """Leases that a process holds which is not stopped together with this one."""

    def __init__(self) -> None:
        """Start the process. Raises OSError if that fails."""
        self._count = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            # If our own standard streams are closed, the socket has the number of one of them.
            control = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            self._process = start(
                command("gpulaunch.gpus.lease_server", str(control)), cwd="/", pass_fds=[control]
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            os.close(control)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def keep(self, lease: Lease) -> int:
        """Give a lease to the process; return its number. Safe once a LeaseState says `held`.

        Raises LeaseServerGoneError.
        """
        self._count += 1
        fds = lease.filenos()
        said = {"do": "keep", "id": self._count, "key": lease.key, "name": lease.name}
        self._send({**said, "fds": len(fds)}, fds)
        return self._count

    def lend(self, numbers: Sequence[int]) -> socket.socket:
        """Return a link that brings copies of all these leases. Raises LeaseServerGoneError."""
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._send({"do": "lend", "ids": list(numbers)}, [theirs.fileno()])
            except BaseException:
                link.close()
                raise
        return link

    def release(self, number: int) -> None:
        """Hand the lease to a launcher that wants it, or close it. Raises LeaseServerGoneError."""
        self._send({"do": "release", "id": number})

    def on_readable(self) -> list[LeaseState]:
        """Return the states that have come. Raises LeaseServerGoneError if the process is gone."""
        states: list[LeaseState] = []
        while True:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                return states
            except OSError:
                data = b""
            if data:
                said = json.loads(data)
                states.append(LeaseState(said["id"], said["held"], said["wanted"]))
            elif states:
                return states  # the next call raises LeaseServerGoneError
            else:
                raise LeaseServerGoneError("the process that keeps the leases is gone")

    def close(self) -> None:
        """End the process, which closes its leases; wait two seconds at most."""
        if self._socket.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        poller = select.poll()
        poller.register(self._socket, select.POLLRDHUP)
        poller.poll(END_LIMIT * 1000)
        self._socket.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        try:
            if fds:
                socket.send_fds(self._socket, [json.dumps(message).encode()], list(fds))
            else:
                self._socket.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)
        except BlockingIOError as problem:
            # The process is dead or dying, and its leases are free with its death.
            self._process.kill()
            raise LeaseServerGoneError(
                "the process that keeps the leases does not answer"
            ) from problem
        except OSError as problem:
            raise LeaseServerGoneError("the process that keeps the leases is gone") from problem
