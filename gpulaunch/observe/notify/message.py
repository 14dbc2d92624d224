"""Decides which messages of a run are due, to whom and when, and makes them of its ledger. Pure.

A message is a title, a text and a summary for machines. Its size is bounded: services cut long
messages, and a summary must not become the night's log. The time is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gpulaunch.base.text import clip, clock, several, shell_word
from gpulaunch.base.wording import job_reason, pause, run_reason
from gpulaunch.core import facts as f
from gpulaunch.core.facts import RunClosed
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import Instant, RunState
from gpulaunch.diagnose.failure.classes import CLASSES
from gpulaunch.diagnose.failure.classes import advice as advice_of
from gpulaunch.jobfile.notify_spec import Target
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import ENDS_FIRST, tally
from gpulaunch.observe.present.summary import next_command

GAP = 30.0
"""Seconds between two messages to the same target, at least; the end of the run does not wait."""

FINISH, PAUSED, FIRST, IDLE, EVERY = "finish", "paused", "first_failure", "gpu_idle", "failures"
EVENTS = (FINISH, PAUSED, FIRST, IDLE, EVERY)
"""What a message may be about, the weightiest first."""


class Occasions:
    """The messages due in one start of a run. Failures are jobs that failed for good in it.

    Bursts are folded: a target is told at most once in GAP seconds, of all that came up meanwhile.
    The message has the counts as they are by then.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._owed: dict[int, set[str]] = {number: set() for number in range(len(targets))}
        self._free_at = dict.fromkeys(self._owed, 0.0)
        self._failures = 0

    def see(self, fact: f.Fact) -> None:
        match fact:
            case f.JobSettled(_, "failed"):
                self._failures += 1
                if self._failures == 1:
                    self._owe(FIRST)
                for number, target in enumerate(self._targets):
                    if target.every and self._failures % target.every == 0:
                        self._owed[number].add(EVERY)
            case f.AttemptIdle():
                self._owe(IDLE)
            case f.AdmissionPaused(by="hours") | f.AdmissionContinued("hours"):
                pass  # as it was asked for: nobody needs to act
            case f.AdmissionPaused():
                self._owe(PAUSED)
            case f.AdmissionContinued():
                for owed in self._owed.values():
                    owed.discard(PAUSED)  # the run goes on: nobody needs to act

    def next_at(self, busy: Collection[int] = ()) -> float | None:
        """Return when (monotonic) the next message is due; None: nobody is owed one.

        `busy`: who is being told something right now.
        """
        return min((self._free_at[number] for number in self._owing(busy)), default=None)

    def due(self, now: float, busy: Collection[int] = ()) -> list[tuple[int, tuple[str, ...]]]:
        """Return (target, events) of each message to send now, and count them as sent."""
        numbers = [number for number in self._owing(busy) if self._free_at[number] <= now]
        return [(number, self._settle(number, now)) for number in numbers]

    def finish(self, now: float) -> list[tuple[int, tuple[str, ...]]]:
        """Return all messages due at the run's end, however recent a target's last one is."""
        self._owe(FINISH)
        return [(number, self._settle(number, now)) for number in self._owing()]

    def _owe(self, event: str) -> None:
        for number, target in enumerate(self._targets):
            if event in target.on:
                self._owed[number].add(event)

    def _owing(self, busy: Collection[int] = ()) -> list[int]:
        return [number for number, owed in self._owed.items() if owed and number not in busy]

    def _settle(self, number: int, now: float) -> tuple[str, ...]:
        events, self._owed[number] = self._owed[number], set()
        self._free_at[number] = now + GAP
        return tuple(event for event in EVENTS if event in events)


# ── Message ───────────────────────────────────────────────────────────────────────────────────────

REASONS = 5
"""Failure classes that a message names, the most frequent first."""
LINE = 300
"""Characters of a line from a log or a reason, in a message."""
TITLE = 200
_NAME = 80


class Notification(Struct, frozen=True):
    """A message. `title` is one line; `summary` is JSON, `variables` its counts for commands."""

    title: str
    text: str
    summary: Mapping[str, Any]
    variables: Mapping[str, str]


class Cause(Struct, frozen=True):
    """Jobs that failed with one class; `first` is the first of them in the file's order."""

    kind: str
    jobs: int
    first: JobRecord

    @property
    def attempt(self) -> AttemptRecord | None:
        return self.first.attempts[-1] if self.first.attempts else None

    @property
    def evidence(self) -> str:
        """The line that shows the class, else the job's own reason."""
        found = self.attempt.evidence if self.attempt else ""
        return clip(words.visible(found or job_reason(self.first.reason)), LINE)

    @property
    def title(self) -> str:
        known = CLASSES.get(self.kind)
        return known.title if known else self.kind


def compose(
    events: Sequence[str], ledger: Ledger, directory: str, now: Instant, end: RunClosed | None
) -> Notification:
    """`events`: what it is about, the weightiest first; `end`: how the run ends, once it does."""
    causes = causes_of(ledger)
    state: RunState = end.state if end else "running"
    title = clip(_title(events[0], state, ledger, causes), TITLE)
    reason = run_reason(end.reason) if end else _paused(ledger)
    go_on = next_command(state, ledger, directory)
    look = f"gpulaunch status {shell_word(directory)}" if state == "running" else None
    since = ledger.taken or ledger.opened or now
    elapsed = max(0.0, now.mono - since.mono)
    text = [
        f"{tally(ledger)}; {clock(elapsed)} on {words.visible(ledger.opening.host)}"
        + (", simulated cards" if ledger.opening.simulated else ""),
        *([clip(words.visible(reason), LINE)] if reason else []),
        *(_idle(ledger)[:REASONS] if IDLE in events else []),
        *_told(causes),
        f"run: {words.visible(directory)}",
        *([f"go on with: {words.visible(go_on)}"] if go_on else []),
        *([f"look at it with: {words.visible(look)}"] if look else []),
    ]
    summary = {
        "event": events[0],
        "events": list(events),
        "title": title,
        "text": "\n".join(text),
        "run": {
            "id": ledger.opening.run,
            "name": ledger.opening.name,
            "dir": directory,
            "host": ledger.opening.host,
            "state": state,
            "reason": clip(reason, LINE),
            "exit_status": end.status if end else None,
            "simulated": ledger.opening.simulated,
            "seconds": round(elapsed, 3),
            "jobs": len(ledger.jobs),
            "counts": {name: ledger.counts[name] for name in ENDS_FIRST},
        },
        "failures": [_plain(cause) for cause in causes[:REASONS]],
        "next": go_on or look,
    }
    return Notification(
        title, "\n".join(text), summary, _variables(events, state, ledger, directory)
    )


def causes_of(ledger: Ledger) -> list[Cause]:
    """Return the jobs that are failed now, grouped by class, the most frequent first."""
    found: dict[str, list[Any]] = {}
    for job in ledger.jobs.values():
        if job.state == "failed" and not job.gone:
            last = job.attempts[-1] if job.attempts else None
            kind = (last.failure if last else None) or "not_started"
            found.setdefault(kind, [0, job])[0] += 1
    causes = [Cause(kind, number, job) for kind, (number, job) in found.items()]
    return sorted(causes, key=lambda cause: -cause.jobs)


def _title(event: str, state: RunState, ledger: Ledger, causes: Sequence[Cause]) -> str:
    name = clip(words.visible(ledger.opening.name), _NAME)
    if ledger.opening.simulated:
        name += " (simulated)"
    if event == FINISH:
        return f"{name} {state}: {tally(ledger)}"
    failed = several(ledger.counts["failed"], "job")
    if event == PAUSED:
        return f"{name} is paused, nothing more starts: {words.visible(_paused(ledger))}"
    if event == EVERY:
        return f"{name}: {failed} failed so far, {_done(ledger)}"
    if event == IDLE:
        return f"{name}: {_idle(ledger)[0]}"
    assert event == FIRST
    if not causes:
        return f"{name}: a job failed"
    cause = causes[0]
    which = clip(words.visible(cause.first.name), _NAME)
    if ledger.counts["failed"] > 1:
        return f"{name}: {failed} failed, {which} with: {cause.title}"
    return f"{name}: {which} failed: {cause.title}"


def _idle(ledger: Ledger) -> list[str]:
    """Return a line for each job that holds a card and does not use it, the longest first."""
    last = [job.attempts[-1] for job in ledger.jobs.values() if job.attempts]
    idle = [attempt for attempt in last if attempt.idle is not None]
    idle.sort(key=lambda attempt: (not attempt.is_open, attempt.launched))
    lines = (f"{attempt.id.job} {words.idle(attempt, ledger)}" for attempt in idle)
    return [clip(words.visible(line), LINE) for line in lines] or ["a job does not use its card"]


def _paused(ledger: Ledger) -> str:
    return pause(ledger.paused) if ledger.paused else ""


def _done(ledger: Ledger) -> str:
    jobs = words.count(len(ledger.jobs) - ledger.vanished)
    return f"{words.count(ledger.counts['succeeded'])} of {jobs} succeeded"


def _told(causes: Sequence[Cause]) -> list[str]:
    lines = []
    for cause in causes[:REASONS]:
        which = clip(words.visible(cause.first.name), _NAME)
        said = f"{words.count(cause.jobs)} failed: {cause.title} [{cause.kind}], first {which}"
        lines.append(f"{said}: {cause.evidence}" if cause.evidence else said)
    if len(causes) > REASONS:
        rest = sum(cause.jobs for cause in causes[REASONS:])
        lines.append(f"{words.count(rest)} failed in other ways")
    return lines


def _plain(cause: Cause) -> dict[str, Any]:
    advice = advice_of(cause.attempt.advice) if cause.attempt else ""
    return {
        "class": cause.kind,
        "jobs": cause.jobs,
        "first": cause.first.name,
        "evidence": cause.evidence,
        "advice": clip(advice, LINE),
    }


def _variables(
    events: Sequence[str], state: RunState, ledger: Ledger, directory: str
) -> dict[str, str]:
    # Not GPULAUNCH_RUN_ID: that variable marks a job's processes, which are ended.
    counts = {f"GPULAUNCH_{name.upper()}": str(max(0, ledger.counts[name])) for name in ENDS_FIRST}
    return counts | {
        "GPULAUNCH_EVENT": events[0],
        "GPULAUNCH_STATE": state,
        "GPULAUNCH_JOBS": str(len(ledger.jobs)),
        "GPULAUNCH_RUN_NAME": ledger.opening.name,
        "GPULAUNCH_RUN_DIR": directory,
    }
