"""What the sampler knows of a live attempt, and what one look says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import AttemptId
from gpulaunch.sampler.driver import DriverSample
from gpulaunch.sampler.energy import Presence
from gpulaunch.sampler.idle import IdleWatch
from gpulaunch.sampler.keeper import Keeper
from gpulaunch.sampler.pins import Pin
from gpulaunch.sampler.work import work_of

UNJUDGED_AFTER = 60.0
"""Seconds of an attempt after which it is told that nothing says whether it computes."""
_NOTHING: Mapping[str, float | None] = {}
_NOT_WATCHED = IdleWatch()


class SampledAttempt(Struct, frozen=True):
    """An attempt. `since` and `seen_at` are monotonic: when it began, and the last look at it.

    `container`: the file that tells the first process of its container; empty for none. `idle`: the
    seconds after which it is told that it computes nothing; None: never. `work`: what it did on
    each of its cards before the last look, where that is known. `told`: what was told of it.
    `peak`: bytes of its card's memory that were told last, None where nobody wants to know.
    `beside`: looks in a row at which it computed on its card beside the MPS server whose client it
    is to be; None where it is to be none, or it is known by now.
    """

    attempt: AttemptId
    own: tuple[str, ...] | None
    keeper: Keeper | None
    since: float
    container: str = ""
    idle: float | None = None
    seen_at: float | None = None
    pin: Pin | None = None
    work: Mapping[str, float | None] = _NOTHING
    watch: IdleWatch = _NOT_WATCHED
    told: Literal["", "unjudged", "idle"] = ""
    peak: int | None = None
    beside: int | None = None

    @property
    def gpus(self) -> int | None:
        return None if self.own is None else len(self.own)

    @property
    def due(self) -> Literal["", "unjudged", "idle"]:
        """What is to be told of it, and was not: that it is idle, or that nothing says whether."""
        if self.idle is None or self.told == "idle":
            return ""
        if self.watch.idle >= self.idle:
            return "idle"
        lived = self.watch.lived >= min(self.idle, UNJUDGED_AFTER)
        return "unjudged" if lived and not (self.watch.judged or self.told) else ""

    def after(self, told: bool) -> SampledAttempt:
        """Return it after what was due was told, or nobody heard it."""
        return replace(self, told=self.due) if told else self

    def presence(self, uuid: str, until: float) -> Presence:
        """Return that it was on the card, up to then."""
        return Presence(self.attempt, self.since, until, self.work.get(uuid))


def sampled(attempt: AttemptId, message: Mapping[str, Any]) -> SampledAttempt:
    """Return an attempt of which the launcher tells."""
    return SampledAttempt(
        attempt,
        own=None if message["gpus"] is None else tuple(message["gpus"]),
        keeper=None if message["keeper"] is None else Keeper(*message["keeper"]),
        since=message["since"],
        container=message.get("container", ""),
        idle=message["idle"],
        peak=0 if message.get("learns") else None,
        beside=0 if message.get("mps") else None,
    )


class AttemptLook(Struct, frozen=True):
    """One look at an attempt. It stands for `span` seconds, before which nobody looked for `gap`.

    `holders`: its PIDs on its own cards. `memory`: what its processes hold, on all cards; None: not
    told. `work`: what they did on each of its own, None: not told.
    """

    span: float
    gap: float
    holders: frozenset[int]
    memory: int | None
    work: Mapping[str, float | None]


def look_at(
    live: SampledAttempt,
    known: Mapping[int, float],
    seen: DriverSample,
    now: float,
    longest: float,
) -> AttemptLook:
    """Return what a look says of an attempt. `known`: its processes, by the driver's PIDs.

    `longest`: the seconds that it stands for, at most.
    """
    since = now - (live.since if live.seen_at is None else live.seen_at)
    span = min(since, longest)
    there = {uuid: seen.pids.get(uuid, {}) for uuid in live.own or ()}
    found = [pids[pid] for pids in seen.pids.values() for pid in pids if pid in known]
    told = bool(there) and there.keys() <= seen.pids.keys() and None not in found
    return AttemptLook(
        span,
        since - span,
        frozenset(pid for pids in there.values() for pid in pids if pid in known),
        sum(memory or 0 for memory in found) if told else None,
        {uuid: work_of(seen.work.get(uuid), known, pids) for uuid, pids in there.items()},
    )
