"""The lanes of the cards, and the bars on them."""

from __future__ import annotations

from itertools import pairwise

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Cancelled, Interrupted, Lost
from gpulaunch.observe.report import fold
from gpulaunch.observe.report.drawing import drawing, lanes
from gpulaunch.observe.report.model import ReportData
from tests.report.support import folded, told
from tests.views.history import History


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
