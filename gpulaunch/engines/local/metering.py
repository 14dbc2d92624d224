"""The client of the sampler process (`gpulaunch.sampler`): tells it which attempts run.

Starts the sampler a while after the first attempt, so that a list which is over by then pays
nothing. When it dies, starts another after ever longer pauses, and gives up in the end. Never waits
for it, save at the close of the run. Nothing that the sampler does changes the run, but for one
thing: an attempt that it finds on a card of others is posted as Misplaced.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpulaunch.core.events import Misplaced
from gpulaunch.core.model import AttemptId, Gpu
from gpulaunch.engines.protocol import Post
from gpulaunch.failure import advice_for
from gpulaunch.gpus.helper import command
from gpulaunch.loop import Loop
from gpulaunch.sampler.keeper import Keeper, keeper_of, spent_by_all, spent_since

BEGIN_AFTER = 2.0
"""Seconds from the first attempt to the sampler's start."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds until a sampler that died is started again: at first, and at most after doublings."""
MAX_RESTARTS = 8
"""Restarts in a row before the sampler is given up."""
STEADY_SECONDS = 600.0
"""Seconds after which a sampler that dies begins a new row of restarts."""
FULL_PIPE_DELAY = 1.0
"""Seconds until a sampler that reads nothing is written to again."""
MAX_MESSAGES_KEPT = 10_000
"""Messages kept at most for a sampler that is not there or does not read."""
LAST_WORDS = 2.0
"""Seconds that the sampler has at the end of the run to write down what is left."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """An attempt that runs. `at`: its monotonic start; `gpus`: UUIDs, None on simulated cards."""

    attempt: AttemptId
    gpus: tuple[str, ...] | None
    keeper: Keeper | None
    at: float
    misplaced: bool = False

    def message(self, do: str, now: float, **more: object) -> dict[str, object]:
        return {
            "do": do,
            "job": self.attempt.job,
            "number": self.attempt.number,
            "gpus": self.gpus,
            "keeper": list(asdict(self.keeper).values()) if self.keeper else None,
            "seconds": now - self.at,
            **more,
        }


class Metering:
    """Owns the sampler process. `path` is the run's metrics.db.

    `after`: seconds from the first attempt to the sampler's start.
    """

    def __init__(
        self,
        path: Path,
        gpus: Sequence[Gpu],
        loop: Loop,
        post: Post,
        environ: Mapping[str, str],
        warn: Callable[[str | None, str], None],
        after: float = BEGIN_AFTER,
    ) -> None:
        self._path = path
        self._cards = [(gpu.index, gpu.uuid) for gpu in gpus if not gpu.simulated]
        self._pretend = any(gpu.simulated for gpu in gpus)
        self._loop = loop
        self._post = post
        self._environ = dict(environ)
        self._warn = warn
        self._after = after
        self._wanted = False
        self._warned = False
        self._live: dict[AttemptId, _Begun] = {}
        self._unsaid = False
        self._ended: deque[dict[str, object]] = deque(maxlen=MAX_MESSAGES_KEPT)
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._since = 0.0
        self._failures = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    # ── Attempts ────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        attempt: AttemptId,
        pid: int,
        keeper: int,
        gpus: Sequence[Gpu],
        goes_on: bool = False,
    ) -> None:
        """Tell the sampler of an attempt whose main process has just started.

        `keeper`: the PID of its keeper, as the keeper says it. `goes_on`: the process is a
        worker's, which has just got another item.
        """
        own = None if self._pretend else tuple(gpu.uuid for gpu in gpus)
        begun = _Begun(attempt, own, keeper_of(pid, keeper, goes_on), time.monotonic())
        self._live[attempt] = begun
        if not self._wanted:
            self._wanted = True
            self._loop.call_after("metering:start", self._after, self._start)
        self._unsaid = not self._say(begun.message("begin", begun.at)) or self._unsaid
        self._flush()

    def end(self, attempt: AttemptId, kept: bool = False) -> None:
        """Tell the sampler of an attempt's end, with its CPU time. Ignores unknown attempts.

        Call this before the attempt's keeper begins another one. `kept`: its worker lives on.
        """
        begun = self._live.pop(attempt, None)
        if begun is None:
            return
        tell = spent_by_all if kept else spent_since
        cpu = tell(begun.keeper) if begun.keeper else None
        cpu = None if cpu is None else max(0.0, cpu)  # the kernel rounds each part by itself
        self._ended.append(begun.message("end", time.monotonic(), cpu_seconds=cpu))
        self._flush()

    def close(self) -> None:
        """Let the sampler record what is left, then end it. Idempotent."""
        for timer in ("start", "flush"):
            self._loop.forget(f"metering:{timer}")
        if self._link is not None:
            self._say_goodbye(self._link)
        self._drop()
        for process in self._killed:
            # A sampler that is stuck on a dead file server cannot be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    # ── The process ─────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = subprocess.Popen(
                    command(
                        "main",
                        str(self._path),
                        json.dumps(self._cards),
                        package="gpulaunch.sampler",
                        title="sampler",
                    ),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environ,
                    start_new_session=True,  # a Ctrl-C at the terminal is not meant for it
                )
            except OSError:  # processes, memory or descriptors are scarce
                ours.close()
                self._put_off()
                return
        ours.setblocking(False)
        self._link, self._process, self._since = ours, process, time.monotonic()
        self._loop.watch(ours.fileno(), self._hear)
        self._unsaid = True
        self._flush()

    def _say(self, message: Mapping[str, object]) -> bool:
        """Send a message to the sampler; False: it was not sent and is to be sent again."""
        if self._link is None:
            return False
        try:
            self._link.send(json.dumps(message).encode())
        except OSError:  # it reads too little, or is gone, which the end of file says next
            return False
        return True

    def _flush(self) -> None:
        """Send the messages that could not be sent. The sampler ignores a start told twice."""
        if self._link is None:
            return
        if self._unsaid:
            now = time.monotonic()
            begun = [each.message("begin", now) for each in self._live.values()]
            self._unsaid = not all(map(self._say, begun))
        while self._ended and self._say(self._ended[0]):
            self._ended.popleft()
        if self._ended or self._unsaid:
            self._loop.call_after("metering:flush", FULL_PIPE_DELAY, self._flush)

    def _hear(self) -> None:
        while self._link is not None:
            try:
                said = self._link.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if not said:
                self._drop()
                self._put_off()
                return
            self._heard(json.loads(said))

    def _heard(self, said: Mapping[str, Any]) -> None:
        if said["said"] == "trouble":
            if not self._warned:
                self._warned = True
                self._warn(None, f"what the run uses is not all recorded: {said['text']}")
            return
        attempt = AttemptId(said["job"], said["number"])
        begun = self._live.get(attempt)
        if begun is not None and not begun.misplaced:  # else an earlier sampler reported it
            self._live[attempt] = replace(begun, misplaced=True)
            advice = advice_for("wrong_gpu")
            self._post(Misplaced(attempt, said["gpu"], said["pid"], said["text"], advice))

    def _put_off(self) -> None:
        if self._since and time.monotonic() - self._since > STEADY_SECONDS:
            self._failures = 0
        self._failures += 1
        if self._failures <= MAX_RESTARTS:
            pause = min(FIRST_PAUSE * 2.0 ** (self._failures - 1), LONGEST_PAUSE)
            self._loop.call_after("metering:start", pause, self._start)

    def _say_goodbye(self, link: socket.socket) -> None:
        """Send what is left, and wait at most LAST_WORDS until the sampler has recorded it."""
        end = time.monotonic() + LAST_WORDS
        with contextlib.suppress(OSError):
            link.settimeout(LAST_WORDS / 4)
            while self._ended and self._say(self._ended[0]):
                self._ended.popleft()
            link.shutdown(socket.SHUT_WR)
            while select.select([link], [], [], max(0.0, end - time.monotonic()))[0]:
                if not link.recv(1 << 16):
                    break

    def _drop(self) -> None:
        if self._link is not None:
            self._loop.unwatch(self._link.fileno())
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None
        self._killed = [process for process in self._killed if process.poll() is None]
