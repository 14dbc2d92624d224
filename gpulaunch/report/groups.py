"""Jobs of one entry of the job file: what they are called together, and how many fit on one card.

Pure. Nothing is said from fewer than three measured successes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, fsum

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Gpu
from gpulaunch.core.records import AttemptRecord, JobRecord
from gpulaunch.digest.groups import pattern
from gpulaunch.metrics.model import AttemptUse

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
            continue  # they share their cards by memory already (`report.sharing`)
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
