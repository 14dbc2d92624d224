"""Attempts that wait in Slurm's queue for what time will not bring: warns, and gives up in the end.

    a look ─▶ reason ─ passes ─▶ nothing
                     ├ a person must act ─▶ after SETTLED: a warning, once for each job and reason
                     └ never ─▶ the same; after NEVER_STARTS_TIMEOUT: claimed, cancelled and over

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.attempt import SlurmAttempt
from gpulaunch.engines.slurm.judge import refused
from gpulaunch.engines.slurm.queue_hold import holds
from gpulaunch.engines.slurm.reasons import in_words, prospect
from gpulaunch.engines.slurm.state import SlurmState
from gpulaunch.text import listing

NEVER_STARTS_TIMEOUT = 60.0
"""Seconds for which Slurm must say that an attempt can never start before it is given up: an
administrator changes settings of a partition or a QOS one by one."""
SETTLED = 2.0
"""Seconds for which a reason must last before the warning: Slurm's first reasons may be wrong."""
MAX_JOBS_SHOWN = 3


def give_up_hope(state: SlurmState) -> None:
    """Give up the attempts that Slurm will never start; `following.give_up` ends them."""
    waiting = state.which(lambda h: h.row and h.row.waits and not (h.stop or h.begun))
    for one in look(state, [one for one in waiting if not holds(state, one)]):
        why = f"Slurm will not start it{in_words(one.row.reason if one.row else '')}"
        state.given_up[one.attempt] = refused(why)


def look(state: SlurmState, waiting: Iterable[SlurmAttempt]) -> list[SlurmAttempt]:
    """Warn of stuck attempts; return those to give up now."""
    seen: dict[AttemptId, tuple[str, float]] = {}
    stuck: dict[str, list[SlurmAttempt]] = {}
    over, now = [], state.now
    for one in waiting:
        reason = one.row.reason if one.row else ""
        if prospect(reason) == "passing":
            continue
        before, since = state.stuck_since.get(one.attempt, ("", now))
        seen[one.attempt] = (reason, since if before == reason else now)
        lasted = now - seen[one.attempt][1]
        if lasted >= SETTLED:
            stuck.setdefault(reason, []).append(one)
        if prospect(reason) == "never" and lasted >= NEVER_STARTS_TIMEOUT:
            over.append(one)
    state.stuck_since = seen
    for reason, some in stuck.items():
        _say(state, reason, some)
    return over


def _say(state: SlurmState, reason: str, some: list[SlurmAttempt]) -> None:
    """Warn once for each job and reason: its next attempt may wait for the same."""
    new = [one for one in some if state.first_time(reason, one.attempt.job)]
    if not new:
        return
    names = listing((one.attempt.job for one in new), MAX_JOBS_SHOWN)
    what = "waits" if len(new) == 1 else "wait"
    then = "gpulaunch cancel ends what shall not wait"
    if prospect(reason) == "never":
        then = f"given up in {NEVER_STARTS_TIMEOUT:g} s"
    state.warn(f"{names} {what} for what does not come by itself{in_words(reason)}; {then}")
