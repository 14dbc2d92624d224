"""What each card did, thinned to what a screen can show. Nothing where nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.expected import median
from gpulaunch.metrics.model import CardSample
from gpulaunch.metrics.read import MetricsReader
from gpulaunch.report.fold import Period, RunHistory

POINTS = 360
GAP = 4
"""So many times the usual distance between two points is a hole in the curve."""


class Curve(Struct, frozen=True):
    """Points in time order; None is a hole. Utilisation in per cent, memory in bytes.

    `mean` is that of the utilisation over the time that was measured, `peak` the memory's highest.
    """

    at: tuple[float, ...] = ()
    utilization: tuple[int | None, ...] = ()
    memory: tuple[int | None, ...] = ()
    mean: float | None = None
    peak: int | None = None


def curves(reader: MetricsReader, history: RunHistory, when: Period) -> dict[str, Curve]:
    """Return the curves of the cards that were measured while the run lasted, by UUID."""
    found, shown = {}, history.clock.shown
    since = min([when.start, *(utc for utc, _ in history.clock.shifts)])
    for uuid in history.cards:
        read = (replace(s, at=shown(s.at)) for s in reader.cards(uuid, since, POINTS))
        samples = sorted((s for s in read if when.start <= s.at <= when.end), key=lambda s: s.at)
        curve = curve_of(samples)
        if curve.at:
            found[uuid] = curve
    return found


def curve_of(samples: Sequence[CardSample]) -> Curve:
    """Return the samples as a curve, with holes where they are far apart."""
    known = [s for s in samples if s.utilization is not None or s.memory is not None]
    if not known:
        return Curve()
    usual = _usual(known)
    at: list[float] = []
    utilization: list[int | None] = []
    memory: list[int | None] = []
    for before, sample in zip([None, *known], known, strict=False):
        if before is not None and sample.at - before.at > GAP * usual:
            at.append(before.at + usual)
            utilization.append(None)
            memory.append(None)
        at.append(sample.at)
        utilization.append(sample.utilization)
        memory.append(sample.memory)
    peak = max((s.memory for s in known if s.memory is not None), default=None)
    return Curve(tuple(at), tuple(utilization), tuple(memory), _mean(known, usual), peak)


def _usual(samples: Sequence[CardSample]) -> float:
    steps = [b.at - a.at for a, b in pairwise(samples)]
    return max(1.0, median(steps)) if steps else 1.0


def _mean(samples: Sequence[CardSample], usual: float) -> float | None:
    """Return the mean utilisation: each sample counts for the time since the one before it.

    A hole counts for GAP usual steps at most.
    """
    total = weight = 0.0
    for before, sample in zip([None, *samples], samples, strict=False):
        if sample.utilization is None:
            continue
        span = usual if before is None else min(sample.at - before.at, GAP * usual)
        total += sample.utilization * span
        weight += span
    return total / weight if weight else None
