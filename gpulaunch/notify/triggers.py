"""Decides which messages are due, to whom and when, from facts. Pure: the time is passed in.

Bursts are folded: a target is told at most once in GAP seconds, of all that came up meanwhile; what
the counts are by then is the message's business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpulaunch.core import facts as f
from gpulaunch.jobfile.notify_spec import Target

GAP = 30.0
"""Seconds between two messages to the same target, at least; the end of the run does not wait."""

FINISH, PAUSED, FIRST, EVERY = "finish", "paused", "first_failure", "failures"
EVENTS = (FINISH, PAUSED, FIRST, EVERY)
"""What a message may be about, the weightiest first."""


class Occasions:
    """The messages due in one start of a run. Failures are jobs that failed for good in it."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._owed: dict[int, set[str]] = {number: set() for number in range(len(targets))}
        self._told: dict[int, float] = {}
        self._failures = 0

    def see(self, fact: f.Fact) -> None:
        match fact:
            case f.JobSettled(_, "failed"):
                self._failures += 1
                for number, target in enumerate(self._targets):
                    if self._failures == 1 and FIRST in target.on:
                        self._owed[number].add(FIRST)
                    if target.every and self._failures % target.every == 0:
                        self._owed[number].add(EVERY)
            case f.AdmissionPaused():
                for number, target in enumerate(self._targets):
                    if PAUSED in target.on:
                        self._owed[number].add(PAUSED)
            case f.AdmissionContinued():
                for owed in self._owed.values():
                    owed.discard(PAUSED)  # the run goes on: nobody needs to act

    def next_at(self, busy: Collection[int] = ()) -> float | None:
        """Return when (monotonic) the next message is due; None: nobody is owed one.

        `busy`: who is being told something right now.
        """
        owed = [number for number, events in self._owed.items() if events and number not in busy]
        return min((self._told.get(number, -GAP) + GAP for number in owed), default=None)

    def due(self, now: float, busy: Collection[int] = ()) -> list[tuple[int, tuple[str, ...]]]:
        """Return (target, events) of each message to send now, and count them as sent."""
        numbers = [
            number
            for number, events in self._owed.items()
            if events and number not in busy and self._told.get(number, -GAP) + GAP <= now
        ]
        return [(number, self._settle(number, now)) for number in numbers]

    def finish(self, now: float) -> list[tuple[int, tuple[str, ...]]]:
        """Return all messages due at the run's end, however recent a target's last one is."""
        for number, target in enumerate(self._targets):
            if FINISH in target.on:
                self._owed[number].add(FINISH)
        numbers = [number for number, events in self._owed.items() if events]
        return [(number, self._settle(number, now)) for number in numbers]

    def _settle(self, number: int, now: float) -> tuple[str, ...]:
        events, self._owed[number] = self._owed[number], set()
        self._told[number] = now
        return tuple(event for event in EVENTS if event in events)
