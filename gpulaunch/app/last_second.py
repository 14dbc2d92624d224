"""When a run's last second begins: what is needed at its end can then be got ready."""

from __future__ import annotations

from gpulaunch.core.ledger import Ledger

AHEAD = 1.0
"""Seconds before the end at which it begins, as far as the jobs that have ended can tell."""
PACE_OF = 0.5
"""Seconds over which it is counted how fast jobs end."""


class LastSecond:
    """Watches how many jobs still wait. `begins` is asked often: of every fact."""

    def __init__(self) -> None:
        self._since = 0.0
        self._waited = 0
        self._fewest = 0.0

    def begins(self, ledger: Ledger, now: float) -> bool:
        """Tell whether the jobs that wait will probably have ended in a second, or none waits.

        `now`: monotonic seconds.
        """
        waiting = ledger.counts["waiting"]
        if now - self._since >= PACE_OF:
            pace = (self._waited - waiting) / (now - self._since)
            self._since, self._waited, self._fewest = now, waiting, pace * AHEAD
        return bool(ledger.counts["running"]) and waiting <= max(0.0, self._fewest)
