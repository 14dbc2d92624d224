"""The head of the page: what came out, and whether the cards were busy, at a glance. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import JobState
from gpulaunch.digest import words
from gpulaunch.digest.usage import (
    doubtful,
    left_behind,
    never_touched,
    noted,
    outdated,
    processes_left,
    stands_for_other,
)
from gpulaunch.report.fold import Period
from gpulaunch.report.idle import Cause
from gpulaunch.report.model import CardRow, FailureGroup, ReportData, Tile
from gpulaunch.report.wording import CAUSE_WORDS, percent
from gpulaunch.text import clock, energy, several, size
from gpulaunch.wording import run_reason


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
