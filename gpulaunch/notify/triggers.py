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

FINISH, PAUSED, FIRST, IDLE, EVERY = "finish", "paused", "first_failure", "gpu_idle", "failures"
EVENTS = (FINISH, PAUSED, FIRST, IDLE, EVERY)
"""What a message may be about, the weightiest first."""


class Occasions:
    """The messages due in one start of a run. Failures are jobs that failed for good in it."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._owed: dict[int, set[str]] = {number: set() for number in range(len(targets))}
        self._free_at = dict.fromkeys(self._owed, 0.0)
        self._failures = 0

    def see(self, fact: f.Fact) -> None:
        match fact:
            case f.JobSettled(_, "failed"):
                self._failures += 1
                if self._failures == 1:
                    self._owe(FIRST)
                for number, target in enumerate(self._targets):
                    if target.every and self._failures % target.every == 0:
                        self._owed[number].add(EVERY)
            case f.AttemptIdle():
                self._owe(IDLE)
            case f.AdmissionPaused(by="hours") | f.AdmissionContinued("hours"):
                pass  # as it was asked for: nobody needs to act
            case f.AdmissionPaused():
                self._owe(PAUSED)
            case f.AdmissionContinued():
                for owed in self._owed.values():
                    owed.discard(PAUSED)  # the run goes on: nobody needs to act

    def next_at(self, busy: Collection[int] = ()) -> float | None:
        """Return when (monotonic) the next message is due; None: nobody is owed one.

        `busy`: who is being told something right now.
        """
        return min((self._free_at[number] for number in self._owing(busy)), default=None)

    def due(self, now: float, busy: Collection[int] = ()) -> list[tuple[int, tuple[str, ...]]]:
        """Return (target, events) of each message to send now, and count them as sent."""
        numbers = [number for number in self._owing(busy) if self._free_at[number] <= now]
        return [(number, self._settle(number, now)) for number in numbers]

    def finish(self, now: float) -> list[tuple[int, tuple[str, ...]]]:
        """Return all messages due at the run's end, however recent a target's last one is."""
        self._owe(FINISH)
        return [(number, self._settle(number, now)) for number in self._owing()]

    def _owe(self, event: str) -> None:
        for number, target in enumerate(self._targets):
            if event in target.on:
                self._owed[number].add(event)

    def _owing(self, busy: Collection[int] = ()) -> list[int]:
        return [number for number, owed in self._owed.items() if owed and number not in busy]

    def _settle(self, number: int, now: float) -> tuple[str, ...]:
        events, self._owed[number] = self._owed[number], set()
        self._free_at[number] = now + GAP
        return tuple(event for event in EVENTS if event in events)
