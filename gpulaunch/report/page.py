"""The report's text and tables as values, for the template. Pure.

Text from elsewhere is made visible here and escaped by the template; nothing of it is markup.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gpulaunch.core.ledger import AttemptRecord, JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Gpu, JobState, RunState
from gpulaunch.failure.classes import CLASSES, advice_for
from gpulaunch.metrics.model import AttemptUse
from gpulaunch.report.curves import Curve
from gpulaunch.report.fold import History, Period, begin, finish
from gpulaunch.report.groups import Fit, fits, groups_of
from gpulaunch.report.idle import CAUSES, Cause, Span, totals
from gpulaunch.report.say import LONG, SHORT, card_name, cards_named, ended, percent
from gpulaunch.views import words

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


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the head, with what it is and what else belongs to it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A cause's share of a card's time (0 to 1), as a number and in words."""

    cause: Cause
    seconds: float
    share: float

    @property
    def said(self) -> str:
        return percent(self.share)


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card's time; `parts` are of the causes that are shown, in their order."""

    name: str
    model: str
    parts: tuple[Part, ...]

    def part(self, cause: Cause) -> Part | None:
        """None where it took no time."""
        return next((part for part in self.parts if part.cause == cause), None)


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job of which an attempt failed. `log` is its address, None where there is none."""

    name: str
    attempt: int
    cards: str
    seconds: float
    how: str
    evidence: str
    lines: tuple[str, ...]
    log: str | None
    mended: bool


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """All of one class: `failed` jobs in the end, `mended` ones that came through afterwards."""

    title: str
    kind: str
    advice: str
    failed: int
    mended: int
    shown: tuple[FailedJob, ...]

    @property
    def more(self) -> int:
        return self.failed + self.mended - len(self.shown)


@dataclass(frozen=True, slots=True)
class Slow:
    """`part` of the slowest's time (0 to 1); `times` as long as the median of its group, None where
    too few have succeeded."""

    name: str
    seconds: float
    part: float
    cards: str
    state: str
    memory: int | None
    times: float | None
    group: str


@dataclass(frozen=True, slots=True)
class Line:
    """A remark with its moment, seconds since 1970 (UTC)."""

    at: float
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    run: str
    state: str
    sign: str
    simulated: bool
    when: Period
    headline: tuple[str, ...]
    tiles: tuple[Tile, ...]
    causes: tuple[tuple[Cause, str, str], ...]
    cards: tuple[CardRow, ...]
    failures: tuple[FailureGroup, ...]
    skipped: tuple[tuple[str, int], ...]
    slow: tuple[Slow, ...]
    fits: tuple[Fit, ...]
    lines: tuple[Line, ...]
    more_lines: int
    measured: bool
    manifest: tuple[tuple[str, str], ...]
    next_command: str | None


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured, where it was."""

    uses: Mapping[AttemptId, AttemptUse]
    curves: Mapping[str, Curve]


def page(
    history: History,
    when: Period,
    spans: Mapping[str, tuple[Span, ...]],
    measures: Measures,
    tails: Mapping[AttemptId, tuple[str, ...]],
    logs: Mapping[AttemptId, str],
    manifest: Sequence[tuple[str, str]],
    next_command: str | None = None,
) -> Page:
    """`logs`: the addresses of those that are there."""
    ledger = history.ledger
    rows = tuple(_card_row(history.cards[uuid], spans[uuid]) for uuid in spans)
    shown = [cause for cause in CAUSES if any(p.cause == cause for row in rows for p in row.parts)]
    failures = _failures(history, when, tails, logs)
    lines = [
        _line(remark.at, remark.gpu, remark.job, remark.text, history) for remark in history.remarks
    ]
    sign, state = STATES[when.state]
    return Page(
        name=words.visible(ledger.name),
        run=words.visible(ledger.run),
        state=state,
        sign=sign,
        simulated=history.simulated,
        when=when,
        headline=_headline(history, when, rows, failures, measures),
        tiles=_tiles(history, when, rows, measures),
        causes=tuple((cause, SHORT[cause], LONG[cause]) for cause in shown),
        cards=rows,
        failures=failures,
        skipped=tuple((words.visible(why), n) for why, n in _skipped(ledger).most_common(10)),
        slow=_slowest(history, when, measures.uses),
        fits=tuple(fits(ledger, history.cards, measures.uses)),
        lines=tuple(lines[:REMARKS]),
        more_lines=max(0, len(lines) - REMARKS),
        measured=any(use.peak_gpu_memory for use in measures.uses.values()),
        manifest=tuple((name, words.visible(value)) for name, value in manifest),
        next_command=next_command and words.visible(next_command),
    )


# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


def _card_row(gpu: Gpu, spans: Sequence[Span]) -> CardRow:
    sums = totals(spans)
    whole = sum(sums.values()) or 1.0
    parts = (Part(cause, sums[cause], sums[cause] / whole) for cause in CAUSES if cause in sums)
    return CardRow(card_name(gpu), words.visible(gpu.name), tuple(parts))


def busy_share(rows: Sequence[CardRow]) -> float | None:
    """Of the time in which the run lived; None where there was none, or no card."""
    busy = sum(part.seconds for row in rows for part in row.parts if part.cause == "busy")
    alive = sum(part.seconds for row in rows for part in row.parts if part.cause != "away")
    return busy / alive if alive else None


def _main_causes(rows: Sequence[CardRow]) -> list[tuple[Cause, float]]:
    """Why cards were idle, what took most of the time first."""
    sums: dict[Cause, float] = defaultdict(float)
    for part in (part for row in rows for part in row.parts if part.cause != "away"):
        sums[part.cause] += part.seconds
    alive = sum(sums.values())
    idle = [(cause, seconds / alive) for cause, seconds in sums.items() if cause != "busy"]
    return sorted(idle, key=lambda one: -one[1])


# ── The head ────────────────────────────────────────────────────────────────────────────────────


def _headline(
    history: History,
    when: Period,
    rows: Sequence[CardRow],
    failures: Sequence[FailureGroup],
    measures: Measures,
) -> tuple[str, ...]:
    said = [_counts(history.ledger, when)]
    busy = busy_share(rows)
    if busy is not None:
        kind = "simulated card" if history.simulated else "card"
        cards = f"The {len(rows)} {kind}s" if len(rows) > 1 else f"The {kind}"
        text = f"{cards} had jobs {percent(busy)} of the time"
        idle = [
            f"{SHORT[c]} {percent(share)}" for c, share in _main_causes(rows)[:2] if share >= 0.02
        ]
        said.append(text + (f"; for the rest: {', '.join(idle)}." if idle else "."))
    if failures:
        worst = max(failures, key=lambda group: group.failed + group.mended)
        of_all = sum(group.failed + group.mended for group in failures)
        share = words.count(worst.failed + worst.mended)
        same = f"{share} of {words.count(of_all)} failures" if len(failures) > 1 else "What failed"
        said.append(f"{same}: {worst.title}.")
    if when.state == "interrupted":
        said.append("The run was cut off: its supervisor was gone without having ended it.")
    elif history.ledger.reason and when.state == "stopped":
        said.append(f"Stopped: {words.visible(history.ledger.reason)}.")
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
        ("running", "running" if alive else "cut off"),
        ("waiting", "waiting" if alive else "not run"),
    )
    rest = [
        f"{words.count(ledger.counts[state])} {said}"
        for state, said in endings
        if ledger.counts[state] > 0
    ]
    of = f"{words.count(done)} of {words.several(total, 'job')}"
    verb = "have succeeded so far" if alive else "succeeded"
    return f"{of} {verb}" + (f", {', '.join(rest)}." if rest else ".")


def _tiles(
    history: History, when: Period, rows: Sequence[CardRow], measures: Measures
) -> tuple[Tile, ...]:
    ledger = history.ledger
    attempts = history.attempts()
    again = len(attempts) - sum(bool(job.attempts) for job in ledger.jobs.values())
    tiles = [
        Tile(
            "Jobs",
            words.count(len(ledger.jobs)),
            f"{words.several(len(attempts), 'attempt')}, {words.count(again)} of them again"
            if again
            else "",
        ),
        Tile("Time", words.duration(when.seconds), _starts(history)),
    ]
    busy = busy_share(rows)
    if busy is not None:
        hours = sum(p.seconds for row in rows for p in row.parts if p.cause == "busy") / 3600
        said = f"{hours:,.1f}" if hours < 100 else f"{hours:,.0f}"
        kind = "simulated " if history.simulated else ""
        tiles.append(Tile("Cards had jobs", percent(busy), f"{said} {kind}GPU-hours"))
    means = [curve.mean for curve in measures.curves.values() if curve.mean is not None]
    if means:
        tiles.append(Tile("Utilisation", f"{sum(means) / len(means):.0f} %", "mean of all cards"))
    use = max(measures.uses.values(), key=lambda one: one.peak_gpu_memory or 0, default=None)
    if use is not None and use.peak_gpu_memory:
        tiles.append(
            Tile("Most GPU memory", words.size(use.peak_gpu_memory), words.visible(use.attempt.job))
        )
    return tuple(tiles)


def _starts(history: History) -> str:
    count = len(history.starts)
    return f"in {count} starts" if count > 1 else ""


# ── What failed ─────────────────────────────────────────────────────────────────────────────────


def _failures(
    history: History,
    when: Period,
    tails: Mapping[AttemptId, tuple[str, ...]],
    logs: Mapping[AttemptId, str],
) -> tuple[FailureGroup, ...]:
    members: dict[str, list[tuple[JobRecord, AttemptRecord]]] = defaultdict(list)
    for job in history.ledger.jobs.values():
        last = next((a for a in reversed(job.attempts) if a.failure), None)
        if last is not None:
            members[last.failure or ""].append((job, last))
    groups = []
    for kind, found in members.items():
        found.sort(key=lambda pair: (pair[0].state == "succeeded", begin(pair[1])))
        shown = tuple(_failed(job, a, history, when, tails, logs) for job, a in found[:FAILED])
        mended = sum(job.state == "succeeded" for job, _ in found)
        title = CLASSES[kind].title if kind in CLASSES else kind
        advice = next((a.advice for _, a in found if a.advice), "") or advice_for(kind)
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
    history: History,
    when: Period,
    tails: Mapping[AttemptId, tuple[str, ...]],
    logs: Mapping[AttemptId, str],
) -> FailedJob:
    return FailedJob(
        name=words.visible(job.name),
        attempt=attempt.id.number,
        cards=cards_named(attempt.gpus, history.cards),
        seconds=finish(attempt, when) - begin(attempt),
        how=words.visible(ended(attempt, when)),
        evidence=words.visible(attempt.evidence),
        lines=tuple(words.visible(line) for line in tails.get(attempt.id, ())),
        log=logs.get(attempt.id),
        mended=job.state == "succeeded",
    )


def _skipped(ledger: Ledger) -> Counter[str]:
    return Counter(job.reason for job in ledger.jobs.values() if job.state == "skipped")


# ── What took long ──────────────────────────────────────────────────────────────────────────────


def _slowest(
    history: History, when: Period, uses: Mapping[AttemptId, AttemptUse]
) -> tuple[Slow, ...]:
    jobs = history.ledger.jobs
    attempts = [a for a in history.attempts() if not jobs[a.id.job].service]
    length = {a.id: finish(a, when) - begin(a) for a in attempts}
    attempts.sort(key=lambda a: -length[a.id])
    most = max(length.values(), default=0.0) or 1.0
    usual = _medians(history.ledger)
    rows = []
    for attempt in attempts[:SLOWEST]:
        group, typical = usual.get(jobs[attempt.id.job].group, ("", None))
        rows.append(
            Slow(
                name=words.visible(attempt.id.job),
                seconds=length[attempt.id],
                part=length[attempt.id] / most,
                cards=cards_named(attempt.gpus, history.cards),
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


def _line(at: float, gpu: str, job: str, text: str, history: History) -> Line:
    about = card_name(history.cards[gpu]) if gpu in history.cards else words.visible(job)
    return Line(at, about, words.visible(text))
