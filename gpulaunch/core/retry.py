"""Decides what an attempt's end means for its job: try again, or settle. Carries nothing out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core import words
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
from gpulaunch.core.retry_placement import (
    NoBetterPlacement,
    RetryContext,
    RetryPlacement,
    choose_placement,
)
from gpulaunch.text import listing, span

LOST_IN_A_ROW = 3
"""Attempts in a row that are lost, or lose their card, after which the job itself is to blame."""

MAX_MESSAGE_CHARACTERS = 200
"""Characters of the evidence that a reason shows at most."""
NOWHERE_KNOWN = RetryContext()
"""The context where nothing is known of the cards."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The job waits again, not before `delay` seconds are over. `charged`: it cost a retry.

    `demand` is what the next attempt needs, None: as before; `where` says in words what differs.
    """

    delay: float
    reason: str
    failure: str | None = None
    charged: bool = False
    demand: Demand | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class Settle:
    """The job is over. `reason` is empty for success; `failure` is the attempt's class."""

    state: Literal["succeeded", "failed", "cancelled"]
    reason: str = ""
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
            return Settle("cancelled", "cancelled")
        case Interrupted(by):
            return TryAgain(0.0, f"interrupted: {by}")
        case Stopped():
            return Settle("succeeded")
    failure = failure_of(outcome, job, seen)
    if failure is None:
        return Settle("succeeded")
    text = reason(outcome, job, seen)
    there = choose_placement(failure, job.demand, ground)
    if policy_of(failure).free:
        if lost + 1 < LOST_IN_A_ROW:
            return _again(job, there, text, failure)
        return Settle("failed", f"{text}, for the {LOST_IN_A_ROW}rd time in a row", failure)
    return _by_policy(job, charged, failure, text, there)


def failed(job: Job, charged: int, seen: Failure, ground: RetryContext) -> Decision:
    """Decide what follows from a failure that was seen while the attempt ran, whatever its end."""
    there = choose_placement(seen.kind, job.demand, ground)
    return _by_policy(job, charged, seen.kind, seen.evidence, there)


def _by_policy(
    job: Job, charged: int, failure: str, text: str, there: RetryPlacement | NoBetterPlacement
) -> Decision:
    policy = job.retry
    if charged >= policy.times or (policy.on and failure not in policy.on):
        return Settle("failed", text, failure, True)
    if isinstance(there, NoBetterPlacement) and failure not in policy.on:
        return Settle("failed", f"{text}; not tried again: {there.why}", failure, True)
    return _again(job, there, f"{text}; retry {charged + 1} of {policy.times}", failure, True)


def _again(
    job: Job,
    there: RetryPlacement | NoBetterPlacement,
    text: str,
    failure: str,
    charged: bool = False,
) -> TryAgain:
    delay = job.retry.delay if charged else 0.0
    if isinstance(there, NoBetterPlacement):
        return TryAgain(delay, text, failure, charged)
    demand = None if there.demand == job.demand else there.demand
    return TryAgain(max(delay, there.delay), text, failure, charged, demand, there.words)


def reason(outcome: Outcome, job: Job | None = None, seen: Failure | None = None) -> str:
    """Return how an attempt ended, in words: `killed by SIGSEGV: Xid 31 ...`."""
    text = _status(outcome)
    if job is not None and job.service is not None and isinstance(outcome, Exited | Signaled):
        text = f"ended early: {text}"
    if seen is None or not seen.evidence or seen.kind in PLAIN:
        return text
    shown = (
        seen.evidence
        if len(seen.evidence) <= MAX_MESSAGE_CHARACTERS
        else seen.evidence[: MAX_MESSAGE_CHARACTERS - 1] + "…"
    )
    return f"{text}: {shown}"


PLAIN = frozenset({"exit", "signal", "missing_output"})
"""Failure classes that say no more than the status: `reason` shows no evidence for them."""


def _status(outcome: Outcome) -> str:
    match outcome:
        case Exited(code):
            return f"exited with status {code}"
        case Signaled(signal):
            return f"killed by {words.signal_name(signal)}"
        case TimedOut("timeout", 0):
            return "was ended at a time limit"
        case TimedOut("timeout", seconds):
            return f"ran longer than its timeout of {span(seconds)}"
        case TimedOut(_, seconds):
            return f"wrote nothing for its idle_timeout of {span(seconds)}"
        case MissingOutput(paths):
            return f"left no good output: {listing(paths)}"
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
