"""The report's pure parts: lanes, groups, curves, ends of logs, the text."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest
from jinja2.bccache import FileSystemBytecodeCache

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, Cancelled, Exited, Interrupted, Lost
from gpulaunch.metrics.model import AttemptUse, CardSample
from gpulaunch.report import fold, render, write
from gpulaunch.report.curves import curve_of
from gpulaunch.report.drawing import drawing, lanes
from gpulaunch.report.groups import fits, groups_of, label
from gpulaunch.report.model import Page, ReportData
from gpulaunch.report.page import page
from gpulaunch.report.sharing import sharing
from gpulaunch.report.wording import cards_of
from tests.views.history import START, History

GIB = 1 << 30


def folded(run: History, state: str = "failed") -> tuple[fold.RunHistory, fold.Period]:
    history = fold.of(run.facts)
    return history, fold.period(history, state, run.now.utc)  # type: ignore[arg-type]


def told(run: History, state: str = "failed") -> Page:
    history, when = folded(run, state)
    return page(ReportData(history, when, fold.spans(history, when)), {}, [])


# ── Lanes ───────────────────────────────────────────────────────────────────────────────────────


def test_a_bar_stands_on_each_of_its_cards_and_hides_no_other() -> None:
    run = History(2).open().jobs("a", "b", "c", "wide").jobs("cpu", cards=0)
    run.start("a", 0).start("b", 0).start("cpu").pass_(10).succeed("a").start("c", 0).pass_(10)
    run.succeed("b").succeed("c").start("wide", 0, 1).pass_(10).succeed("wide")
    history, when = folded(run)
    attempts = history.attempts()
    shown = {
        lane.uuid: [(attempts[n].id.job, row) for n, row in zip(lane.bars, lane.rows, strict=True)]
        for lane in lanes(attempts, history.cards, when)
    }
    assert shown == {
        "GPU-0": [("a", 0), ("b", 1), ("c", 0), ("wide", 0)],
        "GPU-1": [("wide", 0)],
        None: [("cpu", 0)],
    }


def on_nodes() -> History:
    """The client was away while two of the jobs ran."""
    run = History(0).open(engine="slurm").jobs("a", "b", "c", "d", "gone")
    run.hand_over("a", "b", "c", "d", "gone").pass_(100)
    run.start_there("a", "n10", 1).start_there("b", "n2", 0).pass_(50).succeed("a")
    run.end("gone", Cancelled()).add(f.JobSettled("gone", "cancelled", Quoted("cancelled")))
    run.pass_(30).open(engine="slurm").pass_(20).succeed("b")
    return run.start_there("c", "n2", 0).pass_(100)


def test_each_card_of_a_node_has_a_lane_of_the_jobs_that_ran_there() -> None:
    history, when = folded(on_nodes(), "running")
    attempts = history.attempts()
    shown = {
        lane.uuid: [attempts[number].id.job for number in lane.bars]
        for lane in lanes(attempts, history.cards, when)
    }
    assert shown == {"n2/0": ["b", "c"], "n10/1": ["a"]}
    page = told(on_nodes(), "running")
    assert [row.name for row in page.cards] == ["n2 GPU 0", "n10 GPU 1"]
    assert [row.part("busy").seconds for row in page.cards] == [200.0, 50.0]  # type: ignore[union-attr]
    assert page.tiles[2].value == "0.07"
    assert page.tiles[2].note == "2 cards on 2 nodes"
    assert not any("of the time" in said for said in page.headline)


def test_what_goes_on_in_a_queue_was_not_cut_off() -> None:
    page = told(on_nodes(), "interrupted")
    assert page.headline[0] == "2 of 5 jobs succeeded, 1 cancelled, 1 running, 1 not run."
    assert page.headline[-1] == "What was in the queue or ran there goes on without it."
    history, when = folded(on_nodes(), "interrupted")
    assert not any(fold.cut_off(attempt, when) for attempt in history.attempts())


def test_the_time_of_a_nodes_card_adds_up() -> None:
    for state in ("running", "interrupted"):
        history, when = folded(on_nodes(), state)
        for spans in fold.spans(history, when).values():
            assert spans[0].start == when.start
            assert spans[-1].end == when.end
            assert all(one.end == two.start for one, two in pairwise(spans))
            assert {span.cause for span in spans} == {"busy", "cluster"}


def test_no_two_bars_of_one_row_overlap() -> None:
    run = History(1).open().jobs(*(f"j{n}" for n in range(40)))
    for n in range(40):
        run.start(f"j{n}", 0).pass_(1 + n % 3)
        if n % 2:
            run.succeed(f"j{n - 1}")
    history, when = folded(run)
    attempts = history.attempts()
    (lane,) = lanes(attempts, history.cards, when)
    ends: dict[int, float] = {}
    for number, row in zip(lane.bars, lane.rows, strict=True):
        assert fold.begin(attempts[number]) >= ends.get(row, 0.0)
        ends[row] = fold.finish(attempts[number], when)
    assert lane.height == len(ends)


def test_every_kind_of_end_is_drawn_as_what_it_is() -> None:
    names = ("good", "bad", "ended", "cut", "lost", "open")
    run = History(1).open().jobs(*names)
    for name in names:
        run.start(name, 0)
    run.pass_(5).succeed("good").fail("bad").end("ended", Cancelled())
    run.end("cut", Interrupted(Quoted("a stop"))).end("lost", Lost(Quoted("nobody saw it")), "lost")
    for state, kind in (("running", "running"), ("interrupted", "unknown")):
        history, when = folded(run, state)
        drawn = drawing(ReportData(history, when), 0.0, "logs/")
        kinds = [drawn["kinds"][number] for number in drawn["attempts"]["kind"]]
        said = dict(zip([drawn["names"][n] for n in drawn["attempts"]["job"]], kinds, strict=True))
        assert said == {
            "good": "succeeded",
            "bad": "failed",
            "ended": "cancelled",
            "cut": "interrupted",
            "lost": "lost",
            "open": kind,
        }


def test_a_run_that_was_cut_off_lasted_as_long_as_it_was_seen() -> None:
    run = History(1).open().jobs("a").start("a", 0)
    history, (start, now) = fold.of(run.facts), (run.now.utc, run.now.utc + 9000)
    assert fold.period(history, "interrupted", now).end == start
    assert fold.period(history, "interrupted", now, seen=start + 3600).seconds == 3600
    assert fold.period(history, "interrupted", now, seen=now + 99).end == now
    assert fold.period(history, "running", now, seen=start + 3600).end == now
    run.add(f.RunClosed("failed"))
    ended = fold.period(fold.of(run.facts), "running", now)
    assert (ended.state, ended.end) == ("failed", start), "it ended while somebody looked"


# ── Groups ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["summary"], "summary"),
        (["fold-a", "fold-b"], "fold-*"),
        (["fold-07", "fold-08"], "fold-*"),
        (["lr=1-seed", "lr=2-seed"], "lr=*-seed"),
        (["aa", "aaa"], "aa*"),
        (["x", "y"], "*"),
    ],
)
def test_a_group_is_called_what_its_jobs_have_in_common(names: list[str], expected: str) -> None:
    assert label(names) == expected


def measured(
    run: History, peaks: Sequence[int | None], busy: float = 40.0
) -> dict[AttemptId, AttemptUse]:
    return {
        AttemptId(f"j{n}", 1): AttemptUse(AttemptId(f"j{n}", 1), peak, mean_gpu_utilization=busy)
        for n, peak in enumerate(peaks)
    }


def many(count: int) -> History:
    run = History(1).open().jobs(*(f"j{n}" for n in range(count)))
    for n in range(count):
        run.start(f"j{n}", 0).pass_(10).succeed(f"j{n}")
    return run


def test_how_many_fit_comes_from_the_largest_with_something_to_spare() -> None:
    run = many(4)
    history, _ = folded(run)
    uses = measured(run, [10 * GIB, 19 * GIB, 12 * GIB, None])
    (fit,) = fits(history.ledger, history.cards, uses)
    assert (fit.label, fit.fits, fit.peak, fit.of) == ("j*", 4, 19 * GIB, 3)
    assert fit.advised == 3, "4 x 19 of 76 GiB, and three at 40 % are as much as the card can do"
    (fit,) = fits(history.ledger, history.cards, measured(run, [20 * GIB] * 4, busy=95.0))
    assert (fit.fits, fit.advised) == (3, 1)
    (fit,) = fits(history.ledger, history.cards, measured(run, [90 * GIB] * 4))
    assert (fit.fits, fit.advised) == (1, 1)


def test_nothing_is_said_of_fewer_than_three_or_of_what_was_not_measured() -> None:
    history, _ = folded(many(2))
    assert fits(history.ledger, history.cards, measured(many(2), [GIB, GIB])) == []
    history, _ = folded(many(5))
    assert fits(history.ledger, history.cards, {}) == []
    assert [one.label for one in groups_of(history.ledger)] == ["j*"]


# ── Curves ──────────────────────────────────────────────────────────────────────────────────────


def test_a_curve_has_a_hole_where_nothing_was_measured() -> None:
    at = [0.0, 10.0, 20.0, 30.0, 500.0, 510.0]
    curve = curve_of([CardSample("GPU-0", t, 80 if t < 100 else 20, GIB) for t in at])
    assert curve.utilization == (80, 80, 80, 80, None, 20, 20)
    assert curve.at[4] == 40.0
    assert curve.peak == GIB
    assert curve.mean is not None
    assert 40 < curve.mean < 62, "the hole counts for four usual steps at most"
    assert curve_of([CardSample("GPU-0", 1.0)]).at == ()


# ── Ends of logs ────────────────────────────────────────────────────────────────────────────────


def test_ends_of_logs_are_bounded_failures_first_then_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = History(1).open().jobs("short", "long", "bad", "empty")
    for name, seconds in (("short", 1), ("long", 50), ("bad", 2), ("empty", 99)):
        run.start(name, 0).pass_(seconds)
        (run.fail if name == "bad" else run.succeed)(name)
    history, when = folded(run)
    asked: list[tuple[str, int]] = []

    def read(who: AttemptId, lines: int, window: int) -> list[str]:
        asked.append((who.job, window))
        return [] if who.job == "empty" else [who.job, "x" * 30]

    found = write.tails(history.attempts(), when, read)
    assert [name for name, _ in asked] == ["bad", "empty", "long", "short"]
    assert asked[0][1] == write.FAILED_WINDOW > asked[1][1]
    assert {who.job for who in found} == {"bad", "long", "short"}
    monkeypatch.setattr(write, "CHARACTERS", 70)
    assert {who.job for who in write.tails(history.attempts(), when, read)} == {"bad", "long"}
    monkeypatch.setattr(write, "LOGS", 1)
    assert {who.job for who in write.tails(history.attempts(), when, read)} == {"bad"}


# ── The text ────────────────────────────────────────────────────────────────────────────────────


def test_the_headline_says_at_once_what_came_out_and_why_cards_were_idle() -> None:
    run = (
        History(2).open().jobs("a", "b", "c").add(f.GpuChanged("GPU-1", "occupied", Quoted("ann")))
    )
    run.start("a", 0).pass_(90).succeed("a").start("b", 0).pass_(10).fail("b")
    run.skip("c", "needs b, which failed").add(f.RunClosed("failed", Quoted("b failed"), 1))
    shown = told(run)
    assert shown.headline == (
        "1 of 3 jobs succeeded, 1 failed, 1 skipped.",
        "The 2 cards had jobs 50 % of the time; for the rest: in others' use 50 %.",
        "What failed: exited with an error.",
    )
    assert shown.skipped == (("needs b, which failed", 1),)
    assert (shown.sign, shown.state) == ("✕", "failed")


def test_live_cut_off_and_simulated_runs_say_so() -> None:
    run = History(1, simulated=True).open().jobs("a", "b").start("a", 0).pass_(30)
    assert told(run, "running").headline[0] == (
        "0 of 2 jobs have succeeded so far, 1 running, 1 waiting."
    )
    assert "simulated card had jobs" in told(run, "running").headline[1]
    cut = told(run, "interrupted")
    assert cut.headline[0] == "0 of 2 jobs succeeded, 1 cut off, 1 not run."
    assert cut.headline[-1].startswith("The run was cut off")
    assert cut.simulated


def test_time_between_two_starts_is_not_held_against_the_cards() -> None:
    run = History(1).open().jobs("a", "b").start("a", 0).pass_(10).succeed("a")
    run.add(f.RunClosed("stopped")).pass_(5000).open().start("b", 0).pass_(10).succeed("b")
    shown = told(run.add(f.RunClosed("succeeded")), "succeeded")
    assert "had jobs 100 % of the time." in shown.headline[1]
    tiles = {tile.label: tile for tile in shown.tiles}
    assert tiles["Time"].note == "in 2 starts"


def test_failures_are_grouped_by_class_and_what_came_through_is_told_apart() -> None:
    run = History(1).open().jobs(*(f"j{n}" for n in range(30)), "again")
    for n in range(30):
        run.start(f"j{n}", 0).pass_(1).fail(f"j{n}")
    run.start("again", 0).end("again", Exited(1), "gpu_oom").add(
        f.JobDelayed("again", Quoted("later"))
    )
    run.start("again", 0).succeed("again")
    first, second = told(run).failures
    assert (first.kind, first.failed, len(first.shown), first.more) == ("exit", 30, 20, 10)
    assert (second.title, second.failed, second.mended) == ("out of GPU memory", 0, 1)
    assert "gpu_memory" in second.advice
    assert second.shown[0].mended


def test_the_slowest_are_compared_with_their_like() -> None:
    run = many(4).jobs("j9").start("j9", 0).pass_(40).succeed("j9")
    slow = told(run).slow
    assert (slow[0].name, slow[0].part, slow[0].times) == ("j9", 1.0, 4.0)
    assert len(slow) == 5


def test_names_that_would_hide_or_reorder_text_are_written_out() -> None:
    run = History(1).open(name="run\u202eeman").jobs("a\udc80").start("a\udc80", 0).pass_(1)
    run.fail("a\udc80")
    assert told(run).name == "run\\u202eeman"
    assert told(run).failures[0].shown[0].name == "a\\udc80"
    history, when = folded(run)
    drawn = drawing(ReportData(history, when), 0.0, "logs/")
    assert drawn["names"] == ["a\\udc80"]
    assert drawn["files"] == {0: "a%80"}
    assert drawn["start"] == START


def test_an_attempt_on_a_cluster_is_said_to_be_where_it_came() -> None:
    run = History(0).open(engine="slurm").jobs("card", "cpu", "refused")
    run.hand_over("card", "cpu", "refused").start_there("card", "n1", 0).start_there("cpu", "n2")
    cards = {uuid: record.gpu for uuid, record in run.ledger.gpus.items()}
    said = [cards_of(job.attempts[-1], cards) for job in run.ledger.jobs.values()]
    assert said == ["n1 GPU 0", "n2, no card", "–"]


def test_the_template_need_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, bucket: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(FileSystemBytecodeCache, "load_bytecode", lambda self, bucket: None)
    monkeypatch.setattr(FileSystemBytecodeCache, "dump_bytecode", full)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    render._template.cache_clear()
    assert render._template().name == "report.html.j2"


# ── Sharing ─────────────────────────────────────────────────────────────────────────────────────


def test_what_sharing_gained_is_the_time_of_the_jobs_over_that_of_the_cards() -> None:
    run = History(1).open().jobs("j0", "j1", "j2").start("j0", 0).pass_(30).succeed("j0")
    run.start("j1", 0).start("j2", 0).pass_(10).succeed("j1").pass_(20).succeed("j2")
    history, when = folded(run)
    assert sharing(history.ledger, history.cards, {}, when) == []
    for name in ("j1", "j2"):
        history.ledger.jobs[name].attempts[0].promised = 12 * GIB
    uses = measured(run, [9 * GIB] * 3)
    (one,) = sharing(history.ledger, history.cards, uses, when)
    assert (one.label, one.promised, one.peak, one.failures) == ("j*", 12 * GIB, 9 * GIB, 0)
    assert (one.job_seconds, one.card_seconds) == (70, 60)
    assert one.together == pytest.approx(7 / 6)
    assert one.fits == next(iter(history.cards.values())).memory // (12 * GIB)
    assert fits(history.ledger, history.cards, uses) == [], "they share already"
