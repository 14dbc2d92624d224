"""Attempts that stand out: what failed, by class, and what took long. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import median

from gpulaunch.core.causes import Hint
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId
from gpulaunch.diagnose.failure.classes import CLASSES
from gpulaunch.diagnose.failure.classes import advice as advice_of
from gpulaunch.digest import words
from gpulaunch.metrics.model import AttemptUse
from gpulaunch.report.fold import Period, RunHistory, begin, finish
from gpulaunch.report.groups import groups_of
from gpulaunch.report.model import FailedJob, FailureGroup, Slow
from gpulaunch.report.wording import cards_of, ended
from gpulaunch.wording import job_reason

FAILED = 20
"""Failed jobs of one class that are shown with their logs' ends; the list of attempts has all."""
SLOWEST = 10


def failures(
    history: RunHistory,
    when: Period,
    tails: Mapping[AttemptId, tuple[str, ...]],
    logs: Mapping[AttemptId, str],
) -> tuple[FailureGroup, ...]:
    """By class, the most frequent first; each job by its newest failure."""
    members: dict[str, list[tuple[JobRecord, AttemptRecord]]] = defaultdict(list)
    for job in history.ledger.jobs.values():
        last = next((a for a in reversed(job.attempts) if a.failure), None)
        if last is not None and not job.gone:
            members[last.failure or ""].append((job, last))
    groups = []
    for kind, found in members.items():
        found.sort(key=lambda pair: (pair[0].state == "succeeded", begin(pair[1])))
        shown = tuple(_failed(job, a, history, when, tails, logs) for job, a in found[:FAILED])
        mended = sum(job.state == "succeeded" for job, _ in found)
        title = CLASSES[kind].title if kind in CLASSES else kind
        advice = advice_of(next((a.advice for _, a in found if a.advice), (Hint(kind),)))
        groups.append(
            FailureGroup(
                words.visible(title),
                words.visible(kind),
                words.visible(advice.replace("\n", " ")),
                len(found) - mended,
                mended,
                shown,
            )
        )
    return tuple(sorted(groups, key=lambda one: (-one.failed, -one.mended, one.title)))


def _failed(
    job: JobRecord,
    attempt: AttemptRecord,
    history: RunHistory,
    when: Period,
    tails: Mapping[AttemptId, tuple[str, ...]],
    logs: Mapping[AttemptId, str],
) -> FailedJob:
    return FailedJob(
        name=words.visible(job.name),
        attempt=attempt.id.number,
        cards=cards_of(attempt, history.cards),
        seconds=finish(attempt, when) - begin(attempt),
        how=words.visible(ended(attempt, when)),
        evidence=words.visible(attempt.evidence),
        lines=tuple(words.visible(line) for line in tails.get(attempt.id, ())),
        log=logs.get(attempt.id),
        mended=job.state == "succeeded",
    )


def skipped(ledger: Ledger) -> Counter[str]:
    """How many jobs, by why."""
    return Counter(job_reason(job.reason) for job in ledger.jobs.values() if job.state == "skipped")


def slowest(
    history: RunHistory, when: Period, uses: Mapping[AttemptId, AttemptUse]
) -> tuple[Slow, ...]:
    """Return the longest attempts, services left out: they end when told."""
    jobs = history.ledger.jobs
    attempts = [a for a in history.attempts() if not jobs[a.id.job].definition.service]
    length = {a.id: finish(a, when) - begin(a) for a in attempts}
    attempts.sort(key=lambda a: -length[a.id])
    most = max(length.values(), default=0.0) or 1.0
    usual = _medians(history.ledger)
    rows = []
    for attempt in attempts[:SLOWEST]:
        group, typical = usual.get(jobs[attempt.id.job].definition.group, ("", None))
        rows.append(
            Slow(
                name=words.visible(attempt.id.job),
                seconds=length[attempt.id],
                part=length[attempt.id] / most,
                cards=cards_of(attempt, history.cards),
                state=ended(attempt, when) if attempt.state != "succeeded" else "succeeded",
                memory=uses[attempt.id].peak_gpu_memory if attempt.id in uses else None,
                times=length[attempt.id] / typical if typical else None,
                group=words.visible(group),
            )
        )
    return tuple(rows)


def _medians(ledger: Ledger) -> dict[int, tuple[str, float | None]]:
    """Of each group's successes: its name and the middle of their seconds."""
    found: dict[int, tuple[str, float | None]] = {}
    for group in groups_of(ledger):
        seconds = [
            attempt.seconds
            for name in group.jobs
            for attempt in ledger.jobs[name].attempts
            if attempt.state == "succeeded"
        ]
        found[group.number] = group.label, median(seconds) if len(seconds) > 2 else None
    return found
