"""Attempts that wait in Slurm's queue for what time will not bring: warns, and gives up in the end.

    a look ─▶ reason ─ passes ─▶ nothing
                     ├ a person must act ─▶ after SETTLED: a warning, once for each job and reason
                     └ never ─▶ the same; after NEVER_STARTS_TIMEOUT: given up

Pure: decides and makes the sentences; the engine ends the attempts that are given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.attempt import SlurmAttempt
from gpulaunch.engines.slurm.reasons import in_words, prospect
from gpulaunch.text import listing

NEVER_STARTS_TIMEOUT = 60.0
"""Seconds for which Slurm must say that an attempt can never start before it is given up: an
administrator changes settings of a partition or a QOS one by one."""
SETTLED = 2.0
"""Seconds for which a reason must last before the warning: Slurm's first reasons may be wrong."""
MAX_JOBS_SHOWN = 3


class Standstill:
    """Since when each attempt is stuck, and for which reason. `warn` takes a line for people."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._since: dict[AttemptId, tuple[str, float]] = {}
        self._said: set[tuple[str, str]] = set()

    def look(self, waiting: Iterable[SlurmAttempt], now: float) -> list[SlurmAttempt]:
        """Warn of stuck attempts; return those to give up at that monotonic time."""
        seen: dict[AttemptId, tuple[str, float]] = {}
        stuck: dict[str, list[SlurmAttempt]] = {}
        over = []
        for held in waiting:
            reason = held.row.reason if held.row else ""
            if prospect(reason) == "passing":
                continue
            before, since = self._since.get(held.attempt, ("", now))
            seen[held.attempt] = (reason, since if before == reason else now)
            if now - seen[held.attempt][1] >= SETTLED:
                stuck.setdefault(reason, []).append(held)
            if prospect(reason) == "never" and now - seen[held.attempt][1] >= NEVER_STARTS_TIMEOUT:
                over.append(held)
        self._since = seen
        for reason, some in stuck.items():
            self._say(reason, some)
        return over

    def _say(self, reason: str, some: list[SlurmAttempt]) -> None:
        """Warn once for each job and reason: its next attempt may wait for the same."""
        new = [held for held in some if (reason, held.attempt.job) not in self._said]
        self._said.update((reason, held.attempt.job) for held in new)
        if not new:
            return
        names = listing((held.attempt.job for held in new), MAX_JOBS_SHOWN)
        what = "waits" if len(new) == 1 else "wait"
        then = "gpulaunch cancel ends what shall not wait"
        if prospect(reason) == "never":
            then = f"given up in {NEVER_STARTS_TIMEOUT:g} s"
        self._warn(f"{names} {what} for what does not come by itself{in_words(reason)}; {then}")


def why_never(held: SlurmAttempt) -> str:
    """Return why an attempt that is given up could not be started."""
    reason = held.row.reason if held.row else ""
    return f"Slurm will not start it{in_words(reason)}"
