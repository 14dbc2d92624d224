"""What Slurm does by itself: it requeues, preempts, forgets, and takes for dead what lives.

Whatever it is, each job is run to its end, no attempt is begun twice, and nothing waits in vain.
"""

from __future__ import annotations

import pytest

from gpulaunch.core.causes import ByCluster
from gpulaunch.core.model import Exited, Interrupted
from gpulaunch.engines.slurm.attempt import REQUEUED
from gpulaunch.engines.slurm.node_files import write_stop
from gpulaunch.journal.ends import text_of
from tests.slurm.histories import History
from tests.slurm.scenes import (
    ENDLESS,
    attempt,
    begun,
    ends,
    good,
    launcher_is_killed,
    outcomes,
    queued,
    still_queued,
    task_of,
)
from tests.slurm.world import Plan

AGAIN = Interrupted(REQUEUED, Exited(143))


@pytest.fixture(autouse=True)
def slowly(history: History) -> None:
    """By itself, Slurm begins what it requeued again in two minutes."""
    history.cluster.anew_after = 120.0


def two_run(history: History) -> None:
    """And a third waits for one of them."""
    history.add("a", Plan(ENDLESS))
    history.add("b", Plan(ENDLESS))
    history.add("then", Plan(1.0), "a")
    history.until(begun(history, 2))
    history.passes(20.0)


def all_end(history: History) -> None:
    history.cluster.ends("a", "b")
    history.finish()
    assert not still_queued(history)
    assert outcomes(history) == good("a", "b", "then")


@pytest.mark.parametrize("held", [False, True])
def test_what_a_person_requeues_runs_again_at_once(history: History, held: bool) -> None:
    """Slurm itself would wait two minutes, or for ever."""
    two_run(history)
    history.cluster.requeue(task_of(history, "a.1"), held=held)
    history.until(lambda: "a.2" in history.cluster.truth.alive, 60.0)
    assert ends(history)["a.1"] == AGAIN
    assert "b.1" in history.cluster.truth.alive
    all_end(history)
    assert not history.cluster.truth.useless


def test_what_is_preempted_runs_again_and_nothing_else_is_touched(history: History) -> None:
    two_run(history)
    history.cluster.requeue(task_of(history, "a.1"), preempted=True)
    history.until(lambda: "a.2" in history.cluster.truth.alive, 60.0)
    assert ends(history)["a.1"] == Interrupted(ByCluster("preempted"), Exited(143))
    all_end(history)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_is_begun_anew_while_no_launcher_lives_finds_its_claim_taken(
    history: History, recorded: bool
) -> None:
    two_run(history)
    launcher_is_killed(history)
    history.cluster.requeue(task_of(history, "a.1"))
    while not history.cluster.truth.useless:
        history.loop.turn()
    if not recorded:  # as if it had been killed at once
        history.run.end(attempt("a")).unlink()
    history.restart()
    history.until(lambda: "a.2" in history.cluster.truth.alive)
    unrecorded = Interrupted(ByCluster("requeued", "n1"))
    assert ends(history)["a.1"] == (AGAIN if recorded else unrecorded)
    assert [name for _, name in history.cluster.truth.useless] == ["a.1"]
    all_end(history)


def test_what_a_launcher_took_out_of_the_queue_before_it_was_killed_runs_again(
    history: History,
) -> None:
    """A controller that forgot the start says no more than that somebody cancelled it."""
    two_run(history)
    launcher_is_killed(history)
    write_stop(history.run.stop(attempt("a")), "interrupted", text_of(REQUEUED))
    history.cluster.cancels([str(task_of(history, "a.1"))])
    history.restart()
    history.until(lambda: "a.2" in history.cluster.truth.alive)
    assert ends(history)["a.1"] == AGAIN
    all_end(history)


def test_a_list_that_the_controller_forgot_before_it_began_is_handed_over_again(
    history: History,
) -> None:
    """It is no failure of so many jobs in a row."""
    history.add("first", Plan(1.0))
    history.until(lambda: history.over)
    history.cluster.keeps = lambda task: "PartitionDown"
    history.cluster.save()
    names = [f"j{number}" for number in range(12)]
    for name in names:
        history.add(name, Plan(1.0))
    history.until(queued(history, 13))
    history.cluster.kill()
    history.until(lambda: len(history.told) == 13)
    forgotten = Interrupted(ByCluster("forgotten"))
    assert {ends(history)[f"{name}.1"] for name in names} == {forgotten}
    history.cluster.keeps = lambda task: ""
    history.finish()
    assert outcomes(history) == good("first", *names)
    assert {history.starts(name) for name in names} == {1}


def test_what_lives_on_where_slurm_takes_it_for_dead_is_ended_before_it_runs_again(
    history: History,
) -> None:
    """Its node's daemon is gone, and the node declared dead: only the shared disk reaches it."""
    two_run(history)
    history.cluster.takes_for_dead(task_of(history, "a.1"))
    history.until(lambda: "a.2" in history.cluster.truth.alive, 120.0)
    assert ends(history)["a.1"] == AGAIN
    all_end(history)
