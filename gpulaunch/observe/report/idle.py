"""Where each card's time went. Pure: facts in, for every card one span after another out.

INVARIANT: a card's spans begin where the run began, follow each other without gap or overlap, and
end at its end, so that the parts add up to the whole.

A card that lies idle does so for a reason the journal implies. The core starts what is ready at
once, so a card that nobody asks for has nothing that is ready for it; one that was leased and given
back unused, while jobs that ask for memory wait, did not have that memory free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import GpuRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Instant
from gpulaunch.core.reasons import OutsideHours

Cause: TypeAlias = Literal[
    "busy",
    "draining",
    "kept",
    "memory",
    "nothing_ready",
    "nothing_left",
    "limit",
    "others",
    "given_back",
    "aside",
    "paused",
    "hours",
    "stopping",
    "away",
    "cluster",
]


CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which people are shown them."""


class Span(Struct, frozen=True):
    """A stretch of a card's time; seconds since 1970 (UTC)."""

    start: float
    end: float
    cause: Cause

    @property
    def seconds(self) -> float:
        return self.end - self.start


def totals(spans: Iterable[Span]) -> dict[Cause, float]:
    """Return the seconds by cause."""
    sums: dict[Cause, float] = {}
    for span in spans:
        sums[span.cause] = sums.get(span.cause, 0.0) + span.seconds
    return sums


class CardTimes:
    """Follows a run's facts; `see` comes after the ledger has applied the fact.

    Cards of a cluster, which come and go with the jobs, are left out. Time never
    runs back: a clock that is set back stands still until it is where it was.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self._now = 0.0
        self._spans: dict[str, list[Span]] = {}
        self._open: dict[str, tuple[float, Cause]] = {}
        self._on: dict[str, set[AttemptId]] = {}
        self._left: dict[str, float] = {}
        self._cut_off: dict[str, set[AttemptId]] = {}
        self._idle_leases: set[str] = set()
        self._in_vain: set[str] = set()
        self._waiting: set[str] = set()
        self._wanting_memory: set[str] = set()
        self._limit: int | None = None
        self._running = False

    def see(self, fact: f.Fact, at: Instant, ledger: Ledger) -> None:
        before = self._now
        self._now = max(self._now, at.utc)
        if self.began is None:
            self.began = before = self._now
        match fact:
            case f.RunOpened():
                self._take_up(fact, before, ledger)
            case f.RunClosed():
                self._running = False
                self._look(self._open, ledger)
            case f.AttemptLaunched(attempt, gpus):
                for gpu in gpus:
                    # A journal that lost lines may not name the cards of an earlier supervisor.
                    self._on.setdefault(gpu, set()).add(attempt)
                self._idle_leases.difference_update(gpus)
                self._in_vain.difference_update(gpus)
                self._count(ledger.jobs[attempt.job], ledger)
                self._look(gpus, ledger)
            case f.AttemptEnded():
                self._end(fact, ledger)
            case f.GpuChanged(gpu, state):
                self._change(gpu, state)
                self._look(ledger.gpus if self._limit is not None else (gpu,), ledger)
            case f.GpuDrained(gpu):
                self._look((gpu,), ledger)
            case f.JobAdded(name) | f.JobVanished(name) | f.JobRequeued(name):
                self._count(ledger.jobs[name], ledger)
            case f.JobDelayed(name) | f.JobSettled(name):
                self._count(ledger.jobs[name], ledger)
            case f.AdmissionPaused() | f.AdmissionContinued() | f.StopAsked():
                self._look(ledger.gpus, ledger)

    @property
    def reached(self) -> float:
        """The time up to which the run was followed."""
        return self._now

    def until(self, end: float) -> Mapping[str, tuple[Span, ...]]:
        """Return each card's time up to `end`, or up to the last fact if that is later."""
        end = max(end, self._now)
        return {
            gpu: (*self._spans[gpu], *_span(since, end, cause))
            for gpu, (since, cause) in self._open.items()
        }

    def _take_up(self, fact: f.RunOpened, before: float, ledger: Ledger) -> None:
        """Go on with a new supervisor.

        Since the last one's last word nobody used the cards but the jobs that were on them then:
        when those ended is still to be heard.
        """
        assert self.began is not None
        self._limit = fact.limit
        known = [*self._open]
        for gpu in known:
            self._turn(gpu, before, "away")
            self._cut_off[gpu], self._on[gpu] = self._on[gpu], set()
        for gpu, record in ledger.gpus.items():
            if gpu not in self._open and not record.gpu.node:
                self._spans[gpu], self._on[gpu] = [], set()
                self._open[gpu] = (self.began, "away")
        self._running = True
        self._idle_leases.clear()
        self._in_vain.clear()
        self._look(self._open, ledger)

    def _end(self, fact: f.AttemptEnded, ledger: Ledger) -> None:
        """Free a job's cards when its keeper says, not when the run came to hear of it."""
        by_keeper = fact.end.ended
        ended = by_keeper.utc if by_keeper else self._now
        for gpu in ledger.attempt(fact.attempt).gpus:
            if gpu not in self._open:
                continue
            if by_keeper and fact.attempt in self._cut_off.get(gpu, ()):
                self._mend(gpu, ended)
            self._on[gpu].discard(fact.attempt)
            self._left[gpu] = max(self._left.get(gpu, 0.0), ended)
            if not self._on[gpu]:
                self._turn(gpu, min(self._left[gpu], self._now), self._cause(gpu, ledger))

    def _mend(self, gpu: str, ended: float) -> None:
        """Count the card as busy until a job that was cut off ended, with no supervisor there."""
        spans = self._spans[gpu]
        at = next((n for n in reversed(range(len(spans))) if spans[n].cause == "away"), None)
        if at is not None and spans[at].start < ended:
            start, end = spans[at].start, spans[at].end
            until = min(ended, end)
            spans[at : at + 1] = [*_span(start, until, "busy"), *_span(until, end, "away")]

    def _change(self, gpu: str, state: str) -> None:
        if state == "leased":
            self._idle_leases.add(gpu)
        elif state == "free" and gpu in self._idle_leases:
            self._in_vain.add(gpu)
        if state != "leased":
            self._idle_leases.discard(gpu)

    def _count(self, job: JobRecord, ledger: Ledger) -> None:
        """Note whether the job is one of those that wait for cards."""
        had = bool(self._waiting), bool(self._wanting_memory)
        waits = job.state == "waiting" and not job.vanished and job.definition.gpus > 0
        for names, held in (
            (self._waiting, waits),
            (self._wanting_memory, waits and job.definition.gpu_memory > 0),
        ):
            (names.add if held else names.discard)(job.name)
        if had != (bool(self._waiting), bool(self._wanting_memory)):
            self._look(ledger.gpus, ledger)

    def _look(self, gpus: Iterable[str], ledger: Ledger) -> None:
        for gpu in gpus:
            if gpu in self._open:
                self._turn(gpu, self._now, self._cause(gpu, ledger))

    def _turn(self, gpu: str, at: float, cause: Cause) -> None:
        since, was = self._open[gpu]
        if cause != was:
            self._spans[gpu] += _span(since, at, was)
            self._open[gpu] = (max(since, at), cause)

    def _cause(self, gpu: str, ledger: Ledger) -> Cause:
        record = ledger.gpus.get(gpu)
        if not self._running or record is None:
            return "away"
        if self._on[gpu]:
            return "busy"
        if record.state == "aside":
            return "aside"
        if record.drained:
            return "given_back"
        if record.state in ("elsewhere", "occupied"):
            return "others"
        if record.state == "draining":
            return "draining"
        return self._idle(record, ledger)

    def _idle(self, record: GpuRecord, ledger: Ledger) -> Cause:
        """Return why a card is idle that could be used."""
        if not self._waiting:
            return "nothing_left"
        if ledger.stopping is not None:
            return "stopping"
        if ledger.paused is not None:
            return "hours" if isinstance(ledger.paused, OutsideHours) else "paused"
        if record.gpu.uuid in self._in_vain and self._wanting_memory:
            return "memory"
        if record.state == "leased":
            return "kept"
        held = sum(each.state in ("leased", "draining") for each in ledger.gpus.values())
        if self._limit is not None and held >= self._limit:
            return "limit"
        return "nothing_ready"


def _span(start: float, end: float, cause: Cause) -> tuple[Span, ...]:
    return (Span(start, end, cause),) if end > start else ()
