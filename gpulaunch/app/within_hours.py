"""Tells a run when its hours begin and end (`--between`): it starts jobs within them alone.

    the clock on the wall ─▶ look ─▶ Pause(OutsideHours) ... Pause(None), both by "hours"

The core knows no zone. The clock is looked at in each turn of the run, and once a minute at least:
it may be set, and goes on while the machine sleeps, which timers do not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo

from gpulaunch.core.events import Pause
from gpulaunch.core.model import Instant
from gpulaunch.core.reasons import OutsideHours
from gpulaunch.hours import Hours
from gpulaunch.loop import Loop

LOOK_AGAIN = 60.0
"""Seconds after which the clock on the wall is looked at again, at most."""


class WithinHours:
    """Says what changes as the hours of a run begin and end. `zone`: None is this machine's."""

    def __init__(
        self, hours: Hours, loop: Loop, clock: Callable[[], Instant], zone: tzinfo | None = None
    ) -> None:
        self._hours = hours
        self._loop = loop
        self._clock = clock
        self._zone = zone
        self._known = (0.0, 0.0)  # since when, and until when, what was said last holds
        self._said: OutsideHours | None = None

    def look(self) -> Pause | None:
        """Return the request that the clock makes necessary now; None for none."""
        now = self._clock()
        since, until = self._known
        if since <= now.utc < until:
            return None
        change = self._hours.next_change(now.utc, self._zone)
        self._known = (now.utc, float("inf") if change is None else change)
        closed = change is not None and not self._hours.open_at(now.utc, self._zone)
        outside = OutsideHours(change) if closed and change is not None else None
        self._wake(now)
        if outside == self._said:
            return None
        self._said = outside
        return Pause(outside, "hours")

    def _wake(self, now: Instant) -> None:
        """Have the loop turn when the next change may have come."""
        wait = min(LOOK_AGAIN, max(0.001, self._known[1] - now.utc))
        self._loop.call_at("hours", now.mono + wait, lambda: self._wake(self._clock()))
