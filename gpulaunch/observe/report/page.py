"""The page's text and tables as values, for the template: what came out, what failed. Pure.

Text from elsewhere is made visible here and escaped by the template; nothing of it is markup.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpulaunch.base.text import clock, energy, several, size
from gpulaunch.base.wording import job_reason, run_reason
from gpulaunch.core.causes import Hint
from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Gpu, JobState, RunState
from gpulaunch.core.resume import median
from gpulaunch.diagnose.failure.classes import CLASSES
from gpulaunch.diagnose.failure.classes import advice as advice_of
from gpulaunch.observe.present import words
from gpulaunch.observe.present.usage import (
    doubtful,
    left_behind,
    never_touched,
    noted,
    outdated,
    processes_left,
    stands_for_other,
)
from gpulaunch.observe.report.cards import fits, groups_of, sharing
from gpulaunch.observe.report.drawing import CAUSE_WORDS, card_name, cards_of, ended, percent
from gpulaunch.observe.report.fold import Period, RunHistory, TimedRemark, begin, finish
from gpulaunch.observe.report.idle import CAUSES, Cause, Span, totals
from gpulaunch.observe.report.model import (
    CardRow,
    FailedJob,
    FailureGroup,
    Page,
    Part,
    ReportData,
    Slow,
    Tile,
)

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


# ── The head of the page, at a glance ─────────────────────────────────────────────────────────────


def headline(
    data: ReportData, rows: Sequence[CardRow], failures: Sequence[FailureGroup]
) -> tuple[str, ...]:
    """Return a few sentences on the run, the most important first."""
    history, when = data.history, data.when
    said = [_counts(history.ledger, when)]
    busy = None if history.on_nodes else busy_share(rows)
    if busy is not None:
        kind = "simulated card" if history.ledger.opening.simulated else "card"
        cards = f"The {len(rows)} {kind}s" if len(rows) > 1 else f"The {kind}"
        text = f"{cards} had jobs {percent(busy)} of the time"
        idle = [
            f"{CAUSE_WORDS[c][0]} {percent(share)}"
            for c, share in _main_causes(rows)[:2]
            if share >= 0.02
        ]
        said.append(text + (f"; for the rest: {', '.join(idle)}." if idle else "."))
    if failures:
        worst = max(failures, key=lambda group: group.failed + group.mended)
        of_all = sum(group.failed + group.mended for group in failures)
        share = words.count(worst.failed + worst.mended)
        same = f"{share} of {words.count(of_all)} failures" if len(failures) > 1 else "What failed"
        said.append(f"{same}: {worst.title}.")
    if data.untouched:
        said.append(never_touched(data.untouched))
    if left := left_behind(history.ledger):
        said.append(processes_left(left))
    if notes := doubtful(history.ledger):
        said.append(f"{noted(notes)}.")
    if changed := outdated(history.ledger):
        said.append(stands_for_other(changed))
    if when.state == "interrupted":
        said.append("The run was cut off: its supervisor was gone without having ended it.")
        if history.ledger.open_attempts() and history.ledger.queueing:
            said.append("What was in the queue or ran there goes on without it.")
    elif history.ledger.reason and when.state == "stopped":
        said.append(f"Stopped: {words.visible(run_reason(history.ledger.reason))}.")
    return tuple(said)


def _counts(ledger: Ledger, when: Period) -> str:
    total, done = len(ledger.jobs), ledger.counts["succeeded"]
    if total and done == total:
        return (
            f"All {words.count(total)} jobs succeeded." if total > 1 else "Its one job succeeded."
        )
    alive = when.state == "running"
    endings: tuple[tuple[JobState, str], ...] = (
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("skipped", "skipped"),
        ("running", "running" if alive or ledger.queueing else "cut off"),
        ("waiting", "waiting" if alive else "not run"),
    )
    gone = [f"{words.count(ledger.vanished)} {words.GONE}"] if ledger.vanished else []
    rest = [
        f"{words.count(ledger.counts[state])} {said}"
        for state, said in endings
        if ledger.counts[state] > 0
    ] + gone
    of = f"{words.count(done)} of {several(total, 'job')}"
    verb = "have succeeded so far" if alive else "succeeded"
    return f"{of} {verb}" + (f", {', '.join(rest)}." if rest else ".")


def tiles(data: ReportData, rows: Sequence[CardRow]) -> tuple[Tile, ...]:
    """Return the numbers that stand beneath the headline: jobs, time, use of the cards."""
    history, ledger = data.history, data.history.ledger
    attempts = history.attempts_by_job()
    starts = len(history.starts)
    again = len(attempts) - sum(bool(job.attempts) for job in ledger.jobs.values())
    said = [
        Tile(
            "Jobs",
            words.count(len(ledger.jobs)),
            f"{several(len(attempts), 'attempt')}, {words.count(again)} of them again"
            if again
            else "",
        ),
        Tile("Time", clock(data.when.seconds), f"in {starts} starts" if starts > 1 else ""),
    ]
    busy = busy_share(rows)
    hours = sum(p.seconds for row in rows for p in row.parts if p.cause == "busy") / 3600
    text = f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}"
    if history.on_nodes:
        nodes = several(len({gpu.node for gpu in history.cards.values()}), "node")
        said.append(Tile("GPU-hours", text, f"{several(len(rows), 'card')} on {nodes}"))
    elif busy is not None:
        kind = "simulated " if history.ledger.opening.simulated else ""
        said.append(Tile("Cards had jobs", percent(busy), f"{text} {kind}GPU-hours"))
    means = [curve.mean for curve in data.curves.values() if curve.mean is not None]
    if means:
        said.append(Tile("Utilisation", f"{sum(means) / len(means):.0f} %", "mean of all cards"))
    if data.energy is not None:
        said.append(Tile("Energy", energy(data.energy), "of the cards, while jobs had them"))
    use = max(data.uses.values(), key=lambda one: one.peak_gpu_memory or 0, default=None)
    if use is not None and use.peak_gpu_memory:
        said.append(
            Tile("Most GPU memory", size(use.peak_gpu_memory), words.visible(use.attempt.job))
        )
    return tuple(said)


def busy_share(rows: Sequence[CardRow]) -> float | None:
    """Return the cards' busy share of the time in which the run lived; None without such time."""
    busy = sum(part.seconds for row in rows for part in row.parts if part.cause == "busy")
    alive = sum(part.seconds for row in rows for part in row.parts if part.cause != "away")
    return busy / alive if alive else None


def _main_causes(rows: Sequence[CardRow]) -> list[tuple[Cause, float]]:
    """Return why cards were idle, and each cause's share of their time, the largest first."""
    sums: dict[Cause, float] = defaultdict(float)
    for part in (part for row in rows for part in row.parts if part.cause != "away"):
        sums[part.cause] += part.seconds
    alive = sum(sums.values())
    idle = [(cause, seconds / alive) for cause, seconds in sums.items() if cause != "busy"]
    return sorted(idle, key=lambda one: -one[1])
