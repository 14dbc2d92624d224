"""What jobs that shared their cards were promised, what they took, and what that gained. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Gpu
from gpulaunch.core.records import AttemptRecord
from gpulaunch.digest.usage import covered
from gpulaunch.metrics.model import AttemptUse
from gpulaunch.report.fold import Period, begin, finish
from gpulaunch.report.groups import groups_of


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
