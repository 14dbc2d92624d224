"""The other terminal's side of the control socket: asks a run, and lists those that are alive."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.agent.proc import hindrance, suspension
from gpulaunch.agent.wire import peer
from gpulaunch.base.errors import NothingChangedError
from gpulaunch.base.files import user_name
from gpulaunch.core.model import RunState
from gpulaunch.core.reasons import WaitReason
from gpulaunch.gpus.socket_locks import RUN_ID, listening
from gpulaunch.journal.codec import from_json, plain, to_json, value_of
from gpulaunch.journal.liveness import control_name, may_supervise
from gpulaunch.run.control_protocol import (
    HELLO_BYTES,
    REPLY_BYTES,
    Add,
    Asking,
    Hello,
    NoAnswerError,
    Present,
    Reasons,
    RefusedAnswer,
    SuspendedError,
    Told,
    not_admitted,
    suspended_as,
)

_ASKED_AT_ONCE = 32
"""Live runs that are asked at the same time."""
_ASKING_ALL = 10.0
"""Seconds for asking all live runs: each of very many may delay its answer."""
SUSPENDED_LOOK = 0.5
"""Seconds without an answer until a look at whether the run's launcher is suspended."""
_WITHDRAWN = (
    "The request is withdrawn, unless the launcher was carrying it out when it was stopped: look"
    " with gpulaunch status once it goes on"
)
_NONSENSE = "run {} gives an answer that makes no sense: is it gpulaunch that has its name?"


class RunInfo(Struct, frozen=True):
    """A live run. `dir` and `name` are None where the run is another user's, or does not answer.

    `suspended`: its launcher is "stopped" or "frozen", and does nothing; empty if it is not.

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
    suspended: str = ""

    @property
    def own(self) -> bool:
        """Whether the run is this user's."""
        return self.uid == os.geteuid()


def call(
    run: str,
    asking: Asking,
    timeout: float = 10.0,
    answer: Any = Any,
    most: int = REPLY_BYTES,
) -> Any:
    """Send a request to a live run and return its answer, a value of the type `answer`.

    Raises NoAnswerError with the reason, also for an answer that cannot be understood;
    NothingChangedError for jobs that are wrong.

    `timeout` in seconds, from the connection to the answer's end. `most`: bytes of the answer.
    """
    until = time.monotonic() + timeout
    with _connect(run, timeout) as link:
        pid, uid = peer(link)
        # Root may ask the runs of all users, but gives its environment to none of them.
        if os.geteuid() not in (uid, 0) or (isinstance(asking, Add) and uid != os.geteuid()):
            raise NoAnswerError(not_admitted(run, uid))
        if suspended := suspended_as(run, pid):
            raise SuspendedError(f"{suspended}. Nothing was asked of it")
        try:
            line = _exchange(link, to_json(plain(asking)) + b"\n", until, most, run, pid)
        except TimeoutError:
            why = hindrance(pid)
            raise NoAnswerError(
                f"run {run} has not answered within {timeout:g} s: its launcher (pid {pid}) is"
                f" {why or 'busy, or its disk does not answer'}. The request is withdrawn, unless"
                " the launcher is carrying it out already"
            ) from None
    if not line.endswith(b"\n") and len(line) <= most:
        raise NoAnswerError(f"run {run} ended before it answered: see gpulaunch status")
    try:
        said = from_json(line)
        if isinstance(said, dict) and "error" in said:
            refusal = value_of(said, RefusedAnswer)
        else:
            return value_of(said, answer)
    except ValueError:
        raise NoAnswerError(_NONSENSE.format(run)) from None
    if refusal.found and not isinstance(asking, Hello | Reasons):
        raise NothingChangedError(refusal.found)
    raise NoAnswerError(refusal.error)


def present(run: str, timeout: float = 10.0) -> Present:
    """Return a live run's answer to Hello. Raises NoAnswerError, also for a senseless answer."""
    said: Present = call(run, Hello(), timeout, Present, HELLO_BYTES)
    if not said.plausible:
        raise NoAnswerError(_NONSENSE.format(run))
    return said


def reasons(run: str, timeout: float = 10.0) -> Mapping[str, WaitReason]:
    """Return why jobs of a live run wait, for the first of them. Raises NoAnswerError."""
    told: Told = call(run, Reasons(), timeout, Told)
    return told.reasons


def suspended(run: str, owner: int) -> str:
    """Return that a live run's launcher is stopped or frozen, in words; empty if it is not.

    `owner` as for `watch`.
    """
    link = watch(run, owner)
    if link is None:
        return ""
    with link:
        return suspended_as(run, peer(link)[0])


def watch(run: str, owner: int) -> socket.socket | None:
    """Return a connection that becomes readable when the supervisor is gone; None if it is gone.

    A live run with too many clients closes it as well: watch again before believing it. `owner` as
    for `may_supervise`: a process of another user is no supervisor.
    """
    try:
        link = _connect(run, 1.0)
    except NoAnswerError:
        return None
    if may_supervise(link, owner):
        return link
    link.close()
    return None


def wait_until_gone(run: str) -> None:
    """Wait until the supervisor of this user's run is gone, its report written."""
    while (supervisor := watch(run, os.geteuid())) is not None:
        with supervisor, contextlib.suppress(ConnectionResetError):
            supervisor.recv(1)  # until it is gone, and the connection with it


def live_runs(timeout: float = 2.0) -> list[RunInfo]:
    """Return all live runs of this machine (more exactly: network namespace), in order of id.

    `timeout` in seconds, for each.
    """
    until = time.monotonic() + _ASKING_ALL
    names = sorted(name.removeprefix("run/") for name in listening("run/"))
    runs = [run for run in names if RUN_ID.fullmatch(run)]
    if not runs:
        return []
    if len(runs) == 1:
        return [info for info in [_look(runs[0], timeout, until)] if info is not None]
    from concurrent.futures import ThreadPoolExecutor

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
    info = RunInfo(run, pid, uid, user_name(uid), suspended=suspension(pid))
    if os.geteuid() not in (uid, 0) or info.suspended:
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


def _exchange(
    link: socket.socket, line: bytes, until: float, most: int, run: str, pid: int
) -> bytes:
    """Send one line; return the answer, which is no whole line where the connection ends before.

    Of a longer answer than `most` bytes, returns some more than these. Raises TimeoutError, and
    SuspendedError once the launcher was found suspended twice in a row. The server drops a request
    whose client has gone, so that an error here withdraws it.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        # The run may have closed the connection already, after an answer that says why.
        link.settimeout(max(0.001, until - time.monotonic()))
        link.sendall(line)
    answer, found = bytearray(), 0
    while not answer.endswith(b"\n") and len(answer) <= most:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        link.settimeout(max(0.001, min(left, SUSPENDED_LOOK)))
        try:
            data = link.recv(1 << 16)
        except ConnectionResetError:
            break
        except TimeoutError:
            suspended = suspended_as(run, pid)
            found = found + 1 if suspended else 0
            if found > 1:
                raise SuspendedError(f"{suspended}. {_WITHDRAWN}") from None
            continue
        if not data:
            break
        answer += data
    return bytes(answer)
