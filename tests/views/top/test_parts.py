from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Exited, LadderStep
from gpulaunch.views.top import log as logs
from gpulaunch.views.top.board import Board
from gpulaunch.views.top.draw import bar, fit, sparkline
from gpulaunch.views.top.history import Playback as Past
from gpulaunch.views.top.log import LogTail
from gpulaunch.views.top.rows import CardRows, FailedRows, Filter
from tests.views.history import History

# ── Drawing ─────────────────────────────────────────────────────────────────────────────────────


def test_a_bar_is_drawn_to_an_eighth_of_a_column() -> None:
    assert bar(0.0, 4) == "    "
    assert bar(1 / 32, 4) == "▏   "
    assert bar(0.5, 4) == "██  "
    assert bar(1.0, 4) == "████"
    assert bar(7.5, 4) == "████"
    assert bar(-1.0, 4) == "    "


def test_a_curve_has_a_column_per_span_and_blanks_where_nothing_was_measured() -> None:
    samples = [(0.0, 0.0), (9.0, 0.5), (12.0, 0.9), (19.0, 0.1), (35.0, 1.0), (25.0, None)]
    assert sparkline(samples, 0.0, 40.0, 4) == "▃▅ █"
    assert sparkline([], 0.0, 40.0, 4) == "    "
    assert sparkline([(40.0, 1.0), (41.0, 0.0), (-1.0, 0.0)], 0.0, 40.0, 4) == "   █"


@given(st.text(max_size=30), st.integers(0, 20))
def test_cut_text_is_exactly_as_wide_as_asked(text: str, width: int) -> None:
    from gpulaunch.digest.words import visible

    assert cell_len(fit(visible(text), width)) == width


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────


def test_a_card_s_and_a_failure_s_row_have_the_step_of_a_ladder() -> None:
    step = LadderStep(2, 3, {"batch": "16"})
    run = History(2).open().jobs("a", "b").start("a", 0, step=step).start("b", 1, step=step)
    run.pass_(5).end("b", Exited(1), "gpu_oom")
    run.add(f.JobSettled("b", "failed", Quoted("exited with status 1")))
    board = Board()
    for fact, at in run.facts:
        board.see(fact, at)
    cards, failed = CardRows(board, Filter()), FailedRows(board, Filter())
    assert "step 2 of 3 (batch=16)" in cards.lines(0, 100)[0].plain
    assert "step 2 of 3 (batch=16)" in failed.lines(0, 100)[0].plain


# ── The past ────────────────────────────────────────────────────────────────────────────────────


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


# ── Logs ────────────────────────────────────────────────────────────────────────────────────────


def test_a_log_that_is_not_there_yet_is_read_once_it_is(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "a.1.log")
    assert not tail.look()
    assert tail.absent
    (tmp_path / "a.1.log").write_bytes("näme\n".encode()[:2])
    assert tail.look()
    with (tmp_path / "a.1.log").open("ab") as file:
        file.write("näme\n".encode()[2:] + b"half")
    assert tail.look()
    assert (list(tail.lines), tail.rest, tail.absent) == (["näme"], "half", False)
    assert not tail.look()
    tail.close()


def test_of_a_long_log_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BEGIN", 100)
    path = tmp_path / "a.1.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    tail = LogTail(path)
    tail.look()
    assert tail.cut
    assert tail.lines[-1] == "line 999"
    assert len(tail.lines) < 20
    path.unlink()
    assert not tail.look()
    tail.close()
