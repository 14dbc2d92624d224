"""Reports cards' health events as they happen: Xids and others that the driver announces.

    EventsClient(gpus, loop, report): report(GpuEvent) ...       in a loop
    hearing(gpus) -> {uuid: what is announced, or why nothing is}   once, blocking

Owns the helper process (`listen`): starts it, and another, ever later, when it dies. Never calls
into the driver, never waits for the helper, decides nothing. That no events can be had is no error.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Literal, TypedDict

from msgspec import Struct

from gpulaunch.core.events import GpuEvent
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import parse, xid
from gpulaunch.helper_process import Helper, command, understood
from gpulaunch.loop import Loop

PERIOD = 60.0
"""Seconds that the helper waits in the driver at a time, at most."""

_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")


class DriverError(TypedDict):
    """An error of the driver, as the helpers tell it."""

    code: int | None
    kind: str
    text: str


class HelperLine(Struct, frozen=True):
    """A line of the helper: `listen` says which `said` has which of the others."""

    said: Literal["asking", "hears", "deaf", "event", "end"]
    gpus: list[str] = []
    types: list[str] = []
    error: DriverError | None = None
    kind: str = ""
    code: int | None = None
    recovery: int | None = None


class EventsClient:
    """Listens to these cards from its construction on; the loop calls `report` with each event.

    `coverage` has for each card the types of events that are announced or, in words, why none is;
    a card that is not in it yet is being asked about. `period`, in seconds, is the longest that the
    helper waits in the driver at a time.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        loop: Loop,
        report: Callable[[GpuEvent], object],
        environ: Mapping[str, str] | None = None,
        period: float = PERIOD,
    ) -> None:
        self.coverage: dict[str, tuple[str, ...] | str] = {}
        self._loop = loop
        self._report = report
        self._environ = None if environ is None else dict(environ)
        self._period = period
        self._gpus = [(gpu.index, gpu.uuid) for gpu in gpus if not gpu.simulated]
        self._helper = Helper(loop, self._said, self._died)
        self._asking: list[str] = []
        self._lost: set[str] = set()
        self._ended = not self._gpus
        if not self._ended:
            self._start()

    def __enter__(self) -> EventsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._helper.pid

    @property
    def ended(self) -> bool:
        """True once no event will come any more."""
        return self._ended

    def read(self) -> None:
        """Report the events that have come since the loop waited."""
        self._helper.read()

    def close(self) -> None:
        """End the helper. Idempotent."""
        self._ended = True
        self._helper.close()

    # ── The helper ──────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        arguments = [str(self._period), json.dumps(self._gpus)]
        try:
            self._helper.start(command("gpulaunch.gpus.listen", *arguments), self._environ)
        except OSError as error:  # processes, memory or descriptors are scarce
            self._put_off(f"no process can be started to listen: {error.strerror}")

    def _said(self, line: bytes) -> None:
        # A library of the driver may write to standard output as well.
        if line.startswith(b'{"said": ') and line.endswith(b"}"):
            self._take(understood(line, HelperLine))

    def _take(self, line: HelperLine) -> None:
        if line.said == "asking":
            self._asking = line.gpus
        elif line.said == "end":
            self._ended = True
        elif line.said == "event":
            for event in happened(line):
                self._report(event)
        else:
            self._asking = []
            error = line.error
            why = tuple(line.types) if error is None else str(parse.fault("", error))
            self.coverage.update(dict.fromkeys(line.gpus, why))
            if error is not None and error["kind"] in _LOST:
                self._report_lost(line.gpus, error["text"])

    def _report_lost(self, gpus: Sequence[str], words: str) -> None:
        for gpu in gpus:
            if gpu not in self._lost:
                self._lost.add(gpu)
                text = f"the driver: {words}"
                self._report(GpuEvent(gpu, None, text, "lost", stops=True))

    def _died(self, status: int | None) -> None:
        """Restart a helper that has ended, without the cards on which its call hung."""
        stuck, self._asking = self._asking, []
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            stuck = []  # somebody killed the helper: no card is to blame
        self._gpus = [(index, uuid) for index, uuid in self._gpus if uuid not in stuck]
        why = "the driver does not answer when its events are asked for: none will be reported"
        self.coverage.update(dict.fromkeys(stuck, why))
        if not self._ended:
            self._put_off("the process that listens dies again and again")
        for gpu in stuck:
            self._report(GpuEvent(gpu, None, why, "note"))

    def _put_off(self, why: str) -> None:
        self._ended = not self._gpus or not self._helper.restart(self._start)
        if self._ended:
            self.coverage.update(dict.fromkeys((uuid for _, uuid in self._gpus), why))


def happened(line: HelperLine) -> list[GpuEvent]:
    """Return the events of a helper's line, one for each card or MIG instance concerned."""
    code, action = line.code, line.recovery
    if action is not None:
        meaning = xid.recovery(action)
        text = f"Xid {code}, {meaning.text}" if code is not None else meaning.text
    else:
        meaning = xid.event(line.kind) if code is None else xid.xid(code)
        text = meaning.text
    return [GpuEvent(gpu, code, text, meaning.verdict, meaning.stops) for gpu in line.gpus]


def hearing(
    gpus: Sequence[Gpu], environ: Mapping[str, str], timeout: float = 10.0
) -> dict[str, tuple[str, ...] | str]:
    """Return which events each of these cards announces, or why none (`EventsClient.coverage`).

    Blocks for at most `timeout` seconds; a card that is missing then does not answer.
    """
    end = time.monotonic() + timeout
    loop = Loop()
    with closing(loop), EventsClient(gpus, loop, lambda event: None, environ) as client:
        loop.call_at("timeout", end, lambda: None)
        while len(client.coverage) < len(gpus) and not client.ended and time.monotonic() < end:
            loop.turn()
        return dict(client.coverage)
