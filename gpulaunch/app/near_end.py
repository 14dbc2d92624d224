"""When a run is near its end: what is needed then can be got ready."""

from __future__ import annotations

from gpulaunch.core.ledger import Ledger

AHEAD = 0.1
"""Seconds before the last job starts: as long as the report's process takes to begin."""
AHEAD_PER_JOB = 2e-4
"""Seconds more for each job: three times what reading its facts takes on a core of its own."""
PACE_OF = 0.5
"""Seconds over which it is counted how fast jobs end."""


class NearEnd:
    """Watches how many jobs still wait. `begins` is asked often: of every fact."""

    def __init__(self) -> None:
        self._since = 0.0
        self._waited = 0
        self._fewest = 0.0

    def begins(self, ledger: Ledger, now: float) -> bool:
        """Tell whether all jobs will probably have started in so many seconds, or have already.

        `now`: monotonic seconds.
        """
        waiting = ledger.counts["waiting"]
        if now - self._since >= PACE_OF:
            pace = (self._waited - waiting) / (now - self._since)
            self._since, self._waited = now, waiting
            self._fewest = pace * (AHEAD + AHEAD_PER_JOB * len(ledger.jobs))
        return bool(ledger.counts["running"]) and waiting <= max(0.0, self._fewest)
