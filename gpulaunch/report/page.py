"""The page's text and tables as values, for the template. Pure.

Text from elsewhere is made visible here and escaped by the template; nothing of it is markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpulaunch.core.model import AttemptId, Gpu, RunState
from gpulaunch.digest import words
from gpulaunch.report.failed import failures, skipped, slowest
from gpulaunch.report.fold import Period, RunHistory
from gpulaunch.report.groups import fits
from gpulaunch.report.head import headline, tiles
from gpulaunch.report.idle import CAUSES, Span, totals
from gpulaunch.report.model import CardRow, Measures, Page, Part, RemarkLine
from gpulaunch.report.wording import LONG, SHORT, card_name

REMARKS = 200
STATES: Mapping[RunState, tuple[str, str]] = {
    "running": ("▶", "running"),
    "succeeded": ("✓", "succeeded"),
    "failed": ("✕", "failed"),
    "stopped": ("■", "stopped"),
    "interrupted": ("≠", "interrupted"),
}


def page(
    history: RunHistory,
    when: Period,
    spans: Mapping[str, tuple[Span, ...]],
    measures: Measures,
    tails: Mapping[AttemptId, tuple[str, ...]],
    logs: Mapping[AttemptId, str],
    manifest: Sequence[tuple[str, str]],
    next_command: str | None = None,
) -> Page:
    """Return the page. `logs`: the addresses of those that are there."""
    ledger = history.ledger
    rows = tuple(_card_row(history.cards[uuid], spans[uuid]) for uuid in spans)
    shown = [cause for cause in CAUSES if any(p.cause == cause for row in rows for p in row.parts)]
    failed = failures(history, when, tails, logs)
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
        headline=headline(history, when, rows, failed),
        tiles=tiles(history, when, rows, measures),
        causes=tuple((cause, SHORT[cause], LONG[cause]) for cause in shown),
        cards=rows,
        failures=failed,
        skipped=tuple((words.visible(why), n) for why, n in skipped(ledger).most_common(10)),
        slow=slowest(history, when, measures.uses),
        fits=tuple(fits(ledger, history.cards, measures.uses)),
        lines=tuple(lines[:REMARKS]),
        more_lines=max(0, len(lines) - REMARKS),
        measured=any(use.peak_gpu_memory for use in measures.uses.values()),
        manifest=tuple((name, words.visible(value)) for name, value in manifest),
        next_command=next_command and words.visible(next_command),
    )


def _card_row(gpu: Gpu, spans: Sequence[Span]) -> CardRow:
    sums = totals(spans)
    whole = sum(sums.values()) or 1.0
    parts = (Part(cause, sums[cause], sums[cause] / whole) for cause in CAUSES if cause in sums)
    return CardRow(card_name(gpu), words.visible(gpu.name), tuple(parts))


def _line(at: float, gpu: str, job: str, text: str, history: RunHistory) -> RemarkLine:
    about = card_name(history.cards[gpu]) if gpu in history.cards else words.visible(job)
    return RemarkLine(at, about, words.visible(text))
