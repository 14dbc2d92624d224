"""Durations while somebody sets the clock: in every view they are those of the monotonic clock."""

from __future__ import annotations

import pytest

from gpulaunch.core import facts as f
from gpulaunch.core.model import AttemptId, End, Exited, Instant
from gpulaunch.journal.joblog import row
from gpulaunch.observe.notify.message import compose
from gpulaunch.observe.present.status import Standing, status_json
from gpulaunch.observe.present.summary import summarise
from gpulaunch.observe.present.usage import card_uses
from gpulaunch.observe.report import fold
from gpulaunch.observe.report.idle import totals
from gpulaunch.observe.top.board import Board
from tests.views.history import START, History
from tests.views.screen import Paths

DAYS = 864_000.0
A = AttemptId("a", 1)


def shaken(by: float) -> History:
    """A job of 3 s in a run of 5 s, during which the clock is set."""
    run = History(1).open().jobs("a").pass_(1).start("a", 0)
    return run.pass_(1).set_clock(by).pass_(2).succeed("a").pass_(1)


def closed(by: float) -> History:
    return shaken(by).add(f.RunClosed("succeeded", None, 0))


@pytest.mark.parametrize("by", [DAYS, -DAYS])
def test_a_job_and_its_run_took_as_long_as_they_took(by: float) -> None:
    run = closed(by)
    attempt, opened = run.ledger.attempt(A), run.ledger.opened
    assert opened is not None
    assert run.ledger.closed is not None
    assert attempt.seconds == 3
    (use,) = card_uses(run.ledger, opened, run.ledger.closed)
    assert (use.seconds, use.share) == (3, 0.6)
    standing = Standing(run.ledger, Paths(), "succeeded", {}, run.now)
    assert standing.lasted == 5
    assert status_json(standing)["jobs"][0]["attempts"][0]["seconds"] == 3
    summary = summarise(run.ledger, Paths(), run.now, exists=lambda _: False)
    assert (summary.elapsed, summary.gpu_hours) == (5, 3 / 3600)
    assert row(1, "box", attempt, "true").split("\t")[3].strip() == "3.000"
    end = f.RunClosed("succeeded", None, 0)
    assert "; 0:05 on box" in compose(["finish"], run.ledger, "d", run.now, end).text


@pytest.mark.parametrize("by", [DAYS, -DAYS])
def test_a_live_run_and_its_job_go_on_for_as_long_as_they_do(by: float) -> None:
    run = History(1).open().jobs("a").pass_(1).start("a", 0).pass_(3).set_clock(by)
    now = run.ledger.here(run.now, "boot")
    attempt = run.ledger.attempt(A)
    assert run.ledger.so_far(attempt, now) == 3
    assert Standing(run.ledger, Paths(), "running", {}, now).lasted == 4
    board = Board()
    for fact, at in run.facts:
        board.see(fact, at)
    board.at(now)
    assert board.elapsed(attempt) == 3


@pytest.mark.parametrize("by", [DAYS, -DAYS])
def test_a_report_draws_durations_and_says_that_the_clock_was_set(by: float) -> None:
    run = closed(by)
    history = fold.of(run.facts)
    when = fold.period(history, "succeeded", run.now.utc)
    attempt = history.ledger.attempt(A)
    assert (when.start, when.seconds) == (START, 5)
    assert (fold.begin(attempt) - START, fold.finish(attempt, when) - START) == (1, 4)
    (spans,) = fold.spans(history, when).values()
    assert totals(spans)["busy"] == 3
    how = "forward by 10 d 0 h, or the machine slept" if by > 0 else "back by 10 d 0 h"
    assert [remark.text for remark in history.remarks] == [
        f"the clock was set {how}; the times of this report go on as before"
    ]
    assert history.clock.shown(START + by + 4.5) == START + 4.5


def test_over_a_reboot_the_time_of_day_is_all_that_is_known() -> None:
    run = History(1).open().jobs("a").pass_(10).start("a", 0).pass_(10).reboot(3600).open()
    run.end("a").pass_(5)
    assert run.ledger.attempt(A).seconds == 3610
    assert run.ledger.clock(run.now) == 3625
    assert Standing(run.ledger, Paths(), "running", {}, run.now).lasted == 5


def test_the_end_that_a_keeper_wrote_counts_by_its_own_times() -> None:
    run = History(1).open().jobs("a").start("a", 0)
    began, ended = Instant(1000.5, START), Instant(1003.5, START + DAYS)
    run.pass_(60).reboot(60).open()
    end = End(Exited(0), started=began, ended=ended)
    run.add(f.AttemptEnded(A, end, charged=False))
    assert run.ledger.attempt(A).seconds == 3


def test_another_machine_reads_the_run_by_the_time_of_day() -> None:
    run = History(1).open().jobs("a").start("a", 0).pass_(60)
    now = run.ledger.here(Instant(5.0, run.now.utc), "its own")
    assert run.ledger.so_far(run.ledger.attempt(A), now) == 60
