"""What the sampler knows of a live attempt, and what one look says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.sampler.driver import DriverSample, work_of
from gpulaunch.observe.sampler.energy import Presence
from gpulaunch.observe.sampler.keeper import Keeper
from gpulaunch.observe.sampler.tree import Pin

MOST_UNKNOWN = 60.0
"""Seconds in a row of which nothing is known, after which idle time is counted anew."""


class IdleSample(Struct, frozen=True):
    """One look at an attempt. It stands for `span` seconds, before which nobody looked for `gap`.

    `memory`: bytes that its processes hold on its cards, None: not told. `work`: of each of its
    cards, what they did there, as `driver.work_of` says. `stopped`: all its processes are (Ctrl-Z).
    """

    span: float
    gap: float
    memory: int | None
    work: Sequence[float | None]
    stopped: bool = False

    @property
    def computes(self) -> bool | None:
        """Whether it computes on any of its cards; None: it may."""
        if any(self.work):
            return True
        return None if None in self.work or not self.work else False

    @property
    def why(self) -> str:
        """What the driver does not tell, in words, where it cannot be told."""
        if self.memory is None:
            return "the driver does not say what its processes hold"
        return "the driver does not say how much its processes compute"


class IdleWatch(Struct, frozen=True):
    """For how long an attempt has held its cards' memory and computed nothing: a fold of samples.

    Only seconds that samples stand for count: not those in which nobody looked (the sampler was
    restarted or stopped, the machine slept), the driver did not answer, or the attempt was stopped.
    After MOST_UNKNOWN such seconds in a row the count begins anew: it may have computed meanwhile.
    So it does with anything that the attempt computes, and where it holds no memory.

    `idle`: the seconds so far, `unknown`: those since the last sample that says something.
    `judged`: some sample said whether it computes; `lived`: seconds of all its samples.
    """

    idle: float = 0.0
    unknown: float = 0.0
    judged: bool = False
    lived: float = 0.0

    def after(self, sample: IdleSample) -> IdleWatch:
        """Return the count after one more sample."""
        unknown = self.unknown + sample.gap
        lived, computes = self.lived + sample.span, sample.computes
        if computes or sample.memory == 0:
            return IdleWatch(0.0, 0.0, True, lived)
        told = computes is not None and sample.memory is not None
        if sample.stopped or not told:
            unknown += sample.span
        before = self.idle if unknown <= MOST_UNKNOWN else 0.0
        if sample.stopped or not told:
            return IdleWatch(before, unknown, self.judged or told, lived)
        return replace(self, idle=before + sample.span, unknown=0.0, judged=True, lived=lived)


# ── Attempts ──────────────────────────────────────────────────────────────────────────────────────

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
