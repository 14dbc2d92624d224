"""How often something may be done: a burst at once, then one in so many seconds."""

from __future__ import annotations


class Pace:
    """Counts what was done for each key; `now` in seconds of a clock that never goes back.

    `burst` times may follow each other at once; of what is spent, one comes back every `seconds`.
    """

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._left: dict[str, tuple[float, float]] = {}

    def spend(self, key: str, now: float) -> bool:
        """Whether it may be done once more; if so, it is counted as done."""
        left, at = self._left.get(key, (float(self._burst), now))
        left = min(self._burst, left + (now - at) / self._seconds)
        allowed = left >= 1
        self._left[key] = (left - allowed, now)
        return allowed
