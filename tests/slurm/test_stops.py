"""Stops, with a controller or without one: withdrawn before it begins, or told on its node."""

from __future__ import annotations

from typing import cast

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import Cancelled, Exited, Interrupted
from gpulaunch.engines.slurm import withdrawals
from gpulaunch.engines.slurm.node_files import Reason, withdraw
from gpulaunch.engines.slurm.records import DiskRecords
from tests.slurm.histories import History
from tests.slurm.scenes import (
    attempt,
    busy,
    free,
    launcher_is_killed,
    outcomes,
    still_queued,
    stop,
    task_of,
)
from tests.slurm.world import Plan


@pytest.fixture(autouse=True)
def calm(history: History) -> None:
    """Nothing goes wrong but what a test has go wrong."""
    history.calm = True


def test_without_a_controller_what_waits_is_withdrawn_and_what_runs_is_told_on_its_node(
    history: History,
) -> None:
    busy(history, "cancelled", "goes on")
    history.down_until = history.loop.now + 600.0
    stop(history, "a0")
    stop(history, "cancelled", "cancelled")
    history.until(lambda: len(history.told) == 2)
    assert outcomes(history) == {
        "a0": Interrupted(Quoted("a test"), Exited(143)),
        "cancelled": Cancelled(),
    }
    assert history.loop.now < history.down_until
    free(history)
    history.finish()
    assert history.starts("cancelled") == 0
    assert outcomes(history)["goes on"] == Exited(0)


def test_one_whose_handing_over_is_in_doubt_is_withdrawn(history: History) -> None:
    history.add("first", Plan(1.0))
    history.until(lambda: history.over)
    history.down_until = history.loop.now + 300.0
    history.add("j", Plan(1.0))
    history.passes(1.0)
    stop(history, "j")
    history.until(lambda: history.over)
    assert outcomes(history)["j"] == Interrupted(Quoted("a test"))
    assert history.loop.now < history.down_until
    history.finish()
    assert history.starts("j") == 0


def test_one_that_slurm_had_though_no_launcher_knew_is_taken_out_of_its_queue(
    history: History,
) -> None:
    busy(history, "j")
    history.run.batch_id(history.cluster.waiting_for("j").batch).unlink()
    history.restart()
    stop(history, "j")
    history.until(lambda: bool(history.told))
    assert outcomes(history) == {"j": Interrupted(Quoted("a test"))}
    history.passes(20.0)
    assert len(still_queued(history)) == 3
    free(history)
    history.finish()


def test_what_an_earlier_launcher_withdrew_has_ended_so_and_is_taken_out_of_the_queue(
    history: History,
) -> None:
    busy(history, "one", "two", "told")
    for name, reason in (("one", "cancelled"), ("two", "interrupted"), ("told", "interrupted")):
        withdraw([history.run.start(attempt(name))], cast(Reason, reason), "a test")
        history.wanted[name].stopped = True
    history.open.remove(attempt("told"))  # its end is in the journal
    history.restart()
    history.until(lambda: len(history.told) == 2)
    assert outcomes(history) == {"one": Cancelled(), "two": Interrupted(Quoted("a test"))}
    history.passes(20.0)
    assert len(still_queued(history)) == 3
    history.wanted["told"].outcome = "told"
    free(history)
    history.finish()


def test_one_that_begins_after_it_was_withdrawn_ends_at_once_and_runs_nothing(
    history: History,
) -> None:
    history.calm = False
    busy(history, "j")
    withdraw([history.run.start(attempt("j"))], "interrupted", "a test")
    history.wanted["j"].stopped = True
    launcher_is_killed(history)
    free(history)
    while still_queued(history):
        history.loop.turn()
    history.restart()
    history.finish()
    assert [name for _, name in history.cluster.truth.useless] == ["j.1"]
    assert outcomes(history)["j"] == Interrupted(Quoted("a test"))


def test_where_nothing_can_be_withdrawn_slurm_itself_ends_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(history, "j")
    monkeypatch.setattr(DiskRecords, "claim", lambda self, groups: (frozenset(), frozenset()))
    stop(history, "j")
    history.until(lambda: bool(history.told))
    assert outcomes(history) == {"j": Interrupted(Quoted("a test"))}
    assert len(still_queued(history)) == 3
    free(history)
    history.finish()


def test_what_neither_slurm_nor_its_node_tells_is_left_after_a_second_ctrl_c(
    history: History,
) -> None:
    history.calm = False
    busy(history, "one", "two")
    history.down_until = history.loop.now + 5000.0
    history.cluster.silences("a0")
    history.cluster.silences("a1")
    history.stop()
    history.until(lambda: len(history.told) == 3)  # what waited, and what its node heard
    history.passes(500.0)
    assert not history.out_of_reach
    history.stop(now=True)
    asked = history.loop.now
    history.until(lambda: bool(history.out_of_reach))
    assert history.loop.now - asked >= withdrawals.OUT_OF_REACH_TIMEOUT
    (why, *_) = history.out_of_reach
    assert why == "2 attempts are still in Slurm's hands: gpulaunch resume looks after them"
    silent = "Slurm's controller does not answer: "
    first, again = (said for said in history.warned if said.startswith(silent))
    assert "2 attempts are withdrawn: what it still starts ends at once (scancel " in first
    assert "3 attempts are told through the run directory, within a minute" in first
    assert again.endswith("what has not ended in 30 s is left in its hands")
    history.restart()
    for name in ("a0.1", "a1.1"):
        history.cluster.fail_node(task_of(history, name))
    history.finish()
