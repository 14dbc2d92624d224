"""Summarises the end of a run: results, failures and reasons, how to go on.

Jobs that failed alike or wait for the same are one group. However many jobs there are, the groups
are few: a person reads each sentence once. `terminal.overview` shows the summary. Reads log tails
by a function that is passed in, and only for the failures that are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from msgspec import Struct

from gpulaunch.base.errors import NO_CARDS
from gpulaunch.base.text import shell_word
from gpulaunch.base.wording import job_reason
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Exited, Instant, RunState, Signaled, Status
from gpulaunch.core.reasons import JobReason, NotBefore, WaitReason
from gpulaunch.core.state import MIN_BREAKER, without_own
from gpulaunch.diagnose.failure.classes import advice, title_of
from gpulaunch.observe.metrics.model import NOTHING, Measured
from gpulaunch.observe.present import words
from gpulaunch.observe.present.tail import read_tail
from gpulaunch.observe.present.usage import (
    CardUse,
    card_seconds,
    card_uses,
    doubtful,
    left_behind,
    noted,
    outdated,
    untouched,
    use_of_all,
    use_of_one,
)

BEGINNING = 60
"""Characters of an evidence line that show it is in a sentence already, perhaps shortened."""
_NAME = re.compile(r"[^\s,;:()]+")
_NUMBER = re.compile(r"\d+(?::\d\d)*")


class Alike(Struct, frozen=True):
    """Jobs with one sentence in common, `text`; of failures also the line that shows it."""

    text: str
    names: tuple[str, ...]
    evidence: str = ""


def evidence_of(job: JobRecord) -> str:
    """Return the line that shows why the job failed; empty if unknown, or if it did not fail."""
    last = _last(job)
    return last.evidence if last is not None and job.state == "failed" else ""


def shown(said: str, attempt: AttemptRecord) -> str:
    """Return how an attempt ended, `said` in words, with the line that shows it, but only once."""
    if not attempt.evidence or attempt.evidence[:BEGINNING] in said:
        return said
    return f"{said}: {attempt.evidence}"


def how(job: JobRecord) -> str:
    """Return how a failed job ended, in words, without the line that shows it."""
    last = _last(job)
    if last is None:
        return job_reason(job.reason) or "never started"
    plain = job_reason(job.reason) or words.ending(last)
    if last.evidence:
        start = plain.find(f": {last.evidence[:BEGINNING]}")
        plain = plain[:start] if start > 0 else plain
    title = title_of(last.failure or "")
    return f"{title} ({plain})" if title and title not in plain else plain


def failures(jobs: Iterable[JobRecord]) -> list[Alike]:
    """Return failed jobs grouped by failure class, status and evidence, the most frequent first."""
    members: dict[tuple[object, ...], list[JobRecord]] = {}
    for job in jobs:
        last, text, evidence = _last(job), how(job), evidence_of(job)
        kind = (last.failure, _status(last)) if last else None
        own = (job.name, *job.definition.params.values())
        alike = (kind, _without(text, own), _without(evidence, own))
        members.setdefault(alike, []).append(job)
    return _sorted(
        Alike(how(one[0]), tuple(job.name for job in one), evidence_of(one[0]))
        for one in members.values()
    )


def reasons(
    jobs: Iterable[JobRecord],
    reason: Callable[[JobRecord], JobReason | WaitReason | None],
    ledger: Ledger,
) -> list[Alike]:
    """Return jobs grouped by their reasons, the most frequent first.

    Reasons that differ only in names of jobs and in numbers are one group (`needs fold-*, which
    is running`).
    """
    members: dict[object, list[tuple[str, str]]] = {}
    for job in jobs:
        why = reason(job)
        members.setdefault(_shape(why, ledger.jobs), []).append((job.name, job_reason(why)))
    return _sorted(
        Alike(_folded([text for _, text in one]), tuple(name for name, _ in one))
        for one in members.values()
    )


def _sorted(groups: Iterable[Alike]) -> list[Alike]:
    return sorted(groups, key=lambda one: -len(one.names))


def _without(text: str, own: Sequence[str]) -> str:
    """Return the text without the job's own name, values and numbers; short ones as whole words."""
    text = without_own(text, own)
    for value in own:
        if 0 < len(value) < MIN_BREAKER:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "*", text)
    return text


def _last(job: JobRecord) -> AttemptRecord | None:
    return job.attempts[-1] if job.attempts else None


def _status(attempt: AttemptRecord) -> Status | None:
    """Return the process's status if that is the attempt's outcome; else None."""
    return attempt.outcome if isinstance(attempt.outcome, (Exited, Signaled)) else None


def _shape(value: object, names: Mapping[str, object]) -> object:
    """Return the value without names of jobs and numbers, to be compared."""
    if isinstance(value, str):
        return _NAME.sub(lambda word: "*" if word[0] in names else _NUMBER.sub("0", word[0]), value)
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(_shape(each, names) for each in value))
    if isinstance(value, NotBefore):
        return (NotBefore, value.utc)  # another moment is another reason
    if isinstance(value, Struct):
        own = (getattr(value, name) for name in value.__struct_fields__)
        return (type(value), *(_shape(each, names) for each in own))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number else value


def _folded(texts: Sequence[str]) -> str:
    """Return one sentence for several of one shape, with patterns where their words differ."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) == 1:
        return distinct[0]
    columns = zip(*(_NAME.findall(text) for text in distinct), strict=False)
    folded = iter([_alike(column) for column in columns])
    return _NAME.sub(lambda found: next(folded, found[0]), distinct[0])


def _alike(texts: Sequence[str]) -> str:
    """Return a pattern for words: `fold-*` of fold-a and fold-b; numbers give a range."""
    if all(text.isdecimal() for text in texts):
        least, most = min(map(int, texts)), max(map(int, texts))
        return f"{least}" if least == most else f"{least} to {most}"
    return texts[0] if len(set(texts)) == 1 else pattern(texts)


def pattern(texts: Sequence[str]) -> str:
    """Return what texts have in common, `fold-*`; no number is cut in two: of 07 and 08, `*`."""
    start = _beginning(texts).rstrip("0123456789")
    ends = [text[len(start) :][::-1] for text in texts]
    return f"{start}*{_beginning(ends)[::-1].lstrip('0123456789')}"


def _beginning(texts: Sequence[str]) -> str:
    """Return what all the texts begin with."""
    pairs = zip(min(texts), max(texts), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


# ── The summary ───────────────────────────────────────────────────────────────────────────────────


class RunPaths(Protocol):
    @property
    def root(self) -> os.PathLike[str] | str:
        """The run directory, as people are to type it."""

    def log(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def out(self, attempt: AttemptId) -> os.PathLike[str] | str: ...

    def keep(self, job: str) -> os.PathLike[str] | str: ...


MAX_FAILURES_TOLD = 10
"""Kinds of failures, and causes of skipping, that are shown one by one."""


class Failed(Struct, frozen=True):
    """Jobs that failed alike; all but `alike` is about the first of them.

    `last` is its last attempt, `card` where that ran, `log` its log if there is one, `use` what was
    measured of it, in words.
    """

    alike: Alike
    last: AttemptRecord | None
    card: str = ""
    log: str | None = None
    tail: tuple[str, ...] = ()
    use: str = ""

    @property
    def advice(self) -> str:
        """What a person can do about it."""
        return advice(self.last.advice) if self.last else ""


class Summary(Struct, frozen=True):
    """A run's end. `elapsed` and `cards` are of its latest start, in seconds; `gpu_hours` of all.

    `used` is what was measured of all attempts, in words. `untouched`: the jobs that succeeded and
    were never seen on their card; `left`: those that left processes behind;
    `outdated`: those of which the job file says something else by now. `noted`: a line on those of
    which a note says more.
    """

    ledger: Ledger
    directory: str
    elapsed: float
    gpu_hours: float
    cards: tuple[tuple[str, CardUse], ...]
    failed: tuple[Failed, ...]
    failed_more: int
    skipped: tuple[Alike, ...]
    next_command: str | None
    used: str
    untouched: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    noted: str = ""

    @property
    def busy(self) -> float | None:
        """The share of all cards' time that attempts used; None without cards."""
        if not self.cards:
            return None
        return sum(use.share for _, use in self.cards) / len(self.cards)


def summarise(
    ledger: Ledger,
    paths: RunPaths,
    now: Instant,
    tail_of: Callable[[str], Sequence[str]] = read_tail,
    exists: Callable[[str], bool] = os.path.exists,
    measured: Measured = NOTHING,
) -> Summary:
    """Return the summary of a run that has ended."""
    end = ledger.closed or now
    since = ledger.taken or ledger.opened or end
    failed = failures(job for job in ledger.jobs.values() if job.state == "failed" and not job.gone)
    jobs = (job for job in ledger.jobs.values() if job.state == "skipped" and not job.gone)

    def detailed(alike: Alike) -> Failed:
        attempts = ledger.jobs[alike.names[0]].attempts
        if not attempts:
            return Failed(alike, None)
        last = attempts[-1]
        log = os.fspath(paths.log(last.id))
        there = exists(log)  # not where the job never started
        return Failed(
            alike,
            last,
            words.attempt_cards(last, ledger),
            log if there else None,
            tuple(tail_of(log)) if there else (),
            use_of_one(measured.uses.get(last.id)),
        )

    return Summary(
        ledger=ledger,
        directory=os.fspath(paths.root),
        elapsed=max(0.0, end.mono - since.mono),
        gpu_hours=card_seconds(ledger, end) / 3600,
        cards=tuple(
            (words.card(ledger.gpus[u.uuid].gpu), u) for u in card_uses(ledger, since, end)
        ),
        failed=tuple(map(detailed, failed[:MAX_FAILURES_TOLD])),
        failed_more=sum(len(one.names) for one in failed[MAX_FAILURES_TOLD:]),
        skipped=tuple(reasons(jobs, lambda job: job.reason, ledger)),
        next_command=next_command(ledger.state, ledger, os.fspath(paths.root)),
        used=use_of_all(measured),
        untouched=tuple(untouched(ledger, measured)),
        left=tuple(left_behind(ledger)),
        outdated=tuple(outdated(ledger)),
        noted=noted(notes) if (notes := doubtful(ledger)) else "",
    )


def next_command(state: RunState, ledger: Ledger, directory: str) -> str | None:
    """Return the next command: `retry` if only failures are left, else `resume`; None if done."""
    if state in ("succeeded", "running"):
        return None
    if ledger.exit_status == NO_CARDS and not any(job.attempts for job in ledger.jobs.values()):
        return None  # no card came in time, and nothing was ever started
    left = any(
        job.state in ("waiting", "cancelled", "running") and not job.gone
        for job in ledger.jobs.values()
    )
    command = "resume" if left or not ledger.counts["failed"] else "retry"
    return f"gpulaunch {command} {shell_word(directory)}"
