"""A job's ladder: at which step its next attempt starts, and which follows a retry.

    own step, and the steps at which jobs of its entry succeeded ─▶ the furthest ─▶ AttemptLaunched
                      ▲
             a retry moves it: JobDelayed

So one job finds out what all of its entry need, and none of them goes through the failing steps
again. Nothing moves a job back up; interruptions, lost cards and resumes keep it where it was.
"""

from __future__ import annotations

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job, LadderStep
from gpulaunch.core.records import AttemptRecord


def next_step(ledger: Ledger, job: Job) -> LadderStep | None:
    """Return the step with which the job's next attempt starts; None without a ladder.

    That is its own, or the furthest at which a job of its entry succeeded, where that is further.
    """
    if job.ladder is None:
        return None
    known = ledger.jobs.get(job.name)
    own = known.step if known is not None else None
    steps = (own, *ledger.proven.get(job.group, ()))
    return job.ladder.step(max(map(job.ladder.find, steps)))


def step_after(job: Job, attempt: AttemptRecord) -> LadderStep | None:
    """Return the step that follows the attempt's; None where there is none."""
    if job.ladder is None or attempt.step is None:
        return None
    following = job.ladder.step(job.ladder.find(attempt.step) + 1)
    return following if following.values != attempt.step.values else None
