"""What the cards did and held: their curves, what fits on one, what sharing one gained. Pure.

Curves are thinned to what a screen can show; there is none where nothing was measured. Nothing is
said of a group of jobs from fewer than three measured successes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, fsum

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Gpu
from gpulaunch.core.resume import median
from gpulaunch.observe.metrics.model import AttemptUse, CardSample
from gpulaunch.observe.metrics.read import MetricsReader
from gpulaunch.observe.present.summary import pattern
from gpulaunch.observe.present.usage import covered
from gpulaunch.observe.report.fold import Period, RunHistory, begin, finish

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


# ── Jobs of one entry, and how many fit on one card ───────────────────────────────────────────────

MIN_JOBS_MEASURED = 3
MEMORY_MARGIN = 0.05
"""The share of a card's memory that is left alone: peaks between two looks, and fragments."""
BUSY = 80.0
"""Per cent of utilisation from which on a second job on the card would mostly wait."""


class JobGroup(Struct, frozen=True):
    """`label` is what its jobs' names have in common: `fold-*`."""

    number: int
    label: str
    jobs: tuple[str, ...]


class Fit(Struct, frozen=True):
    """`fits`: so many of the group's jobs have room on one card, by the largest measured.

    `peak`, `memory` in bytes; `utilization` in per cent of the card, the mean of one job alone;
    None where that was not measured. `of`: how many attempts were measured.
    """

    label: str
    fits: int
    peak: int
    memory: int
    of: int
    utilization: float | None

    @property
    def advised(self) -> int:
        """How many of those that fit keep the card busy together; 1: one alone does."""
        if self.utilization is None:
            return self.fits
        if self.utilization >= BUSY:
            return 1
        return min(self.fits, ceil(100 / max(self.utilization, 1.0)))


def groups_of(ledger: Ledger) -> list[JobGroup]:
    """Return the groups in the order of the file."""
    members: dict[int, list[str]] = defaultdict(list)
    for job in ledger.jobs.values():
        members[job.definition.group].append(job.name)
    return [
        JobGroup(number, label(names), tuple(names)) for number, names in sorted(members.items())
    ]


def label(names: Sequence[str]) -> str:
    """`fold-*` of fold-a, fold-b; a single name is itself; `*` where they have nothing alike."""
    return names[0] if len(names) == 1 else pattern(names)


def fits(
    ledger: Ledger, cards: Mapping[str, Gpu], uses: Mapping[AttemptId, AttemptUse]
) -> list[Fit]:
    """Return how many fit, for each group of one-card jobs whose memory was measured."""
    found = []
    for group in groups_of(ledger):
        jobs = [ledger.jobs[name] for name in group.jobs]
        measured = list(_measured(jobs, uses))
        if any(attempt.promised for attempt, _ in measured):
            continue  # they share their cards by memory already (`sharing`)
        memories = [cards[a.gpus[0]].memory for a, _ in measured if a.gpus[0] in cards]
        peaks = [use.peak_gpu_memory or 0 for _, use in measured]
        if len(measured) < MIN_JOBS_MEASURED or not memories:
            continue
        means = [u.mean_gpu_utilization for _, u in measured if u.mean_gpu_utilization is not None]
        room = int(min(memories) * (1 - MEMORY_MARGIN))
        found.append(
            Fit(
                group.label,
                max(1, room // max(peaks)),
                max(peaks),
                min(memories),
                len(measured),
                fsum(means) / len(means) if means else None,
            )
        )
    return found


def _measured(
    jobs: Sequence[JobRecord], uses: Mapping[AttemptId, AttemptUse]
) -> Sequence[tuple[AttemptRecord, AttemptUse]]:
    """Return the measured successes on one card, with what they used of it."""
    return [
        (attempt, uses[attempt.id])
        for job in jobs
        if not job.definition.service
        for attempt in job.attempts
        if attempt.state == "succeeded"
        and len(attempt.gpus) == 1
        and attempt.id in uses
        and uses[attempt.id].peak_gpu_memory
    ]


# ── Jobs that shared their cards ──────────────────────────────────────────────────────────────────


class Sharing(Struct, frozen=True):
    """Jobs of one entry that shared their cards. Memory in bytes, time in seconds.

    `promised`: what the last of them was promised of its card; `learned`: what the jobs taught, 0
    where the job file says the size. `peak`: the most that was measured of one, 0 for nothing.
    `fits`: how many have room on the smallest of their cards, by the larger of both. `failures`:
    attempts that ran out of memory beside others. `job_seconds` is the sum over the attempts,
    `card_seconds` how long cards had one of them or more.
    """

    label: str
    promised: int
    learned: int
    peak: int
    fits: int
    failures: int
    job_seconds: float
    card_seconds: float

    @property
    def together(self) -> float:
        """How many of them were on a card at once, on average."""
        return self.job_seconds / self.card_seconds if self.card_seconds else 0.0


def sharing(
    ledger: Ledger, cards: Mapping[str, Gpu], uses: Mapping[AttemptId, AttemptUse], when: Period
) -> list[Sharing]:
    """Return what became of each entry whose jobs shared cards."""
    found = []
    for group in groups_of(ledger):
        attempts = [attempt for name in group.jobs for attempt in ledger.jobs[name].attempts]
        attempts = [attempt for attempt in attempts if attempt.started and attempt.gpus]
        attempts.sort(key=lambda attempt: attempt.launched.mono)
        shared = [attempt for attempt in attempts if attempt.promised]
        if shared:
            found.append(_of(group.label, attempts, shared, cards, uses, when))
    return found


def _of(
    label: str,
    attempts: Sequence[AttemptRecord],
    shared: Sequence[AttemptRecord],
    cards: Mapping[str, Gpu],
    uses: Mapping[AttemptId, AttemptUse],
    when: Period,
) -> Sharing:
    promised = shared[-1].promised
    peak = max((uses[a.id].peak_gpu_memory or 0 for a in attempts if a.id in uses), default=0)
    memories = [cards[uuid].memory for a in attempts for uuid in a.gpus if uuid in cards]
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for attempt in attempts:
        for uuid in attempt.gpus:
            spans[uuid].append((begin(attempt), finish(attempt, when)))
    return Sharing(
        label=label,
        promised=promised,
        learned=max((a.end.gpu_memory for a in attempts if a.end), default=0),
        peak=peak,
        fits=max(1, min(memories, default=0) // max(promised, peak)),
        failures=sum(attempt.failure == "gpu_oom" for attempt in shared),
        job_seconds=sum(end - start for some in spans.values() for start, end in some),
        card_seconds=sum(map(covered, spans.values())),
    )
