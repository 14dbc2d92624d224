"""Hands the supervisor's leases to a process that keeps them (`lease_server`), and has them lent.

Owns that process and the socket to it. Never waits for it but at the end.
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
from gpulaunch.gpus.helper import command
from gpulaunch.gpus.lease import Lease

END_LIMIT = 2.0


class LeaseServerGoneError(GpulaunchError):
    """The process that kept the leases has died, and its copies of them with it."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """How lease `number` is: `held` there, and `wanted` by one who waits; or let go."""

    number: int
    held: bool
    wanted: bool


@dataclass(slots=True)
class LentLeases:
    """What a new pair is to hold: descriptors of leases, and a link through which others come.

    The link gives one message, as many descriptors as its byte says; or an end of file without it:
    the leases are not to be had there.
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
    """Leases in the hands of a process that is not stopped together with this one."""

    def __init__(self) -> None:
        """Raises OSError where no process is to be had."""
        self._count = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            # Where our own standard streams are closed, the socket has the number of one.
            control = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            self._process = subprocess.Popen(
                command("lease_server", str(control)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[control],
                start_new_session=True,
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
        """Bring a lease; returns its number there. It is safe once a LeaseState says so (`held`).

        Raises LeaseServerGoneError.
        """
        self._count += 1
        fds = lease.filenos()
        said = {"do": "keep", "id": self._count, "key": lease.key, "name": lease.name}
        self._send({**said, "fds": len(fds)}, fds)
        return self._count

    def lend(self, numbers: Sequence[int]) -> socket.socket:
        """A link through which copies of all these leases come. Raises LeaseServerGoneError."""
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._send({"do": "lend", "ids": list(numbers)}, [theirs.fileno()])
            except BaseException:
                link.close()
                raise
        return link

    def release(self, number: int) -> None:
        """Hand the lease over to one who wants it, or close it. Raises LeaseServerGoneError."""
        self._send({"do": "release", "id": number})

    def on_readable(self) -> list[LeaseState]:
        """What has come. Raises LeaseServerGoneError at the end of it."""
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
                return states  # the next call says it
            else:
                raise LeaseServerGoneError("the process that keeps the leases is gone")

    def close(self) -> None:
        """Let it end, and wait for that, two seconds at most: all that is kept there is let go."""
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
            # It reads nothing any more. What it holds is free again with its death.
            self._process.kill()
            raise LeaseServerGoneError(
                "the process that keeps the leases does not answer"
            ) from problem
        except OSError as problem:
            raise LeaseServerGoneError("the process that keeps the leases is gone") from problem
