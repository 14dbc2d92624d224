"""The fold of a whole journal, with what the ledger forgets: when, and cards of earlier starts.

Pure but for `read_history`. A torn last line is left out, as everywhere.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.base.text import clock
from gpulaunch.base.wording import warning
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import AttemptRecord, Ledger
from gpulaunch.core.model import AttemptId, Gpu, Instant, RunState
from gpulaunch.journal.read import Fault, fold, read
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.life_signs import mark_last_seen
from gpulaunch.observe.present import words
from gpulaunch.observe.report.idle import CardTimes, Span


class TimedRemark(Struct, frozen=True):
    """A line for people with its moment: a note, or what the driver said of a card (UUID)."""

    at: float
    text: str
    gpu: str = ""
    job: str = ""


SET = 60.0
"""A clock that is set by less, in seconds, needs no words: others correct it all the time."""


class SteadyClock(Struct):
    """The times of a run, as a clock shows them that nobody sets while the machine is up.

    It shows the time of day at a boot's first fact, and goes on as the monotonic clock does: so
    every distance on the report's axis is a duration. `shifts`: from which time of day on the
    machine's own clock is ahead of this one, and by how much.
    """

    boot: str = ""
    ahead: float = 0.0  # of the monotonic clock
    shifts: list[tuple[float, float]] = field(default_factory=list)
    launched: dict[AttemptId, float] = field(default_factory=dict)  # what `ahead` was then

    def of(self, fact: f.Fact, at: Instant) -> tuple[f.Fact, Instant]:
        """Return a fact and its moment with the times of this clock."""
        if isinstance(fact, f.RunOpened) and (not self.shifts or fact.boot != self.boot):
            self.boot, self.ahead = fact.boot, at.utc - at.mono
            self.shifts.append((at.utc, 0.0))
        if isinstance(fact, f.AttemptLaunched) and not fact.queued:
            self.launched[fact.attempt] = self.ahead
        shift = at.utc - at.mono - self.ahead
        if self.shifts and abs(shift - self.shifts[-1][1]) > 1.0:
            self.shifts.append((at.utc, shift))
        if isinstance(fact, f.AttemptEnded) and fact.attempt in self.launched:
            ahead, end = self.launched[fact.attempt], fact.end
            began = None if end.started is None else _shown(end.started, ahead)
            ended = None if end.ended is None else _shown(end.ended, ahead)
            fact = replace(fact, end=replace(end, started=began, ended=ended))
        return fact, _shown(at, self.ahead)

    def set_by(self) -> float:
        """Return the seconds by which the machine's clock was set before the last fact."""
        before = self.shifts[-2][1] if len(self.shifts) > 1 else 0.0
        return self.shifts[-1][1] - before if self.shifts else 0.0

    def shown(self, utc: float) -> float:
        """Return what this clock shows when the machine's own shows that time of day."""
        number = bisect_right(self.shifts, (utc, float("inf")))
        return utc - self.shifts[number - 1][1] if number else utc


def _shown(at: Instant, ahead: float) -> Instant:
    return Instant(at.mono, at.mono + ahead)


class RunHistory(Struct):
    """A run so far. `cards` are all that it ever had; of jobs and attempts the ledger knows."""

    ledger: Ledger = field(default_factory=Ledger)
    cards: dict[str, Gpu] = field(default_factory=dict)
    times: CardTimes = field(default_factory=CardTimes)
    remarks: list[TimedRemark] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    clock: SteadyClock = field(default_factory=SteadyClock)

    def see(self, fact: f.Fact, at: Instant, where: str = "the journal") -> None:
        """Fold a fact. Raises DamagedJournalError where it fits nothing before it."""
        known = len(self.clock.shifts)
        fact, at = self.clock.of(fact, at)
        if len(self.clock.shifts) > known and abs(by := self.clock.set_by()) > SET:
            self.remarks.append(TimedRemark(at.utc, _set(by)))
        fold(self.ledger, fact, at, where)
        self.times.see(fact, at, self.ledger)
        match fact:
            case f.RunOpened(gpus=gpus):
                self._know(gpus)
                self.starts.append(at.utc)
            case f.AttemptStarted(gpus=gpus):
                self._know(gpus)
            case f.GpuReported(gpu, text):
                self.remarks.append(TimedRemark(at.utc, text, gpu=gpu))
            case f.AttemptWarned(attempt, sent):
                shown = self.clock.shown(sent.at.utc)
                self.remarks.append(TimedRemark(shown, warning(sent), job=attempt.job))
            case f.AttemptIdle(attempt):
                text = words.idle(self.ledger.attempt(attempt), self.ledger)
                self.remarks.append(TimedRemark(at.utc, text, job=attempt.job))
            case f.CodeChanged():
                self.remarks.append(TimedRemark(at.utc, words.code_changed(fact, at.utc)))
            case f.Noted(text, job):
                self.remarks.append(TimedRemark(at.utc, text, job=job or ""))

    def cut_off(self, run: RunDir) -> None:
        """Note when attempts without a recorded end were seen last, as their supervisor is gone."""
        mark_last_seen(run, self.ledger)
        for attempt in self.ledger.open_attempts():
            if attempt.seen is not None:
                attempt.seen = _shown(attempt.seen, self.clock.ahead)

    def _know(self, gpus: Iterable[Gpu]) -> None:
        """Add cards; those of other machines come when something runs there, and are sorted in."""
        new = {gpu.uuid: gpu for gpu in gpus}
        beyond = any(gpu.node for gpu in new.values()) and not new.keys() <= self.cards.keys()
        self.cards.update(new)
        if beyond:
            self.cards = dict(sorted(self.cards.items(), key=lambda one: _place(one[1])))

    @property
    def on_nodes(self) -> bool:
        """Whether the cards are a cluster's: what others do with them is not known."""
        return any(gpu.node for gpu in self.cards.values())

    def attempts(self) -> list[AttemptRecord]:
        """Return the attempts by beginning, without what waits in an engine's queue."""
        return sorted(self.attempts_by_job(), key=lambda one: (begin(one), one.id))

    def attempts_by_job(self) -> list[AttemptRecord]:
        """Return the same in the order of the jobs, which takes less time."""
        every = (attempt for job in self.ledger.jobs.values() for attempt in job.attempts)
        return [attempt for attempt in every if not attempt.in_queue]


def _set(by: float) -> str:
    """Return what is said of a clock that was set by so many seconds."""
    how = "forward" if by > 0 else "back"
    slept = ", or the machine slept" if by > 0 else ""
    return (
        f"the clock was set {how} by {clock(abs(by))}{slept}; the times of this report go on as"
        " before"
    )


def of(facts: Iterable[tuple[f.Fact, Instant]], where: str = "the journal") -> RunHistory:
    """Fold a journal. Raises DamagedJournalError where a fact fits nothing before it."""
    history = RunHistory()
    for number, (fact, at) in enumerate(facts, 1):
        history.see(fact, at, f"{where}: line {number}")
    return history


def read_history(run: RunDir, faults: list[Fault] | None = None) -> RunHistory:
    """Fold a run's journal; `faults` gets what it lacks. Raises as `journal.read.read` does."""
    return of(read(run.events, faults), str(run.events))


class Period(Struct, frozen=True):
    """What a report is about: `state` as its caller knows it, seconds since 1970 (UTC)."""

    state: RunState
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def period(history: RunHistory, state: RunState, now: float, seen: float | None = None) -> Period:
    """Return the time that a report is about: of a run that lives, up to now.

    One whose supervisor is gone ends with the last that is known of it: a fact, or when it was last
    `seen` alive.
    """
    ledger, now = history.ledger, history.clock.shown(now)
    seen = None if seen is None else history.clock.shown(seen)
    state = ledger.state if ledger.closed else state  # it has ended since its caller looked
    start = history.times.began or now
    last = ledger.last.utc if ledger.last else start
    end = now if state == "running" else last
    if state == "interrupted":
        end = max(end, min(seen or end, now))
    known = (one.ended or one.seen for one in history.attempts_by_job())
    ends = [end.utc for end in known if end]
    return Period(state, start, max(start, end, history.times.reached, *ends))


def spans(history: RunHistory, when: Period) -> Mapping[str, tuple[Span, ...]]:
    """Return where each card's time went, by UUID, in the order of the cards."""
    found = history.times.until(when.end)
    beyond = _times_on_nodes(history, when) if history.on_nodes else {}
    return {
        uuid: (beyond if gpu.node else found).get(uuid, ()) for uuid, gpu in history.cards.items()
    }


def _times_on_nodes(history: RunHistory, when: Period) -> dict[str, tuple[Span, ...]]:
    """Return where the time of a cluster's cards went: the run's where a job of it was there."""
    on: dict[str, list[Span]] = {uuid: [] for uuid in history.cards}
    for attempt in history.attempts():
        for uuid in attempt.gpus:
            start = min(max(begin(attempt), when.start), when.end)
            on.setdefault(uuid, []).append(
                Span(start, min(finish(attempt, when), when.end), "busy")
            )
    return {uuid: _with_gaps(busy, when) for uuid, busy in on.items()}


def _with_gaps(busy: Iterable[Span], when: Period) -> tuple[Span, ...]:
    """Return the spans one after another, overlaps cut, the rest of the period between them."""
    spans: list[Span] = []
    reached = when.start
    for span in busy:
        if span.start > reached:
            spans.append(Span(reached, span.start, "cluster"))
        if span.end > max(reached, span.start):
            spans.append(Span(max(reached, span.start), span.end, "busy"))
            reached = span.end
        else:
            reached = max(reached, span.start)
    if when.end > reached:
        spans.append(Span(reached, when.end, "cluster"))
    return tuple(spans)


def _place(gpu: Gpu) -> tuple[list[str | int], int]:
    """Return a key that sorts machines by the numbers in their names: n2 before n10."""
    parts = re.split(r"(\d+)", gpu.node)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], gpu.index


def begin(attempt: AttemptRecord) -> float:
    """Return when an attempt began; of one that never did, when it ended."""
    if attempt.unbegun and attempt.ended:
        return attempt.ended.utc
    return (attempt.started or attempt.launched).utc


def finish(attempt: AttemptRecord, when: Period) -> float:
    """Return when an attempt ended, or up to when it is known to have gone on."""
    end = attempt.ended or attempt.seen
    return max(begin(attempt), end.utc if end else when.end)


def cut_off(attempt: AttemptRecord, when: Period) -> bool:
    """Tell whether an attempt was running when the run was cut off: nobody knows how it ended.

    What an engine's queue started goes on without a supervisor.
    """
    return attempt.outcome is None and when.state != "running" and not attempt.queued
