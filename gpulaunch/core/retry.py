"""Decides what an attempt's end means for its job: try again, and where, or settle.

The failure class's policy (`POLICIES`) says whether the same card or another may do better; the
run's cards say whether there is another. Nothing here changes a card or a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core import reasons as r
from gpulaunch.core.causes import Because
from gpulaunch.core.model import (
    Cancelled,
    Demand,
    Exited,
    Failure,
    Gpu,
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
from gpulaunch.core.placement import is_kind

Again: TypeAlias = Literal["no", "yes", "later"]
Other: TypeAlias = Literal["no", "yes", "once", "larger", "other_kind"]


class Policy(Struct, frozen=True):
    """What a failure class means for trying again: whether it may help, and on which card.

    A class is what an attempt's end is recognised as; `diagnose.failure` recognises it, and has the
    words. These are defaults: a job's `retries:` says how often, and its `on:` which classes.

    `again`: on the same card; `later` is after a pause, or when other jobs have ended.
    `other`: on another card, at once; `no` where it would do no better; `once` is a single try,
    to tell a sick card from a wrong program; `larger`: one with more memory; `other_kind`: of
    another model.
    `aside`: the card is set aside for the rest of the run. `free`: the job is not to blame, and
    trying again spends none of its retries. `suspect`: a sick card can cause it.
    """

    again: Again
    other: Other
    aside: bool = False
    free: bool = False
    suspect: bool = False


_NEVER = Policy("no", "no")
_AGAIN = Policy("yes", "yes")
_SUSPECT = Policy("yes", "yes", suspect=True)
_LATER = Policy("later", "no")

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        # What the outcome alone says.
        "exit": _SUSPECT,
        "signal": _SUSPECT,
        "timeout": _SUSPECT,
        "idle_timeout": _SUSPECT,
        "gpu_idle": _SUSPECT,
        "not_ready": _AGAIN,
        "not_started": _AGAIN,
        "missing_output": _SUSPECT,
        "lost": Policy("yes", "yes", free=True),
        # The card's memory, and the machine's.
        "gpu_oom": Policy("no", "larger"),
        "host_oom": _LATER,
        "shm": _LATER,
        "disk_full": _NEVER,
        # The card itself, the driver, the build.
        "gpu_lost": Policy("no", "yes", aside=True, free=True, suspect=True),
        "gpu_busy": Policy("later", "yes", suspect=True),
        "mps": Policy("later", "yes"),
        "no_gpu_seen": Policy("no", "no", suspect=True),
        "wrong_gpu": _NEVER,
        "uuid_mask": _NEVER,
        "driver": _NEVER,
        "wrong_arch": Policy("no", "other_kind"),
        "wrong_build": _NEVER,
        "wrong_cpu": _NEVER,
        "not_installed": _NEVER,
        # The program on the card.
        "device_mismatch": _NEVER,
        "assert": Policy("no", "no", suspect=True),
        "crash": Policy("no", "once", suspect=True),
        "gpu_library": Policy("no", "once", suspect=True),
        "cuda_fork": _NEVER,
        "collective": _SUSPECT,
        "secondary": _AGAIN,
        "nan": _SUSPECT,
        # What surrounds it: files, ports, limits, servers.
        "missing_file": _AGAIN,
        "permission": _NEVER,
        "file_error": _LATER,
        "corrupt_file": _LATER,
        "locked": _LATER,
        "descriptors": _NEVER,
        "threads": _LATER,
        "port": _AGAIN,
        "network": _LATER,
        "rate_limit": _LATER,
        "access": _NEVER,
        "license": _LATER,
    }
)
"""Every class, in the order in which people are shown them."""


def policy_of(failure: str) -> Policy:
    """Return the policy of a failure class; for an unknown class, that of an ordinary failure."""
    return POLICIES.get(failure, _AGAIN)


# ── What an end means ─────────────────────────────────────────────────────────────────────────────

LOST_IN_A_ROW = 3
"""Attempts in a row that are lost, or lose their card, after which the job itself is to blame."""
CARD_PAUSE = 30.0
MAX_CARD_PAUSE = 600.0
"""Seconds until the next attempt on the same card: after the first failure, and at most."""


class RetryContext(Struct, frozen=True):
    """What is known of a failed attempt's cards. `used`: its cards; `others`: the run's other ones.

    `before`: how many earlier attempts of this budget ended in the same class. `foreign`: other
    users' processes had some of its cards' memory. `doubted`: other jobs failed on its card too.
    `anywhere`: the engine places by itself, and the cards that it has are not known. `steps`: the
    job's ladder has a further step. `alone`: it had its card alone, though its demand shares one,
    or it can have none alone.
    """

    used: tuple[Gpu, ...] = ()
    others: tuple[Gpu, ...] = ()
    before: int = 0
    foreign: bool = False
    doubted: bool = False
    anywhere: bool = False
    steps: bool = False
    alone: bool = False


_NOTHING_KNOWN = RetryContext()


class RetryPlacement(Struct, frozen=True):
    """The next attempt's demand. `delay`: seconds to wait first; `change`: what will differ."""

    demand: Demand
    change: r.PlacementChange | None = None
    delay: float = 0.0


class TryAgain(Struct, frozen=True):
    """The job waits again, and `there` is where it runs then.

    `charged`: it cost a retry, and moves the job a step further on its ladder.
    """

    there: RetryPlacement
    reason: r.JobReason
    failure: str | None = None
    charged: bool = False


class Settle(Struct, frozen=True):
    """The job is over. `reason` is None for success; `failure` is the attempt's class."""

    state: Literal["succeeded", "failed", "cancelled"]
    reason: r.JobReason | None = None
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
            own = "timeout" if limit == "queue" else limit
            return seen.kind if seen and seen.gpus else own
        case NotStarted():
            return seen.kind if seen else "not_started"
        case Lost():
            return "lost"
    return None


def decide(
    outcome: Outcome,
    job: Job,
    charged: int,
    lost: int = 0,
    seen: Failure | None = None,
    ground: RetryContext = _NOTHING_KNOWN,
) -> Decision:
    """Decide what follows from this outcome of an attempt of `job`.

    `charged`: how many earlier attempts count against the budget; `lost`: how many in a row, just
    before this one, were lost or lost their card; `seen`: the failure that was recognised. A
    service's end is a failure unless somebody stopped it.
    """
    match outcome:
        case Cancelled(_, by):
            how = r.AttemptEnd(outcome) if by else Because("cancelled")
            return Settle("cancelled", how)
        case Interrupted():
            return TryAgain(RetryPlacement(job.demand), r.AttemptEnd(outcome))
        case Stopped():
            return Settle("succeeded")
    failure = failure_of(outcome, job, seen)
    if failure is None:
        return Settle("succeeded")
    end = over(outcome, job, seen)
    there = choose_placement(failure, job.demand, ground)
    if failure == "gpu_oom" and job.demand.share and ground.used and not ground.alone:
        # Another one there may have taken more than it was promised: it goes alone, once.
        return _again(job, there, end, failure)
    if policy_of(failure).free:
        if lost + 1 < LOST_IN_A_ROW:
            return _again(job, there, end, failure)
        return Settle("failed", r.LostRepeatedly(end, LOST_IN_A_ROW), failure)
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
    end: r.AttemptEnd,
    there: RetryPlacement | r.Pointless,
) -> Decision:
    policy = job.retry
    if charged >= policy.times or (policy.on and failure not in policy.on):
        return Settle("failed", end, failure, True)
    if isinstance(there, str) and failure not in policy.on:
        return Settle("failed", r.RetryPointless(end, there), failure, True)
    return _again(job, there, r.RetryGranted(end, charged + 1, policy.times), failure, True)


def _again(
    job: Job,
    there: RetryPlacement | r.Pointless,
    reason: r.JobReason,
    failure: str,
    charged: bool = False,
) -> TryAgain:
    if isinstance(there, str):
        there = RetryPlacement(job.demand)
    delay = max(job.retry.delay if charged else 0.0, there.delay)
    return TryAgain(replace(there, delay=delay), reason, failure, charged)


def over(outcome: Outcome, job: Job, seen: Failure | None = None) -> r.AttemptEnd:
    """Return how an attempt ended, with the evidence where its class says more than the status."""
    evidence = seen.evidence if seen is not None and seen.kind not in PLAIN else ""
    return r.AttemptEnd(outcome, evidence, job.service is not None)


PLAIN = frozenset({"exit", "signal", "missing_output"})
"""Failure classes that say no more than the status: `over` gives no evidence for them."""


# ── Where the next attempt runs ─────────────────────────────────────────────────────────────────


def choose_placement(
    kind: str, demand: Demand, ground: RetryContext
) -> RetryPlacement | r.Pointless:
    """Choose where to try again after a failure of this class, or say why it is pointless."""
    policy = policy_of(kind)
    if ground.anywhere:
        return _anywhere(policy, demand, ground)
    if kind == "gpu_oom":
        return _with_more_memory(demand, ground)
    if policy.other == "other_kind":
        names = {gpu.name for gpu in ground.used}
        same = [gpu for gpu in ground.others if gpu.name in names]
        there = _elsewhere(demand, ground, "other_kind", same)
        return there or "no_other_kind"
    if policy.again == "yes":
        return (ground.doubted and _elsewhere(demand, ground)) or RetryPlacement(demand)
    there = _elsewhere(demand, ground) if _may_go(policy, ground) else None
    if there is None and policy.again == "later":
        return RetryPlacement(demand, None, _pause(ground))
    if there is None and policy.free:
        return RetryPlacement(demand)
    return there or "same"


def _anywhere(policy: Policy, demand: Demand, ground: RetryContext) -> RetryPlacement | r.Pointless:
    """Choose whether to try again where the engine places, and may happen to use another card."""
    if policy.again == "later":
        return RetryPlacement(demand, None, _pause(ground))
    if policy.again == "yes" or policy.other in ("larger", "other_kind") or _may_go(policy, ground):
        return RetryPlacement(demand)
    return "same"


def _pause(ground: RetryContext) -> float:
    return float(min(CARD_PAUSE * 2**ground.before, MAX_CARD_PAUSE))


def _may_go(policy: Policy, ground: RetryContext) -> bool:
    return policy.other == "yes" or (policy.other == "once" and not ground.before)


def _with_more_memory(demand: Demand, ground: RetryContext) -> RetryPlacement | r.Pointless:
    """Choose a place after out of memory: alone, else away from strangers, else a larger card.

    A further step of a ladder goes before the larger card.
    """
    if not ground.used:
        return RetryPlacement(demand)
    if demand.shares_card and not ground.alone:
        # Without MPS, which would keep it to the `gpu_memory` that was too little.
        alone = replace(demand, per_gpu=1, share=False, mps=False)
        return RetryPlacement(alone, "alone")
    if ground.foreign:
        return _elsewhere(demand, ground) or RetryPlacement(demand, None, CARD_PAUSE)
    if ground.steps:  # a larger card comes after the last one
        return RetryPlacement(demand)
    most = max(gpu.memory for gpu in ground.used)
    others = [gpu for gpu in ground.others if is_kind(gpu, demand)]
    if sum(gpu.memory > most for gpu in others) >= demand.gpus:
        larger = replace(demand, gpu_memory=max(demand.gpu_memory, most + 1))
        return RetryPlacement(larger, "more_memory")
    return "no_larger"


def _elsewhere(
    demand: Demand,
    ground: RetryContext,
    change: r.PlacementChange = "other_card",
    also: Iterable[Gpu] = (),
) -> RetryPlacement | None:
    """Place on none of the used cards, nor on those avoided before if that leaves enough.

    `also`: further cards to avoid. None where too few are left.
    """
    used = {gpu.uuid for gpu in (*ground.used, *also)}
    for avoid in (demand.avoid | used, used):
        if avoid and _count(demand, ground.others, avoid) >= demand.gpus:
            return RetryPlacement(replace(demand, avoid=frozenset(avoid)), change)
    return None


def _count(demand: Demand, gpus: Sequence[Gpu], avoid: Iterable[str]) -> int:
    fit = (gpu for gpu in gpus if gpu.uuid not in avoid and is_kind(gpu, demand))
    return sum(gpu.memory >= demand.gpu_memory for gpu in fit)
