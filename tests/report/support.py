"""Histories folded and put on a page."""

from __future__ import annotations

from gpulaunch.observe.report import fold
from gpulaunch.observe.report.model import Page, ReportData
from gpulaunch.observe.report.page import page
from tests.views.history import History


def folded(run: History, state: str = "failed") -> tuple[fold.RunHistory, fold.Period]:
    history = fold.of(run.facts)
    return history, fold.period(history, state, run.now.utc)  # type: ignore[arg-type]


def told(run: History, state: str = "failed") -> Page:
    history, when = folded(run, state)
    return page(ReportData(history, when, fold.spans(history, when)), {}, [])


def many(count: int) -> History:
    run = History(1).open().jobs(*(f"j{n}" for n in range(count)))
    for n in range(count):
        run.start(f"j{n}", 0).pass_(10).succeed(f"j{n}")
    return run
