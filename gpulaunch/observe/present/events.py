"""Turns a run's facts into lines for people as it goes. Knows no stream, no colour.

Owns which facts deserve a line, and folds bursts (10,000 jobs skipped for one cause) into one.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base import localtime, wording
from gpulaunch.base.text import listing, several, span
from gpulaunch.core import facts as f
from gpulaunch.core import reasons as r
from gpulaunch.core.causes import Because
from gpulaunch.core.ledger import LOCAL, AttemptRecord, GpuRecord, JobRecord, Ledger
from gpulaunch.core.model import (
    AttemptId,
    GpuState,
    ImageSource,
    Instant,
    Interrupted,
    JobState,
    Lost,
    NotStarted,
)
from gpulaunch.observe.present import words
from gpulaunch.observe.present.summary import shown

Tone: TypeAlias = Literal["good", "bad", "warn", "calm", "start"]

ENDS_FIRST: tuple[JobState, ...] = (*get_args(JobState)[2:], "running", "waiting")
BURST, QUEUED = 3, "queued"
DRAINING = 2.0
"""Seconds for a card's memory to drain before a line reports that it has not."""
_CALM = (
    *(f.AttemptLaunched, f.AttemptStarted, f.AttemptQueued, f.InputsSeen, f.ServiceReady),
    f.GpuChanged,
)
"""Facts that no line of a quiet formatter is made of."""
_OPENING = (f.RunOpened, f.JobAdded, f.JobVanished, f.JobRequeued)
_UNUSABLE: dict[GpuState, str] = {
    "elsewhere": "in use by another launcher",
    "occupied": "in use",
    "aside": "set aside",
}


class EventLine(Struct, frozen=True):
    """A line: `verb`, `seconds` that it took (None: no span), the `subject`, the `detail`.

    `loud`: shown with `--quiet` too.
    """

    utc: float
    tone: Tone
    verb: str
    subject: str
    detail: str = ""
    seconds: float | None = None
    loud: bool = False


class LineFormatter:
    """Turns one run's facts into lines. `tell` comes after the ledger has applied the fact.

    `quiet`: only those of jobs that failed for good, and of notes on the run.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._cards: dict[str, GpuState] = {}
        self._draining: dict[str, float] = {}
        self._pulls: dict[ImageSource, float] = {}
        self._ended: dict[str, AttemptId] = {}
        self._burst: list[EventLine] = []
        self._planning = False
        self._before = 0

    def tell(self, fact: f.Fact, at: Instant, ledger: Ledger) -> list[EventLine]:
        if self._quiet and self._is_calm(fact):
            return []
        return self._shown(self._tell(fact, at, ledger))

    def _is_calm(self, fact: f.Fact) -> bool:
        """Tell whether a quiet formatter has no line for the fact, as for most that a job has."""
        if isinstance(fact, f.JobSettled) and fact.state == "succeeded":
            self._ended.pop(fact.name, None)
            return True
        return isinstance(fact, _CALM)

    def _shown(self, lines: list[EventLine]) -> list[EventLine]:
        return [line for line in lines if line.tone == "bad" or line.loud or not self._quiet]

    def _tell(self, fact: f.Fact, at: Instant, ledger: Ledger) -> list[EventLine]:
        if isinstance(fact, f.AttemptLaunched | f.InputsSeen) and not self._planning:
            return []  # each job has several facts, and these are never told
        lines: list[EventLine] = []
        line = self._line(fact, at, ledger)
        bursty = isinstance(fact, f.JobRequeued | f.JobVanished | f.AttemptQueued) or (
            isinstance(fact, f.JobSettled) and line is not None and line.seconds is None
        )
        goes_on = bursty and line and self._burst and _alike(line, self._burst[0])
        if (line or self._planning) and not goes_on:
            lines += self._flush()
        if self._planning and isinstance(fact, _OPENING):
            self._before = ledger.counts["succeeded"]
        elif self._planning:
            self._planning = False
            lines.append(_planned(at, ledger, self._before))
        if line and bursty:
            self._burst.append(line)
        elif line:
            lines.append(line)
        return lines

    def flush(self) -> list[EventLine]:
        """Return the lines that were held back to be folded with more of their kind."""
        return self._shown(self._flush())

    def _flush(self) -> list[EventLine]:
        burst, self._burst = self._burst, []
        if len(burst) <= BURST:
            return burst
        first = burst[0]
        jobs = several(len(burst), "job")
        detail = first.detail if len({line.detail for line in burst}) == 1 else ""
        return [EventLine(first.utc, first.tone, first.verb, jobs, detail)]

    def waits(self, now: Instant, ledger: Ledger) -> list[EventLine]:
        """Return lines, once for each card, if draining memory is all that the run waits for."""
        due = self.waits_at
        if due is None or now.mono < due or ledger.counts["running"]:
            return []
        cards = [gpu for gpu, since in self._draining.items() if since + DRAINING <= now.mono]
        for gpu in cards:
            del self._draining[gpu]
        text = "waits for the memory of its last job to be given back"
        return self._shown([_line(now, "calm", "card", _card(gpu, ledger), text) for gpu in cards])

    @property
    def waits_at(self) -> float | None:
        """The monotonic time from which `waits` may return a line; None for never."""
        return min(self._draining.values()) + DRAINING if self._draining else None

    @property
    def holding(self) -> bool:
        return bool(self._burst)

    def _line(self, fact: f.Fact, at: Instant, ledger: Ledger) -> EventLine | None:
        match fact:
            # First what each job has: there may be a hundred thousand.
            case f.AttemptLaunched() | f.InputsSeen():
                return None
            case f.AttemptStarted(attempt):
                return _started(ledger.attempt(attempt), at, ledger)
            case f.AttemptEnded(attempt):
                self._ended[attempt.job] = attempt
                return None
            case f.JobSettled():
                return _settled(fact, at, ledger, self._attempt_of(fact.name, ledger))
            case f.GpuChanged(gpu, state, why):
                return self._card(gpu, state, why, at, ledger)
            case f.RunOpened():
                self._cards.clear()
                self._draining.clear()
                self._planning = True
                return _opened(fact, at)
            case f.JobVanished(name):
                return _vanished(ledger.jobs[name], at)
            case f.JobRequeued(name, why):
                return _line(at, "calm", "requeued", name, wording.job_reason(why))
            case f.AttemptQueued(attempt):
                needs = wording.needs_of(ledger.needs_of(ledger.attempt(attempt)))
                return _line(at, "start", QUEUED, attempt.job, needs)
            case f.AttemptWarned(attempt, warning):
                return _line(warning.at, "warn", "warned", attempt.job, wording.warning(warning))
            case f.AttemptIdle(attempt):
                text = f"{words.idle(ledger.attempt(attempt), ledger)}; gpu_idle: ends such jobs"
                return _line(at, "warn", "idle", attempt.job, text)
            case f.ServiceReady(attempt):
                record = ledger.attempt(attempt)
                return _line(at, "calm", "ready", attempt.job, "", _since(record, at))
            case f.JobDelayed():
                return _delayed(fact, at, self._attempt_of(fact.name, ledger))
            case f.GpuReported(gpu, text, attempts):
                ran = listing(str(attempt) for attempt in attempts)
                detail = f"{text}; {ran} ran there" if attempts else text
                return _line(at, "warn", "reports", _card(gpu, ledger), detail)
            case f.GpuDrained(gpu, on):
                what = "given back: no new starts there" if on else "used again"
                return _line(at, "warn", "drain", _card(gpu, ledger), what)
            case f.PullBegun(source, engine):
                self._pulls[source] = at.mono
                return _line(at, "calm", "pulling", source.image, f"with {engine}")
            case f.ImageKnown():
                return self._image(fact, at)
        return _about_run(fact, at, ledger)

    def _attempt_of(self, name: str, ledger: Ledger) -> AttemptRecord | None:
        """Return the attempt whose end a fact follows from; the ledger may have a newer one."""
        ended = self._ended.pop(name, None)
        return ledger.attempt(ended) if ended else _last_attempt(ledger.jobs[name])

    def _card(
        self, uuid: str, state: GpuState, why: r.CardReason | None, at: Instant, ledger: Ledger
    ) -> EventLine | None:
        """Return a line if a card becomes unusable, or is used again; None for anything else."""
        self._draining.pop(uuid, None)
        if state == "draining":
            self._draining[uuid] = at.mono
        before = self._cards.get(uuid)
        if state in _UNUSABLE and state != before:
            self._cards[uuid] = state
            return _line(at, "warn", "card", _card(uuid, ledger), _unusable(state, why))
        if state == "leased" and before:
            del self._cards[uuid]
            return _line(at, "calm", "card", _card(uuid, ledger), "came free")
        return None

    def _image(self, fact: f.ImageKnown, at: Instant) -> EventLine:
        begun = self._pulls.pop(fact.source, None)
        detail = ", ".join(filter(None, [fact.engine, words.short_digest(fact.digest)]))
        seconds = None if begun is None else at.mono - begun
        verb = "pulled" if fact.pulled else "found"
        return _line(at, "calm", verb, fact.source.image, detail, seconds)


def unused(record: GpuRecord) -> str:
    """Return why a card cannot be used: `set aside: its memory did not drain`; empty if it can."""
    return _unusable(record.state, record.why) if record.state in _UNUSABLE else ""


def _unusable(state: GpuState, why: r.CardReason | None) -> str:
    kind = _UNUSABLE[state]
    return f"{kind}: {words.visible(wording.card_reason(why))}" if why else kind


def _line(
    at: Instant, tone: Tone, verb: str, subject: str, detail: str, seconds: float | None = None
) -> EventLine:
    return EventLine(at.utc, tone, verb, words.visible(subject), words.visible(detail), seconds)


def _alike(one: EventLine, other: EventLine) -> bool:
    """Tell whether two lines may be folded; queued jobs may, although their details differ."""
    return one.verb == other.verb and (one.detail == other.detail or one.verb == QUEUED)


def _opened(fact: f.RunOpened, at: Instant) -> EventLine:
    kind = "simulated card" if fact.simulated else "card"
    verb = "run" if fact.epoch <= 1 else "goes on"
    cards = several(len(fact.gpus), kind)
    where = cards if fact.engine == LOCAL else f"by {words.visible(fact.engine)}"
    detail = f"run {fact.run} on {fact.host}, {where}"
    return _line(at, "calm", verb, fact.name, detail)


def _planned(at: Instant, ledger: Ledger, before: int) -> EventLine:
    waiting = (job for job in ledger.jobs.values() if job.state == "waiting" and not job.vanished)
    moments = Counter(job.definition.due.utc for job in waiting if job.definition.due)
    done = f"{words.count(before)} succeeded before" if before else ""
    detail = ", ".join(filter(None, [done, words.not_due(moments, at.utc)]))
    return _line(at, "calm", "planned", several(len(ledger.jobs), "job"), detail)


def _vanished(job: JobRecord, at: Instant) -> EventLine | None:
    """Return a line on a job that the file has no more; None if its cancellation tells that."""
    last = job.attempts[-1] if job.attempts else None
    in_queue = last is not None and last.in_queue
    if in_queue or (job.state == "cancelled" and job.reason == Because("not_in_file")):
        return None
    return _line(at, "calm", "vanished", job.name, words.gone(job))


def _started(attempt: AttemptRecord, at: Instant, ledger: Ledger) -> EventLine:
    where = words.attempt_cards(attempt, ledger) or "no card"
    if attempt.node and not attempt.gpus:
        where += ", no card"
    again = f"attempt {attempt.id.number}" if attempt.id.number > 1 else ""
    detail = ", ".join(filter(None, [where, again, words.further_step(attempt.step)]))
    return _line(at, "start", "started", attempt.id.job, detail)


def _delayed(fact: f.JobDelayed, at: Instant, attempt: AttemptRecord | None) -> EventLine | None:
    if attempt is None:
        return _line(at, "calm", "waits", fact.name, wording.job_reason(fact.why))
    if attempt.taken_back:
        return None
    if attempt.state != "failed":
        verb = "lost" if attempt.state == "lost" else "interrupted"
        return _line(at, "warn", verb, fact.name, _cause(fact, attempt), attempt.seconds)
    step = f"at {words.step(fact.step)}" if fact.step is not None else ""
    again = " ".join(filter(None, ["tries again", wording.change(fact.change), step]))
    when = f" in {span(fact.delay)}" if fact.delay else ""
    said = shown(words.ending(attempt), attempt)
    detail = f"{said}, attempt {attempt.id.number}; {again}{when}"
    return _line(at, "warn", "failed", fact.name, detail, attempt.seconds)


def _cause(fact: f.JobDelayed, attempt: AttemptRecord) -> str:
    """Return what cut the attempt short, to follow the line's verb."""
    match attempt.outcome:
        case Interrupted(by):
            return wording.cause(by)
        case Lost(why):
            return shown(wording.cause(why), attempt)
    return wording.job_reason(fact.why)


_SETTLED: dict[JobState, Tone] = {
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "warn",
    "skipped": "warn",
}


def _settled(
    fact: f.JobSettled, at: Instant, ledger: Ledger, attempt: AttemptRecord | None
) -> EventLine:
    tone = _SETTLED.get(fact.state, "calm")
    ran = fact.state in ("succeeded", "failed", "cancelled") and attempt is not None
    reason = wording.job_reason(fact.reason)
    if not ran or attempt is None:
        return _line(at, tone, fact.state, fact.name, reason)
    reason = reason or ("" if fact.state == "succeeded" else words.ending(attempt))
    number = attempt.id.number
    parts = [
        words.attempt_cards(attempt, ledger),
        shown(reason, attempt) if fact.state == "failed" else reason,
        f"attempt {number}" if number > 1 else "",
        words.further_step(attempt.step),
        words.left_behind(attempt),
    ]
    # A job that never ran has no time: equal lines of a hundred such jobs are folded into one.
    unbegun = attempt.unbegun or isinstance(attempt.outcome, NotStarted)
    seconds = None if unbegun else attempt.seconds
    return _line(at, tone, fact.state, fact.name, ", ".join(filter(None, parts)), seconds)


def _about_run(fact: f.Fact, at: Instant, ledger: Ledger) -> EventLine | None:
    match fact:
        case f.AdmissionPaused(r.OutsideHours(until)):
            when = localtime.until(until, until - at.utc)
            return _line(at, "calm", "waits", f"no new starts before {when}", "outside its hours")
        case f.AdmissionContinued("hours"):
            return _line(at, "calm", "goes on", "its hours have begun: new starts again", "")
        case f.AdmissionPaused(why):
            return _line(at, "warn", "paused", "no new starts", wording.pause(why))
        case f.AdmissionContinued():
            return _line(at, "calm", "continues", "new starts again", "")
        case f.StopAsked(why, now):
            what = "running jobs are killed" if now else "no new jobs, running ones are ended"
            return _line(at, "warn", "stopping", what, wording.run_reason(why))
        case f.CodeChanged(path):
            return _line(at, "warn", "changed", path, words.code_changed_after(fact))
        case f.Noted(text, job):
            # A note on the whole run, such as a notification that failed.
            return replace(_line(at, "warn", "note", job or "", text), loud=job is None)
        case f.RunClosed(state, reason):
            tone: Tone = "good" if state == "succeeded" else "bad"
            detail = ", ".join(filter(None, [tally(ledger), wording.run_reason(reason)]))
            return _line(at, tone, state, ledger.opening.name, detail)
    return None


def tally(ledger: Ledger) -> str:
    """Return the counts of states that have jobs: `988 succeeded, 10 failed, 2 skipped`."""
    named = [f"{words.count(ledger.counts[s])} {s}" for s in ENDS_FIRST if ledger.counts[s] > 0]
    if ledger.vanished:
        named.append(f"{words.count(ledger.vanished)} {words.GONE}")
    return ", ".join(named) or "no jobs"


def _last_attempt(job: JobRecord) -> AttemptRecord | None:
    """Return the last ended attempt since the job was last requeued; None if there is none."""
    ended = [attempt for attempt in job.attempts[job.budget_from - 1 :] if attempt.ended]
    return ended[-1] if ended else None


def _since(attempt: AttemptRecord, at: Instant) -> float:
    return max(0.0, at.mono - (attempt.started or attempt.launched).mono)


def _card(uuid: str, ledger: Ledger) -> str:
    return words.card(ledger.gpus[uuid].gpu) if uuid in ledger.gpus else f"card {uuid}"
