"""The page's text and tables as values, for the template: what failed, what took long. Pure.

Text from elsewhere is made visible here and escaped by the template; nothing of it is markup.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpulaunch.core.causes import Hint
from gpulaunch.core.expected import median
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Gpu, RunState
from gpulaunch.core.records import AttemptRecord, JobRecord
from gpulaunch.diagnose.failure.classes import CLASSES
from gpulaunch.diagnose.failure.classes import advice as advice_of
from gpulaunch.digest import words
from gpulaunch.report.fold import RunHistory, TimedRemark, begin, finish
from gpulaunch.report.groups import fits, groups_of
from gpulaunch.report.head import headline, tiles
from gpulaunch.report.idle import CAUSES, Span, totals
from gpulaunch.report.model import (
    CardRow,
    FailedJob,
    FailureGroup,
    Page,
    Part,
    ReportData,
    Slow,
)
from gpulaunch.report.sharing import sharing
from gpulaunch.report.wording import CAUSE_WORDS, card_name, cards_of, ended
from gpulaunch.wording import job_reason

FAILED = 20
"""Failed jobs of one class that are shown with their logs' ends; the list of attempts has all."""
SLOWEST = 10
REMARKS = 200
STATES: Mapping[RunState, tuple[str, str]] = {
    "running": ("▶", "running"),
    "succeeded": ("✓", "succeeded"),
    "failed": ("✕", "failed"),
    "stopped": ("■", "stopped"),
    "interrupted": ("≠", "interrupted"),
}


def page(
    data: ReportData,
    logs: Mapping[AttemptId, str],
    manifest: Sequence[tuple[str, str]],
    next_command: str | None = None,
    keeps: Mapping[str, str] | None = None,
) -> Page:
    """Return the page. `logs` and `keeps`: the addresses of those that are there."""
    history, when = data.history, data.when
    ledger = history.ledger
    rows = tuple(_card_row(history.cards[uuid], spans) for uuid, spans in data.spans.items())
    shown = [cause for cause in CAUSES if any(p.cause == cause for row in rows for p in row.parts)]
    failed = failures(data, logs, keeps or {})
    skipped = Counter(
        job_reason(job.reason) for job in ledger.jobs.values() if job.state == "skipped"
    )
    sign, state = STATES[when.state]
    return Page(
        name=words.visible(ledger.opening.name),
        state=state,
        sign=sign,
        simulated=ledger.opening.simulated,
        when=when,
        headline=headline(data, rows, failed),
        tiles=tiles(data, rows),
        causes=tuple((cause, *CAUSE_WORDS[cause]) for cause in shown),
        cards=rows,
        failures=failed,
        skipped=tuple((words.visible(why), n) for why, n in skipped.most_common(10)),
        slow=slowest(data),
        fits=tuple(fits(ledger, history.cards, data.uses)),
        sharing=tuple(sharing(ledger, history.cards, data.uses, when)),
        remarks=tuple(_remark(remark, history) for remark in history.remarks[:REMARKS]),
        more_remarks=max(0, len(history.remarks) - REMARKS),
        results=data.results,
        measured=any(use.peak_gpu_memory for use in data.uses.values()),
        manifest=tuple((name, words.visible(value)) for name, value in manifest),
        next_command=next_command and words.visible(next_command),
    )


def _card_row(gpu: Gpu, spans: Sequence[Span]) -> CardRow:
    sums = totals(spans)
    whole = sum(sums.values()) or 1.0
    parts = (Part(cause, sums[cause], sums[cause] / whole) for cause in CAUSES if cause in sums)
    return CardRow(card_name(gpu), words.visible(gpu.name), tuple(parts))


def _remark(remark: TimedRemark, history: RunHistory) -> tuple[float, str, str]:
    card = history.cards.get(remark.gpu)
    about = card_name(card) if card else words.visible(remark.job)
    return remark.at, about, words.visible(remark.text)


def failures(
    data: ReportData, logs: Mapping[AttemptId, str], keeps: Mapping[str, str]
) -> tuple[FailureGroup, ...]:
    """Return what failed by class, the most frequent first; each job by its newest failure."""
    history, when = data.history, data.when

    def shown(job: JobRecord, attempt: AttemptRecord) -> FailedJob:
        return FailedJob(
            name=words.visible(job.name),
            attempt=attempt.id.number,
            cards=cards_of(attempt, history.cards),
            seconds=finish(attempt, when) - begin(attempt),
            how=words.visible(ended(attempt, when)),
            evidence=words.visible(attempt.evidence),
            lines=tuple(map(words.visible, data.tails.get(attempt.id, ()))),
            log=logs.get(attempt.id),
            keep=keeps.get(job.name),
            mended=job.state == "succeeded",
        )

    members: dict[str, list[tuple[JobRecord, AttemptRecord]]] = defaultdict(list)
    for job in history.ledger.jobs.values():
        last = next((a for a in reversed(job.attempts) if a.failure), None)
        if last is not None and not job.gone:
            members[last.failure or ""].append((job, last))
    groups = []
    for kind, found in members.items():
        found.sort(key=lambda pair: (pair[0].state == "succeeded", begin(pair[1])))
        mended = sum(job.state == "succeeded" for job, _ in found)
        advice = advice_of(next((a.advice for _, a in found if a.advice), (Hint(kind),)))
        groups.append(
            FailureGroup(
                title=words.visible(CLASSES[kind].title if kind in CLASSES else kind),
                kind=words.visible(kind),
                advice=words.visible(advice.replace("\n", " ")),
                failed=len(found) - mended,
                mended=mended,
                shown=tuple(shown(*pair) for pair in found[:FAILED]),
            )
        )
    return tuple(sorted(groups, key=lambda one: (-one.failed, -one.mended, one.title)))


def slowest(data: ReportData) -> tuple[Slow, ...]:
    """Return the longest attempts, services left out: they end when told."""
    history, when, uses = data.history, data.when, data.uses
    jobs = history.ledger.jobs
    every = history.attempts_by_job()
    attempts = [a for a in every if not jobs[a.id.job].definition.service]
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
    """Return each group's name, and the median of its successes' seconds, if there are enough."""
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
