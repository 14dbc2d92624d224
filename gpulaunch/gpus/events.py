"""Reports cards' health events as they happen: Xids and others that the driver announces.

    EventsClient(gpus): fileno() ... on_readable() -> [HealthEvent, ...]      in a loop
    hearing(gpus) -> {uuid: what is heard, or why nothing}                    once, blocking

Owns the helper process (`listen`): starts it, and another, ever later, when it dies. Never calls
into the driver, never waits for the helper, decides nothing. That no events can be had is no error.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulaunch.core.model import Gpu
from gpulaunch.gpus import descriptors, parse, xid
from gpulaunch.gpus.helper import command

PERIOD = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
MAX_RESTARTS = 8  # in a row, within about two minutes, before events are given up
STEADY_SECONDS = 600.0  # seconds of life after which a helper's death starts a new row

_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """Something happened to a card. `code` is the Xid, None for another kind of event.

    `verdict` and `stops` as in `xid.Meaning`; `text` is one line for people; `time` is UTC, in
    seconds since 1970, when it was heard.
    """

    gpu: str
    code: int | None
    text: str
    verdict: xid.Verdict
    stops: bool
    time: float


class EventsClient:
    """Listens to these cards from its construction on. Watch `fileno()`; it never changes.

    `told` says for each card what is heard of it (the names of event types) or, in words, why
    nothing is; a card that is not in it yet is being asked about. `period`, in seconds, is the
    longest that the helper waits in the driver at a time. Raises OSError where descriptors are
    scarce.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        environ: Mapping[str, str] | None = None,
        period: float = PERIOD,
    ) -> None:
        self.told: dict[str, tuple[str, ...] | str] = {}
        self._environ = None if environ is None else dict(environ)
        self._period = period
        self._gpus = [(gpu.index, gpu.uuid) for gpu in gpus if not gpu.simulated]
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._asking: list[str] = []
        self._lost: set[str] = set()
        self._heard = b""
        self._since = 0.0
        self._failures = 0
        self._ended = not self._gpus
        self._poll = select.epoll()
        try:
            self._timer = descriptors.timer(0)
        except OSError:
            self._poll.close()
            raise
        self._poll.register(self._timer, select.EPOLLIN)
        if not self._ended:
            self._start()

    def __enter__(self) -> EventsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._poll.fileno()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def ended(self) -> bool:
        """True once no event will come any more."""
        return self._ended

    def on_readable(self) -> list[HealthEvent]:
        """Return the events since the last call. Never blocks."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._timer, 8)
            self._start()
        return list(self._read())

    def close(self) -> None:
        """End the helper. Idempotent."""
        if self._poll.closed:
            return
        self._ended = True
        self._drop()
        for process in self._killed:
            # One that is stuck inside the kernel cannot be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        os.close(self._timer)
        self._poll.close()

    # ── The helper ──────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self._reap()
        arguments = [str(self._period), json.dumps(self._gpus)]
        try:
            process = subprocess.Popen(
                command("listen", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C at the terminal must not end the helper
            )
        except OSError as error:  # processes, memory or descriptors are scarce
            self._put_off(f"no process can be started to listen: {error.strerror}")
            return
        self._process, self._since = process, time.monotonic()
        os.set_blocking(self._pipe, False)
        self._poll.register(self._pipe, select.EPOLLIN)

    @property
    def _pipe(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _read(self) -> Iterator[HealthEvent]:
        while self._process is not None:
            try:
                said = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not said:
                yield from self._note_end()
                return
            *lines, self._heard = (self._heard + said).split(b"\n")
            for line in lines:
                # A library of the driver may write to standard output as well.
                if line.startswith(b'{"said": ') and line.endswith(b"}"):
                    yield from self._hear(json.loads(line))

    def _hear(self, line: Mapping[str, Any]) -> Iterator[HealthEvent]:
        """Handle a line of the helper, whose grammar is in `listen`; yield its events."""
        if line["said"] == "asking":
            self._asking = line["gpus"]
        elif line["said"] == "end":
            self._ended = True
        elif line["said"] == "event":
            yield from happened(line)
        else:
            self._asking = []
            error = line.get("error")
            why = tuple(line["types"]) if error is None else str(parse.fault("", error))
            self.told.update(dict.fromkeys(line["gpus"], why))
            if error is not None and error["kind"] in _LOST:
                yield from self._newly_lost(line["gpus"], error["text"])

    def _newly_lost(self, gpus: Sequence[str], words: str) -> Iterator[HealthEvent]:
        for gpu in gpus:
            if gpu not in self._lost:
                self._lost.add(gpu)
                yield HealthEvent(gpu, None, f"the driver: {words}", "lost", True, time.time())

    def _note_end(self) -> Iterator[HealthEvent]:
        """Restart a helper that has ended, without the cards on which its call hung."""
        stuck, self._asking = self._asking, []
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(0.1) in (-signal.SIGKILL, -signal.SIGTERM):
                stuck = []  # somebody killed the helper: no card is to blame
        self._drop()
        self._gpus = [(index, uuid) for index, uuid in self._gpus if uuid not in stuck]
        why = "the driver does not answer when its events are asked for: none will be reported"
        self.told.update(dict.fromkeys(stuck, why))
        for gpu in stuck:
            yield HealthEvent(gpu, None, why, "note", False, time.time())
        if not self._ended:
            self._put_off("the process that listens dies again and again")

    def _put_off(self, why: str) -> None:
        if self._since and time.monotonic() - self._since > STEADY_SECONDS:
            self._failures = 0
        self._failures += 1
        self._ended = self._failures > MAX_RESTARTS or not self._gpus
        if not self._ended:
            pause = FIRST_PAUSE * 2.0 ** (self._failures - 1)
            descriptors.set_timer(self._timer, min(pause, LONGEST_PAUSE))
        elif self._gpus:
            self.told.update(dict.fromkeys((uuid for _, uuid in self._gpus), why))

    def _drop(self) -> None:
        self._heard = b""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdout is not None
            self._poll.unregister(process.stdout.fileno())
            process.stdout.close()
            process.kill()
            self._killed.append(process)
        self._reap()

    def _reap(self) -> None:
        self._killed = [process for process in self._killed if process.poll() is None]


def happened(line: Mapping[str, Any]) -> Iterator[HealthEvent]:
    """Yield the events of a helper's line, one for each card or MIG instance that it concerns."""
    code, action = line["code"], line["recovery"]
    if action is not None:
        meaning = xid.recovery(action)
        text = f"Xid {code}, {meaning.text}" if code is not None else meaning.text
    else:
        meaning = xid.event(line["kind"]) if code is None else xid.xid(code)
        text = meaning.text
    for gpu in line["gpus"]:
        yield HealthEvent(gpu, code, text, meaning.verdict, meaning.stops, line["time"])


def hearing(
    gpus: Sequence[Gpu], environ: Mapping[str, str], timeout: float = 10.0
) -> dict[str, tuple[str, ...] | str]:
    """Return which events each of these cards announces, or why none (`EventsClient.told`).

    Blocks for at most `timeout` seconds; a card that is missing then does not answer.
    """
    end = time.monotonic() + timeout
    with EventsClient(gpus, environ) as client:
        while len(client.told) < len(gpus) and not client.ended:
            if not select.select([client], [], [], max(0.0, end - time.monotonic()))[0]:
                break
            client.on_readable()
        return dict(client.told)
