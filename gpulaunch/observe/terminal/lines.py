"""Writes one line per event with its time: without a terminal, and for detached runs.

2026-11-20 07:42:15  started               fold-1ubq  GPU 1
2026-11-20 07:42:57  succeeded      0:42  fold-1ubq  GPU 1
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import TextIO

from gpulaunch.base.text import clock
from gpulaunch.core.facts import Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import EventLine, LineFormatter, Tone
from gpulaunch.observe.terminal.terminal import (
    SafeStream,
    View,
    can_redraw,
    console_for,
    wants_color,
)

HELD = 0.25
"""Seconds that a burst is held back for more of its kind."""


BLOCKED = 0.5
"""Seconds between two tries to write to a reader that takes nothing."""


PIECE = 1024
"""Characters of one write: at most the 4096 bytes that a ready pipe takes without blocking."""


_COLORS: dict[Tone, str] = {"good": "32", "bad": "31;1", "warn": "33", "calm": "36", "start": "2"}


class LineView:
    """Writes a line per event with its time: without a terminal, and for detached runs.

        2026-11-20 07:42:15  started               fold-1ubq  GPU 1
        2026-11-20 07:42:57  succeeded      0:42  fold-1ubq  GPU 1

    `quiet`: jobs that failed for good, and notes on the run.
    """

    def __init__(
        self, stream: TextIO, color: bool = False, quiet: bool = False, zone: tzinfo | None = None
    ) -> None:
        self._stream = SafeStream(stream)
        self._color, self._zone = color, zone
        self._teller = LineFormatter(quiet)
        self._flush_at: float | None = None
        self._unwritten: deque[str] = deque()

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        if lines := self._teller.tell(fact, at, ledger):
            self._take(lines)
        self._flush_at = at.mono + HELD if self._teller.holding else None
        if self._unwritten:
            self._write()

    def tick(self, now: Instant, ledger: Ledger, doing: Sequence[str] = ()) -> None:
        if self._flush_at is not None and now.mono >= self._flush_at:
            self._flush_at = None
            self._take(self._teller.flush())
        self._take(self._teller.waits(now, ledger))
        self._write()

    def next_tick(self, now: Instant) -> float | None:
        if self._unwritten:
            return now.mono + BLOCKED
        waits_at = self._teller.waits_at
        if waits_at is not None and waits_at <= now.mono:
            waits_at = now.mono + BLOCKED  # something still runs
        return min((at for at in (self._flush_at, waits_at) if at is not None), default=None)

    def close(self, ledger: Ledger) -> None:
        self._flush_at = None
        self._take(self._teller.flush())
        self._write(wait=True)

    def _take(self, lines: Iterable[EventLine]) -> None:
        self._unwritten.extend(f"{self._text(line)}\n" for line in lines)

    def _write(self, wait: bool = False) -> None:
        """Write what the reader takes now: a stalled one (`| less`) must not delay jobs."""
        while self._unwritten and (wait or self._stream.writable_now()):
            piece = self._unwritten.popleft()
            while self._unwritten and len(piece) + len(self._unwritten[0]) < PIECE:
                piece += self._unwritten.popleft()
            self._stream.write(piece)
            self._stream.flush()

    def _text(self, line: EventLine) -> str:
        verb = f"{line.verb:<11}"
        if self._color:
            verb = f"\x1b[{_COLORS[line.tone]}m{verb}\x1b[0m"
        took = "" if line.seconds is None else clock(line.seconds)
        when = words.local_time(line.utc, self._zone)
        rest = "  ".join(filter(None, [line.subject, line.detail]))
        return f"{when}  {verb} {took:>8}  {rest}".rstrip()


def choose_view(
    stream: TextIO,
    environ: Mapping[str, str] = os.environ,
    quiet: bool = False,
    no_progress: bool = False,
    earlier: Mapping[str, float] | None = None,
) -> View:
    """Return the view that fits the stream: live if it can redraw, else a line per event.

    `earlier`: how long jobs took in earlier runs, for the estimate.
    """
    if quiet or no_progress or not can_redraw(stream, environ):
        return LineView(stream, color=wants_color(stream, environ), quiet=quiet)
    from gpulaunch.observe.terminal.progress import ProgressView

    return ProgressView(console_for(stream, environ), earlier)
