"""What an attempt's end means for its job: again, or settled. Decides; carries nothing out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core import words
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    Stopped,
    TimedOut,
)

LOST_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Retry:
    """The job waits again, not before `delay` seconds are over. `charged`: it cost a retry."""

    delay: float
    reason: str
    failure: str | None = None
    charged: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """The job is over. `reason` is empty for success; `failure` is the attempt's class."""

    state: Literal["succeeded", "failed", "cancelled"]
    reason: str = ""
    failure: str | None = None
    charged: bool = False


Decision: TypeAlias = Retry | Settle


def failure_of(outcome: Outcome, job: Job) -> str | None:
    """The failure class of an attempt's end; None where it is no failure of the job's own."""
    match outcome:
        case Exited(code):
            good = code in job.success_codes and job.service is None
            return None if good else "exit"
        case Signaled():
            return "signal"
        case TimedOut(limit):
            return limit
        case MissingOutput():
            return "missing_output"
        case NotStarted():
            return "not_started"
        case Lost():
            return "lost"
    return None


def decide(outcome: Outcome, job: Job, charged: int, lost: int = 0) -> Decision:
    """What follows when an attempt of `job` ended so.

    `charged`: attempts of this budget that were charged before it; `lost`: how many attempts just
    before it were lost, in a row. A service's end is a failure unless somebody stopped it.
    """
    match outcome:
        case Cancelled():
            return Settle("cancelled", "cancelled")
        case Interrupted(by):
            return Retry(0.0, f"interrupted: {by}")
        case Stopped():
            return Settle("succeeded")
        case Lost() if lost + 1 < LOST_IN_A_ROW:
            return Retry(0.0, reason(outcome, job), "lost")
        case Lost():
            text = f"{reason(outcome, job)}, for the {LOST_IN_A_ROW}rd time in a row"
            return Settle("failed", text, "lost")
    failure = failure_of(outcome, job)
    if failure is None:
        return Settle("succeeded")
    policy = job.retry
    if charged >= policy.times or (policy.on and failure not in policy.on):
        return Settle("failed", reason(outcome, job), failure, True)
    again = f"{reason(outcome, job)}; retry {charged + 1} of {policy.times}"
    return Retry(policy.delay, again, failure, True)


def reason(outcome: Outcome, job: Job | None = None) -> str:
    """How it ended, in words: `exited with status 3`, `killed by SIGSEGV`."""
    early = "ended early: " if job is not None and job.service is not None else ""
    match outcome:
        case Exited(code):
            return f"{early}exited with status {code}"
        case Signaled(signal):
            return f"{early}killed by {words.signal_name(signal)}"
        case TimedOut("timeout", seconds):
            return f"ran longer than its timeout of {words.duration(seconds)}"
        case TimedOut(_, seconds):
            return f"wrote nothing for its idle_timeout of {words.duration(seconds)}"
        case MissingOutput(paths):
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            return f"did not write {', '.join(paths[:3])}{more}"
        case NotStarted(error):
            return f"could not be started: {error}"
        case Cancelled():
            return "cancelled"
        case Interrupted(by):
            return f"interrupted: {by}"
        case Stopped():
            return "stopped: nothing needs it any more"
        case Lost(why):
            return f"lost: {why}"
