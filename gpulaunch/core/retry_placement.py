"""Where the attempt after a failed one is to run, by the failure class.

The class's policy (`core.classes`) says whether the same card or another may do better; the run's
cards say whether there is another. Nothing here changes a card or a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpulaunch.core.classes import Policy, policy_of
from gpulaunch.core.model import Demand, Gpu
from gpulaunch.core.reasons import PlacementChange, Pointless

CARD_PAUSE = 30.0
MAX_CARD_PAUSE = 600.0
"""Seconds until the next attempt on the same card: after the first failure, and at most."""


@dataclass(frozen=True, slots=True)
class RetryContext:
    """What is known of a failed attempt's cards. `used`: its cards; `others`: the run's other ones.

    `before`: how many earlier attempts of this budget ended in the same class. `foreign`: other
    users' processes had some of its cards' memory. `doubted`: other jobs failed on its card too.
    `anywhere`: the engine places by itself, and the cards that it has are not known.
    """

    used: tuple[Gpu, ...] = ()
    others: tuple[Gpu, ...] = ()
    before: int = 0
    foreign: bool = False
    doubted: bool = False
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class RetryPlacement:
    """The next attempt's demand. `delay`: seconds to wait first; `change`: what will differ."""

    demand: Demand
    change: PlacementChange | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class NoBetterPlacement:
    """No card of the run would do better, and why."""

    why: Pointless


def choose_placement(
    kind: str, demand: Demand, ground: RetryContext
) -> RetryPlacement | NoBetterPlacement:
    """Choose where to try again after a failure of this class."""
    policy = policy_of(kind)
    if ground.anywhere:
        return _anywhere(policy, demand, ground)
    if kind == "gpu_oom":
        return _with_more_memory(demand, ground)
    if policy.other == "other_kind":
        names = {gpu.name for gpu in ground.used}
        same = [gpu for gpu in ground.others if gpu.name in names]
        there = _elsewhere(demand, ground, "other_kind", same)
        return there or NoBetterPlacement("no_other_kind")
    if policy.again == "yes":
        return (ground.doubted and _elsewhere(demand, ground)) or RetryPlacement(demand)
    there = _elsewhere(demand, ground) if _may_go(policy, ground) else None
    if there is None and policy.again == "later":
        return RetryPlacement(demand, None, _pause(ground))
    if there is None and policy.free:
        return RetryPlacement(demand)
    return there or NoBetterPlacement("same")


def _anywhere(
    policy: Policy, demand: Demand, ground: RetryContext
) -> RetryPlacement | NoBetterPlacement:
    """Choose whether to try again where the engine places, and may happen to use another card."""
    if policy.again == "later":
        return RetryPlacement(demand, None, _pause(ground))
    if policy.again == "yes" or policy.other in ("larger", "other_kind") or _may_go(policy, ground):
        return RetryPlacement(demand)
    return NoBetterPlacement("same")


def _pause(ground: RetryContext) -> float:
    return float(min(CARD_PAUSE * 2**ground.before, MAX_CARD_PAUSE))


def _may_go(policy: Policy, ground: RetryContext) -> bool:
    return policy.other == "yes" or (policy.other == "once" and not ground.before)


def _with_more_memory(demand: Demand, ground: RetryContext) -> RetryPlacement | NoBetterPlacement:
    """Choose a place after out of memory: alone, else away from strangers, else a larger card."""
    if not ground.used:
        return RetryPlacement(demand)
    if demand.per_gpu > 1:
        return RetryPlacement(replace(demand, per_gpu=1), "alone")
    if ground.foreign:
        return _elsewhere(demand, ground) or RetryPlacement(demand, None, CARD_PAUSE)
    most = max(gpu.memory for gpu in ground.used)
    if sum(gpu.memory > most for gpu in ground.others) >= demand.gpus:
        larger = replace(demand, gpu_memory=max(demand.gpu_memory, most + 1))
        return RetryPlacement(larger, "more_memory")
    return NoBetterPlacement("no_larger")


def _elsewhere(
    demand: Demand,
    ground: RetryContext,
    change: PlacementChange = "other_card",
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
    return sum(gpu.uuid not in avoid and gpu.memory >= demand.gpu_memory for gpu in gpus)
