"""The text of the page."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Exited
from gpulaunch.observe.report.drawing import cards_of, drawing
from gpulaunch.observe.report.model import ReportData
from tests.report.support import folded, many, told
from tests.views.history import START, History

GIB = 1 << 30


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
