"""The supervisor's side of the control socket: binds the run's name, and answers from a loop.

The name `\\0gpulaunch/1/run/<id>` is bound as long as the supervisor lives, which makes it the lock
against a second one. Only the run's own user and root are admitted, by SO_PEERCRED. No client can
make the supervisor wait: everything is non-blocking and bounded.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, TypeAlias

from gpulaunch import __version__
from gpulaunch.agent.wire import peer
from gpulaunch.base.loop import Loop
from gpulaunch.gpus.socket_locks import NameHeldError, bind_name
from gpulaunch.journal.codec import to_json
from gpulaunch.journal.liveness import control_name
from gpulaunch.run.control_protocol import (
    BUFFERED_BYTES,
    REPLY_BYTES,
    REQUEST_BYTES,
    AlreadySupervisedError,
    Asking,
    decoded,
    not_admitted,
)

CONNECTIONS = 256
"""Clients of a run at once."""
_SHARE = 8
"""The part of this process's descriptors that clients may take, as a divisor: jobs need others."""
_MAX_ADMITTED_PER_TURN = 32
"""Clients that are admitted before anything else has its turn."""
_READ_BYTES = 1 << 16


class Conn:
    """A client's connection. `send` never waits: what the client does not read stays in memory.

    That memory is bounded by REPLY_BYTES.
    """

    def __init__(self, server: ControlServer, link: socket.socket) -> None:
        self._server = server
        self._link = link
        self._in = bytearray()
        self._out = bytearray()
        self._ending = False

    def fileno(self) -> int:
        return self._link.fileno()

    @property
    def closed(self) -> bool:
        return self._link.fileno() < 0

    @property
    def abandoned(self) -> bool:
        """True if the client has gone, or says no more: its request is withdrawn."""
        if self.closed:
            return True
        try:
            return not self._link.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def busy(self) -> bool:
        """True while half a request has come, or the answer has not been read."""
        return bool(self._in or self._out)

    @property
    def buffered(self) -> int:
        """The bytes that are kept of what the client has sent, and has not read."""
        return len(self._in) + len(self._out)

    @property
    def writing(self) -> bool:
        """True while the client has not taken its whole answer."""
        return bool(self._out)

    def send(self, reply: Mapping[str, Any]) -> None:
        """Send the answer; does nothing where the client has gone."""
        if self.closed:
            return
        self._out += to_json(reply) + b"\n"
        if len(self._out) > REPLY_BYTES:
            self.close()
        else:
            self.flush()
            self._server.bound_buffers()

    def fail(self, error: str) -> None:
        """Answer that the request was refused, and why."""
        self.send({"error": error})

    def flush(self) -> None:
        """Write as much of the answer as the client takes now."""
        try:
            while self._out:
                del self._out[: self._link.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()
            self._ending = True
        if self._ending and not self._out:
            self.close()
        else:
            self._server.listen_for(self)

    def receive(self) -> Asking | None:
        """Return the request once it has come whole. A wrong one is answered here, as the last."""
        try:
            data = self._link.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        # Only the new bytes are searched: a long line in small pieces must not take quadratic time.
        end = data.find(b"\n")
        self._in += data
        if end < 0 and len(self._in) > REQUEST_BYTES:
            self._in.clear()
            self.end(f"a request has at most {REQUEST_BYTES} bytes")
        if end < 0:
            self._server.bound_buffers()
            return None
        line, self._in = self._in, bytearray()
        if end + 1 < len(data):
            self.end("one request at a time: wait for the answer")
            return None
        return self._understand(line)

    def end(self, error: str) -> None:
        """Answer with this error, and close once that has been read."""
        self._ending = True
        self.fail(error)

    def close(self) -> None:
        if not self.closed:
            self._server.forget(self)
            self._link.close()
            self._in.clear()
            self._out.clear()

    def _understand(self, line: bytearray) -> Asking | None:
        try:
            return decoded(line)
        except ValueError as error:
            self.end(f"gpulaunch {__version__} does not understand this request: {error}")
        return None


Answer: TypeAlias = Callable[[Conn, Asking], object]
"""Called with each whole request; answers it now or later by `Conn.send` or `Conn.fail`."""


class ControlServer:
    """The run's socket, bound. `serve` answers what clients ask.

    Raises AlreadySupervisedError where another process has the run. Close it last of all: once the
    name is unbound, another supervisor may take the run up. A context manager.
    """

    def __init__(self, run: str) -> None:
        try:
            self._listener = bind_name(control_name(run).removeprefix("\0gpulaunch/1/"))
        except NameHeldError as held:
            raise AlreadySupervisedError(run, held.holder) from None
        self.run = run
        self._uid = os.geteuid()
        self._conns: list[Conn] = []
        self._most = max(1, min(CONNECTIONS, getrlimit(RLIMIT_NOFILE)[0] // _SHARE))
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._loop: Loop | None = None

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, loop: Loop, answer: Answer) -> None:
        """Have requests answered by `answer`, from turns of this loop alone, until `leave`."""
        self._loop, self._answer = loop, answer
        loop.watch(self._listener.fileno(), self._accept)
        for conn in self._conns:
            self.listen_for(conn)

    def leave(self) -> None:
        """Watch nothing by the loop any more. Clients stay, until `serve` or `close`."""
        if self._loop is not None:
            for fd in (self._listener.fileno(), *(conn.fileno() for conn in self._conns)):
                self._loop.unwatch(fd)
        self._loop = None

    def close(self) -> None:
        self.leave()
        for conn in list(self._conns):
            conn.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        self._listener.close()

    # ── What connections ask ────────────────────────────────────────────────────────────────────

    def listen_for(self, conn: Conn) -> None:
        """Wait until the client takes more of its answer; where it has it all, until it asks.

        While an answer waits no further request is read: memory stays bounded.
        """
        if self._loop is not None and not conn.closed:
            callback = conn.flush if conn.writing else lambda: self._received(conn)
            self._loop.watch(conn.fileno(), callback, write=conn.writing)

    def forget(self, conn: Conn) -> None:
        """Drop a connection that is about to be closed."""
        self._conns.remove(conn)
        if self._loop is not None:
            self._loop.unwatch(conn.fileno())

    def bound_buffers(self) -> None:
        """Hang up on the clients that take most of the memory, while all of them take too much."""
        buffered = sum(conn.buffered for conn in self._conns)
        while buffered > BUFFERED_BYTES:
            largest = max(self._conns, key=lambda conn: conn.buffered)
            buffered -= largest.buffered
            largest.close()

    def _received(self, conn: Conn) -> None:
        # A launcher that was stopped finds the requests of clients that have given up since.
        if (asking := conn.receive()) is not None and not conn.abandoned:
            self._answer(conn, asking)

    def _accept(self) -> None:
        for _ in range(_MAX_ADMITTED_PER_TURN):
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._turn_away()
                return
            link.setblocking(False)
            self._admit(link)

    def _turn_away(self) -> None:
        """No descriptor is left: hang up on one client with the spare one.

        Left waiting, it would wake the loop again at once, for ever.
        """
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _admit(self, link: socket.socket) -> None:
        uid = peer(link)[1]
        conn = Conn(self, link)
        self._conns.append(conn)
        self.listen_for(conn)
        if uid not in (self._uid, 0):
            conn.end(not_admitted(self.run, self._uid))
        elif len(self._conns) > self._most:
            # A client with half a request or an unread answer goes first; the others do no harm.
            stuck = next((each for each in self._conns if each.busy), conn)
            stuck.end("too many ask this run at once")
            stuck.close()
