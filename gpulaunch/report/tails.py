"""The ends of logs that a report carries: bounded in lines, in number and in all, failures first.

Reads through the function it is handed. What is left out is a link away: the logs lie beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import AttemptId
from gpulaunch.report.fold import Period, begin, finish

LINES = 12
FAILED_WINDOW = 64 * 1024
WINDOW = 4 * 1024
"""Bytes of a log's end that are read: more where something went wrong."""
LOGS = 2000
CHARACTERS = 1 << 20
"""Of so many logs, and so many characters in all."""

ReadTail: TypeAlias = Callable[[AttemptId, int, int], Sequence[str]]
"""The last lines of an attempt's log: at most so many, from so many bytes at its end."""


def tails(
    attempts: Iterable[AttemptRecord], when: Period, read: ReadTail
) -> dict[AttemptId, tuple[str, ...]]:
    """Of failures first, then of the longest."""
    found: dict[AttemptId, tuple[str, ...]] = {}
    left = CHARACTERS
    for attempt in sorted(attempts, key=lambda one: _rank(one, when))[:LOGS]:
        window = WINDOW if attempt.state == "succeeded" else FAILED_WINDOW
        lines = tuple(read(attempt.id, LINES, window))
        left -= sum(map(len, lines))
        if left < 0:
            break
        if lines:
            found[attempt.id] = lines
    return found


def _rank(attempt: AttemptRecord, when: Period) -> tuple[int, float]:
    kind = 0 if attempt.failure else 1 if attempt.state != "succeeded" else 2
    return kind, begin(attempt) - finish(attempt, when)
