"""Decides what an attempt's end means for its job: try again, or settle. Carries nothing out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core.causes import Because
from gpulaunch.core.classes import policy_of
from gpulaunch.core.model import (
    Cancelled,
    Demand,
    Exited,
    Failure,
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
from gpulaunch.core.reasons import (
    AttemptEnd,
    JobReason,
    LostRepeatedly,
    PlacementChange,
    RetryGranted,
    RetryPointless,
)
from gpulaunch.core.retry_placement import (
    NoBetterPlacement,
    RetryContext,
    RetryPlacement,
    choose_placement,
)

LOST_IN_A_ROW = 3
"""Attempts in a row that are lost, or lose their card, after which the job itself is to blame."""

NOWHERE_KNOWN = RetryContext()
"""The context where nothing is known of the cards."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The job waits again, not before `delay` seconds are over. `charged`: it cost a retry.

    `demand` is what the next attempt needs, None: as before; `change`: what will differ.
    """

    delay: float
    reason: JobReason
    failure: str | None = None
    charged: bool = False
    demand: Demand | None = None
    change: PlacementChange | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """The job is over. `reason` is None for success; `failure` is the attempt's class."""

    state: Literal["succeeded", "failed", "cancelled"]
    reason: JobReason | None = None
    failure: str | None = None
    charged: bool = False


Decision: TypeAlias = TryAgain | Settle


def failure_of(outcome: Outcome, job: Job, seen: Failure | None = None) -> str | None:
    """Return the failure class of an attempt's end, None where it is no failure of the job's own.

    What was recognised (`seen`) goes before a status or a missing output. It goes before a time
    limit only where it names cards: a program on a lost card may hang until its timeout.
    """
    match outcome:
        case Exited(code) if code in job.success_codes and job.service is None:
            return None
        case Exited():
            return seen.kind if seen else "exit"
        case Signaled():
            return seen.kind if seen else "signal"
        case MissingOutput():
            return seen.kind if seen else "missing_output"
        case TimedOut(limit):
            return seen.kind if seen and seen.gpus else limit
        case NotStarted():
            return "not_started"
        case Lost():
            return "lost"
    return None


def decide(
    outcome: Outcome,
    job: Job,
    charged: int,
    lost: int = 0,
    seen: Failure | None = None,
    ground: RetryContext = NOWHERE_KNOWN,
) -> Decision:
    """Decide what follows from this outcome of an attempt of `job`.

    `charged`: how many earlier attempts count against the budget; `lost`: how many in a row, just
    before this one, were lost or lost their card; `seen`: the failure that was recognised. A
    service's end is a failure unless somebody stopped it.
    """
    match outcome:
        case Cancelled():
            return Settle("cancelled", Because("cancelled"))
        case Interrupted():
            return TryAgain(0.0, AttemptEnd(outcome))
        case Stopped():
            return Settle("succeeded")
    failure = failure_of(outcome, job, seen)
    if failure is None:
        return Settle("succeeded")
    end = over(outcome, job, seen)
    there = choose_placement(failure, job.demand, ground)
    if policy_of(failure).free:
        if lost + 1 < LOST_IN_A_ROW:
            return _again(job, there, end, failure)
        return Settle("failed", LostRepeatedly(end, LOST_IN_A_ROW), failure)
    return _by_policy(job, charged, failure, end, there)


def failed(
    outcome: Outcome, job: Job, charged: int, seen: Failure, ground: RetryContext
) -> Decision:
    """Decide what follows from a failure that was seen while the attempt ran, whatever its end."""
    there = choose_placement(seen.kind, job.demand, ground)
    return _by_policy(job, charged, seen.kind, over(outcome, job, seen), there)


def _by_policy(
    job: Job,
    charged: int,
    failure: str,
    end: AttemptEnd,
    there: RetryPlacement | NoBetterPlacement,
) -> Decision:
    policy = job.retry
    if charged >= policy.times or (policy.on and failure not in policy.on):
        return Settle("failed", end, failure, True)
    if isinstance(there, NoBetterPlacement) and failure not in policy.on:
        return Settle("failed", RetryPointless(end, there.why), failure, True)
    return _again(job, there, RetryGranted(end, charged + 1, policy.times), failure, True)


def _again(
    job: Job,
    there: RetryPlacement | NoBetterPlacement,
    reason: JobReason,
    failure: str,
    charged: bool = False,
) -> TryAgain:
    delay = job.retry.delay if charged else 0.0
    if isinstance(there, NoBetterPlacement):
        return TryAgain(delay, reason, failure, charged)
    demand = None if there.demand == job.demand else there.demand
    return TryAgain(max(delay, there.delay), reason, failure, charged, demand, there.change)


def over(outcome: Outcome, job: Job, seen: Failure | None = None) -> AttemptEnd:
    """Return how an attempt ended, with the evidence where its class says more than the status."""
    evidence = seen.evidence if seen is not None and seen.kind not in PLAIN else ""
    return AttemptEnd(outcome, evidence, job.service is not None)


PLAIN = frozenset({"exit", "signal", "missing_output"})
"""Failure classes that say no more than the status: `over` gives no evidence for them."""
