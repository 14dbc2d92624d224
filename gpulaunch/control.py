"""A run's control socket: requests from other terminals, and the run's answers.

    gpulaunch cancel ─▶ call(run, Cancel(...)) ──{"kind":"cancel","jobs":["a"]}──▶ ControlServer
                                               ◀──{...}, or {"error":"..."}──────  conn.send(...)

One JSON line each way. The name `\\0gpulaunch/1/run/<id>` is bound as long as the supervisor
lives, which makes it the lock against a second one. Only the run's own user and root are admitted,
by SO_PEERCRED. No client can make the supervisor wait: everything is non-blocking and bounded. The
core decides what a request means.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from types import TracebackType
from typing import Any, TypeAlias, cast

from gpulaunch import __version__
from gpulaunch.core.events import Request
from gpulaunch.core.model import RunState
from gpulaunch.errors import UnfinishedRunError, UsageError
from gpulaunch.gpus.names import RUN_ID, Holder, NameHeldError, bind_name, listening, user_name
from gpulaunch.journal.codec import to_json
from gpulaunch.journal.liveness import control_name
from gpulaunch.journal.shapes import Coder, coder_of
from gpulaunch.peers import peer

EXPLAINED = 1000
"""Waiting jobs whose reasons one answer holds: a hundred thousand would take the run seconds."""
REQUEST_BYTES = 4 << 20
"""Bytes of a request at most: a command line holds 2 MiB, and JSON may double some of it."""
REPLY_BYTES = 64 << 20
"""Bytes of an answer at most."""
CONNECTIONS = 256
"""Clients of a run at once."""
_SHARE = 8
"""The part of this process's descriptors that clients may take, as a divisor: jobs need others."""
_MAX_ADMITTED_PER_TURN = 32
"""Clients that are admitted before anything else has its turn."""
_NAME_CHARS = 255
_PATH_BYTES = 4096
_ASKED_AT_ONCE = 32
"""Live runs that are asked at the same time."""
_ASKING_ALL = 10.0
"""Seconds for asking all live runs: each of very many may delay its answer."""
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Hello:
    """Request: who is there? Answered by {"pid", "dir", "name", "state", "counts"}."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Request: why do jobs wait? Answered by {"reasons": {job: words}}, for the first of them."""


Asking: TypeAlias = Request | Hello | Reasons
_ASKING = coder_of(Asking)


@dataclass(frozen=True, slots=True)
class Present:
    """A run's answer to Hello."""

    pid: int
    dir: str
    name: str
    state: RunState
    counts: Mapping[str, int]

    @property
    def plausible(self) -> bool:
        """True where every value is one that a run can have."""
        path = os.fsencode(self.dir)
        return (
            path.startswith(b"/")
            and b"\0" not in path
            and len(path) <= _PATH_BYTES
            and 0 < len(self.name) <= _NAME_CHARS
            and all(count >= 0 for count in self.counts.values())
        )


@dataclass(frozen=True, slots=True)
class Told:
    """A run's answer to Reasons: words by job."""

    reasons: Mapping[str, str]


_PRESENT = coder_of(Present)
_TOLD = coder_of(Told)


class AlreadySupervisedError(UnfinishedRunError):
    """Another supervisor has the run; `pid` is 0 where that is in another PID namespace."""

    def __init__(self, run: str, holder: Holder) -> None:
        pid = holder.pid
        where = f"pid {pid}" if pid else "in another container"
        text = f"run {run} is alive ({where}): follow it with gpulaunch wait {run}, or end it"
        text += f" with gpulaunch cancel -r {run} --all"
        if holder.uid not in (os.geteuid(), 0) and os.geteuid():
            text = f"the name of run {run} is taken by a process of {holder}: nothing goes on with"
            text += " the run before that process ends"
        super().__init__(text)
        self.pid = pid


class NoAnswerError(UsageError):
    """The run is not alive, belongs to another user, or does not answer."""


def to_request(value: object) -> Asking:
    """Return the request that this JSON holds. Raises ValueError, in words for the client."""
    return cast(Asking, _ASKING.decode(value))


def from_request(asking: Asking) -> dict[str, Any]:
    assert _ASKING.encode is not None
    return cast("dict[str, Any]", _ASKING.encode(asking))


# ── The supervisor's side ───────────────────────────────────────────────────────────────────────


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
    def busy(self) -> bool:
        """True while half a request has come, or the answer has not been read."""
        return bool(self._in or self._out)

    def send(self, reply: Mapping[str, Any]) -> None:
        """Send the answer; does nothing where the client has gone."""
        if self.closed:
            return
        self._out += to_json(reply) + b"\n"
        if len(self._out) > REPLY_BYTES:
            self.close()
        else:
            self.flush()

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
            # While an answer waits no further request is read: memory stays bounded.
            self._server._listen_for(self, writing=bool(self._out))

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
            self.end(f"a request has at most {REQUEST_BYTES} bytes")
        if end < 0:
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
            self._server._forget(self)
            self._link.close()
            self._in.clear()
            self._out.clear()

    def _understand(self, line: bytearray) -> Asking | None:
        try:
            return to_request(json.loads(line))
        except (ValueError, RecursionError) as error:
            self.end(f"gpulaunch {__version__} does not understand this request: {error}")
        return None


class ControlServer:
    """The run's socket, bound. Watch `selectables()` and call `on_readable` when one is ready.

    Raises AlreadySupervisedError where another process has the run. Close it last of all: once the
    name is unbound, another supervisor may take the run up.
    """

    def __init__(self, run: str) -> None:
        try:
            self._listener = bind_name(control_name(run).removeprefix("\0gpulaunch/1/"))
        except NameHeldError as held:
            raise AlreadySupervisedError(run, held.holder) from None
        self.run = run
        self._uid = os.geteuid()
        self._conns: dict[int, Conn] = {}
        self._most = max(1, min(CONNECTIONS, getrlimit(RLIMIT_NOFILE)[0] // _SHARE))
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        # One descriptor for the loop, however many clients come and go.
        self._poll = select.epoll()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def selectables(self) -> tuple[int, ...]:
        """The descriptor to watch for reading; the same one as long as the server is open."""
        return () if self._poll.closed else (self._poll.fileno(),)

    def on_readable(self, fd: int = -1) -> list[tuple[Conn, Asking]]:
        """Read and write what clients are ready for; return whole requests, each to be answered."""
        asked: list[tuple[Conn, Asking]] = []
        for ready, mask in self._poll.poll(0):
            if ready == self._listener.fileno():
                self._accept()
                continue
            conn = self._conns.get(ready)
            if conn is None:
                continue
            if mask & select.EPOLLOUT:
                conn.flush()
            elif (asking := conn.receive()) is not None:
                asked.append((conn, asking))
        return asked

    def close(self) -> None:
        for conn in list(self._conns.values()):
            conn.close()
        self._poll.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        self._listener.close()

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
        self._conns[conn.fileno()] = conn
        self._poll.register(conn.fileno(), select.EPOLLIN)
        if uid not in (self._uid, 0):
            conn.end(_others(self.run, self._uid))
        elif len(self._conns) > self._most:
            # A client with half a request or an unread answer goes first; the others do no harm.
            stuck = next((each for each in self._conns.values() if each.busy), conn)
            stuck.end("too many ask this run at once")
            stuck.close()

    def _listen_for(self, conn: Conn, *, writing: bool) -> None:
        if not conn.closed:
            self._poll.modify(conn.fileno(), select.EPOLLOUT if writing else select.EPOLLIN)

    def _forget(self, conn: Conn) -> None:
        if self._conns.pop(conn.fileno(), None) is not None:
            self._poll.unregister(conn.fileno())


# ── The other terminal's side ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A live run. `dir` and `name` are None where the run is another user's, or does not answer.

    `pid` is 0 where its supervisor lives in another PID namespace.
    """

    id: str
    pid: int
    uid: int
    user: str
    dir: Path | None = None
    name: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    state: RunState = "running"

    @property
    def own(self) -> bool:
        """Whether the run is this user's."""
        return self.uid == os.geteuid()


def call(run: str, asking: Asking, timeout: float = 10.0) -> dict[str, Any]:
    """Send a request to a live run and return its answer. Raises NoAnswerError with the reason.

    `timeout` in seconds, from the connection to the answer's end.
    """
    until = time.monotonic() + timeout
    with _connect(run, timeout) as link:
        pid, uid = peer(link)
        if os.geteuid() not in (uid, 0):
            raise NoAnswerError(_others(run, uid))
        try:
            answer = _exchange(link, to_json(from_request(asking)) + b"\n", until)
        except TimeoutError:
            raise NoAnswerError(
                f"run {run} has not answered within {timeout:g} s: its supervisor (pid {pid})"
                " may be stopped (kill -CONT goes on with it)"
            ) from None
    if answer is None:
        raise NoAnswerError(f"run {run} ended before it answered: see gpulaunch status")
    if "error" in answer:
        raise NoAnswerError(str(answer["error"]))
    return answer


def present(run: str, timeout: float = 10.0) -> Present:
    """Return a live run's answer to Hello. Raises NoAnswerError, also for a senseless answer."""
    said = cast(Present, _understood(run, _PRESENT, call(run, Hello(), timeout)))
    if not said.plausible:
        raise NoAnswerError(_NONSENSE.format(run))
    return said


def reasons(run: str, timeout: float = 10.0) -> Mapping[str, str]:
    """Return why jobs of a live run wait, for the first of them. Raises NoAnswerError."""
    return cast(Told, _understood(run, _TOLD, call(run, Reasons(), timeout))).reasons


_NONSENSE = "run {} gives an answer that makes no sense: is it gpulaunch that has its name?"


def _understood(run: str, coder: Coder, answer: object) -> object:
    try:
        return coder.decode(answer)
    except (ValueError, TypeError, RecursionError):
        raise NoAnswerError(_NONSENSE.format(run)) from None


def watch(run: str) -> socket.socket | None:
    """Return a connection that becomes readable when the supervisor is gone; None if it is gone.

    A live run with too many clients closes it as well: watch again before believing it.
    """
    try:
        return _connect(run, 1.0)
    except NoAnswerError:
        return None


def live_runs(timeout: float = 2.0) -> list[RunInfo]:
    """Return all live runs of this machine (more exactly: network namespace), in order of id.

    `timeout` in seconds, for each.
    """
    from concurrent.futures import ThreadPoolExecutor

    until = time.monotonic() + _ASKING_ALL
    names = sorted(name.removeprefix("run/") for name in listening("run/"))
    runs = [run for run in names if RUN_ID.fullmatch(run)]
    if not runs:
        return []
    # All at once: stopped runs would use up the time in which others answer.
    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(runs))) as asking:
        found = list(asking.map(lambda run: _look(run, timeout, until), runs))
    return [info for info in found if info is not None]


def _look(run: str, timeout: float, until: float) -> RunInfo | None:
    patience = max(0.0, min(timeout, until - time.monotonic()))
    try:
        with _connect(run, patience) as link:
            pid, uid = peer(link)
    except NoAnswerError:
        return None
    info = RunInfo(run, pid, uid, user_name(uid))
    if os.geteuid() not in (uid, 0):
        return info
    try:
        said = present(run, patience)
    except NoAnswerError:
        return info
    return replace(info, dir=Path(said.dir), name=said.name, counts=said.counts, state=said.state)


def _connect(run: str, timeout: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # For Unix sockets it is the send timeout that bounds `connect` (a full backlog); with
        # Python's own it would fail at once.
        wait = struct.pack("ll", int(timeout), max(1, int(timeout % 1 * 1_000_000)))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        link.connect(control_name(run))
    except BlockingIOError:
        link.close()
        raise NoAnswerError(
            f"run {run} does not answer: its supervisor may be stopped, see gpulaunch ps"
        ) from None
    except OSError:
        link.close()
        raise NoAnswerError(
            f"run {run} is not alive: it ended or was interrupted, see gpulaunch status"
        ) from None
    return link


def _exchange(link: socket.socket, line: bytes, until: float) -> dict[str, Any] | None:
    """Send one line and return the answer; None where the connection ends. Raises TimeoutError."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        # The run may have closed the connection already, after an answer that says why.
        link.settimeout(max(0.001, until - time.monotonic()))
        link.sendall(line)
    answer = bytearray()
    while not answer.endswith(b"\n"):
        link.settimeout(max(0.001, until - time.monotonic()))
        try:
            data = link.recv(1 << 20)
        except ConnectionResetError:
            return None
        if not data or len(answer) > REPLY_BYTES:
            return None
        answer += data
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _others(run: str, uid: int) -> str:
    return f"run {run} belongs to {user_name(uid)}: nobody else but root may ask it"
