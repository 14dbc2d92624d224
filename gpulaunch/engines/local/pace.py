"""Limits how often something is done: a burst at once, then one in so many seconds."""

from __future__ import annotations


class Pace:
    """A token bucket for each key: `burst` uses at once; one comes back every `seconds`.

    `now` is in seconds of a clock that never goes back.
    """

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._remaining: dict[str, tuple[float, float]] = {}

    def spend(self, key: str, now: float) -> bool:
        """Count one more use of this key, if one is allowed now; return whether it is."""
        remaining, at = self._remaining.get(key, (float(self._burst), now))
        remaining = min(self._burst, remaining + (now - at) / self._seconds)
        allowed = remaining >= 1
        self._remaining[key] = (remaining - allowed, now)
        return allowed
