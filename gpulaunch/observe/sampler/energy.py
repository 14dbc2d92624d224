"""Which attempt used how much of a card's energy. Pure: readings in, joules by attempt out.

    readings of a card ─▶ `drawn`: joules between two of them ─▶ `split` among who was there

From the driver's counter, which misses nothing; without one, from the power at each look. Joules
that a card draws while no attempt is on it are nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import AttemptId

LONGEST_KEPT = 600.0
"""Seconds that what ended is remembered for a card whose driver does not answer."""


class EnergyReading(Struct, frozen=True):
    """A card at a moment (monotonic): its counter, and its power; None where they are not told."""

    at: float
    joules: float | None = None
    watts: float | None = None


class Drawn(Struct, frozen=True):
    """What a card drew from `since` to `until`."""

    joules: float
    since: float
    until: float


class Presence(Struct, frozen=True):
    """An attempt on a card, from `since` to `until`; `work`: how much it did there, if known."""

    attempt: AttemptId
    since: float
    until: float
    work: float | None = None


def drawn(before: EnergyReading, now: EnergyReading, longest: float) -> Drawn | None:
    """Return what a card drew between two readings; None where that is not known.

    `longest`: the seconds that two readings of the power stand for, at most. A counter that has
    gone back (the driver was loaded anew) says nothing: the power does.
    """
    if now.at <= before.at:
        return None
    if before.joules is not None and now.joules is not None and now.joules >= before.joules:
        return Drawn(now.joules - before.joules, before.at, now.at)
    if before.watts is None or now.watts is None:
        return None
    since = max(before.at, now.at - longest)
    return Drawn((before.watts + now.watts) / 2 * (now.at - since), since, now.at)


def split(energy: Drawn, there: Sequence[Presence]) -> dict[AttemptId, float]:
    """Return the joules of each attempt that was on the card, of what it drew.

    As if it drew the same all the time. While several were there: by what they did, evenly where
    nobody did anything or it is not known of one of them.
    """
    found: dict[AttemptId, float] = {}
    clipped = [
        replace(one, since=max(one.since, energy.since), until=min(one.until, energy.until))
        for one in there
    ]
    clipped = [one for one in clipped if one.since < one.until]
    edges = sorted({edge for one in clipped for edge in (one.since, one.until)})
    for start, end in pairwise(edges):
        present = [one for one in clipped if one.since <= start and end <= one.until]
        joules = energy.joules * (end - start) / (energy.until - energy.since)
        for one, share in zip(present, _shares(present), strict=True):
            found[one.attempt] = found.get(one.attempt, 0.0) + joules * share
    return found


def _shares(present: Sequence[Presence]) -> list[float]:
    done = [one.work for one in present if one.work is not None]
    total = sum(done)
    if len(done) < len(present) or total <= 0:
        return [1 / len(present) for _ in present]
    return [work / total for work in done]


class EnergyMeter:
    """Splits what each card draws. Feed it each look's readings; it keeps who ended in between.

    `readings`: those of an earlier sampler of this run, with which it goes on.
    """

    def __init__(self, readings: dict[str, EnergyReading] | None = None) -> None:
        self._before: dict[str, EnergyReading] = dict(readings or {})
        self._over: dict[str, list[Presence]] = {}

    def ended(self, uuid: str, presence: Presence) -> None:
        """Note an attempt that has ended on the card since the last look."""
        since = presence.until - LONGEST_KEPT
        kept = [one for one in self._over.get(uuid, ()) if one.until > since]
        self._over[uuid] = [*kept, presence]

    def look(
        self, uuid: str, now: EnergyReading, there: Sequence[Presence], longest: float
    ) -> Iterable[tuple[AttemptId, float]]:
        """Return the joules of each attempt since the last look at this card.

        A card that has told its counter once is asked for it again, rather than for its power.
        """
        before = self._before.get(uuid)
        over = self._over.pop(uuid, [])
        if before is not None and before.joules is not None and now.joules is None:
            self._over[uuid] = over
            return ()
        self._before[uuid] = now
        energy = None if before is None else drawn(before, now, longest)
        return () if energy is None else split(energy, [*over, *there]).items()
