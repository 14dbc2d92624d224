"""The past, moment by moment."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Exited
from gpulaunch.observe.top.board import Board
from gpulaunch.observe.top.board import Playback as Past
from tests.views.history import History


def told() -> History:
    run = History(2).open().pass_(0.1).jobs("a", "b").pass_(0.1).jobs("c").pass_(1)
    run.start("a", 0).start("b", 1).pass_(10).succeed("a").pass_(30)
    run.end("b", Exited(1), "exit").add(f.JobSettled("b", "failed", Quoted("exited with status 1")))
    run.pass_(60).start("c", 0).pass_(100).succeed("c")
    return run.add(f.RunClosed("failed", Quoted("b did not succeed"), 1))


def test_every_moment_is_the_state_that_was() -> None:
    run = told()
    past = Past(run.facts)
    assert past.board.ledger == run.ledger
    seen = []
    while past.step > 1:
        board = past.go(-1)
        alone = Board()
        for fact, at in run.facts:
            if at.mono <= board.now.mono:
                alone.see(fact, at)
        assert board.ledger == alone.ledger
        assert board.queue() == alone.queue()
        seen.append(past.step)
    assert seen == [6, 5, 4, 3, 2, 1]
    assert past.go(-1).ledger.counts["waiting"] == 0
    assert [len(past.go(1).ledger.open_attempts()) for _ in range(6)] == [0, 2, 1, 0, 1, 0]
    assert past.go(1).ledger == run.ledger


def test_reading_the_job_file_is_one_moment() -> None:
    run = History(1).open()
    for number in range(100):
        run.pass_(0.01).jobs(f"j{number}")
    assert Past(run.facts).steps == 2


def test_a_long_step_goes_over_a_twentieth_of_the_time_and_always_moves() -> None:
    past = Past(told().facts)
    assert past.leap(-1).ledger.counts["running"] == 1
    assert past.step == 6
    assert past.leap(-19).now.mono < 1003
    for _ in range(25):
        past.leap(1)
    assert past.step == past.steps


def test_a_journal_without_a_fact_has_no_past() -> None:
    past = Past([])
    assert (past.step, past.steps) == (0, 0)
    assert past.go(-1) is past.go(1) is past.leap(-1)


def test_a_job_that_waits_again_is_back_at_its_place_in_the_queue() -> None:
    run = History(1).open().jobs("a", "b", "c").start("a", 0).fail("a")
    board = Board()
    for fact, at in run.facts:
        board.see(fact, at)
    assert board.queue() == ["b", "c"]
    assert list(board.failed) == ["a"]
    board.see(f.JobRequeued("a", Quoted("retried by a person")), run.now)
    assert board.queue() == ["a", "b", "c"]
    assert not board.failed
    assert not board.ended


def test_times_of_an_earlier_run_count_before_anything_has_ended() -> None:
    run = History(1).open().jobs("a", "b", "c").start("a", 0).pass_(60)
    said = []
    for earlier in ({}, dict.fromkeys("abc", 300.0)):
        board = Board(earlier=earlier)
        board.state = "running"
        for fact, at in run.facts:
            board.see(fact, at)
        board.at(run.now)
        said.append(board.to_go())
    assert said == ["", "about 14 min to go"]
