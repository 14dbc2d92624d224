"""What a row says."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Exited, LadderStep
from gpulaunch.observe.top.board import Board
from gpulaunch.observe.top.rows import CardRows, FailedRows, Filter
from tests.views.history import History


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
