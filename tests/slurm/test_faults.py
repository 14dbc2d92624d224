"""Slurm's programs fail late, lose answers, give old, empty, cut and foreign ones, or none.

Whatever they say: no job twice, none ended or called lost on one word, nothing left in the queue.
GPULAUNCH_TEST_HISTORIES says how many random histories are played (60).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch.base.wording import cause
from gpulaunch.core.causes import ByCluster
from gpulaunch.core.model import AttemptId, Cancelled, Exited, Interrupted, Lost, NotStarted
from gpulaunch.engines.slurm.commands import _End
from tests.slurm.histories import FINE, KINDS, Faults, History, fine, played, said
from tests.slurm.programs import Fault
from tests.slurm.world import Plan

HISTORIES = int(os.environ.get("GPULAUNCH_TEST_HISTORIES", "60"))
GROUPS = 10
EMPTY = said(0, "")
NO_ROWS = replace(FINE, change=EMPTY)


def only(program: str, fault: Fault, first: str = "") -> Faults:
    """Each call of the program so; of those alone whose first word is that, where it is given."""

    def faults(called: str, arguments: Sequence[str]) -> Fault:
        mine = called == program and (not first or arguments[0] == first)
        return fault if mine else FINE

    return faults


def handed_over(history: History, name: str) -> Callable[[], bool]:
    return lambda: any(name in task.title for task in history.cluster.tasks)


def running(history: History, count: int = 1) -> Callable[[], bool]:
    return lambda: len(history.cluster.truth.alive) == count


# ── sbatch ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "kind",
    [
        "fails late",
        "fails late, as if for a dependency",
        "loses its answer",
        "is killed late",
        "is too slow",
    ],
)
def test_a_submission_that_fails_after_it_was_made_is_followed_and_not_made_again(
    history: History, kind: str
) -> None:
    seeds = iter(range(100))

    def faults(program: str, arguments: Sequence[str]) -> Fault:
        return KINDS[kind](random.Random(next(seeds))) if program == "sbatch" else FINE

    history.faults = faults
    for number in range(3):
        history.add(f"j{number}", Plan(20.0, number))
    history.until(lambda: history.over)
    assert [history.starts(f"j{number}") for number in range(3)] == [1, 1, 1]
    assert {ended.end.outcome for ended in history.told} == {Exited(0), Exited(1), Exited(2)}
    history.finish()


def test_a_failure_in_words_that_are_not_slurms_counts_when_nothing_has_come_of_it_twice(
    history: History,
) -> None:
    history.faults = only("sbatch", Fault(None, 0.1, said(1, "no ledger\n")))
    history.add("j", Plan(5.0))
    history.until(lambda: bool(history.told))
    assert history.told[0].end.outcome == NotStarted("sbatch: no ledger")
    submissions = [call for call in history.programs.calls if call[1] == "sbatch"]
    assert len(submissions) <= 4  # the probe's, and twice
    assert (history.run.starts / "j.1").exists()  # withdrawn: should it come, it begins nothing
    history.faults = fine
    history.finish()


def test_what_was_taken_back_while_it_was_in_doubt_may_be_refused_after_that(
    history: History,
) -> None:
    history.add("first", Plan(5.0))
    history.until(lambda: history.over)
    history.faults = only("sbatch", Fault(None, 0.1, said(1, "no ledger\n")))
    history.add("j", Plan(5.0))
    history.until(lambda: history.engine.why(AttemptId("j", 1)) == "is being handed to Slurm")
    history.passes(1.0)
    history.cancel("j")
    history.passes(60.0)
    assert [ended.end.outcome for ended in history.told] == [Exited(0), Cancelled()]
    history.finish()


def test_what_is_refused_and_comes_all_the_same_begins_nothing_and_is_taken_out(
    history: History,
) -> None:
    """The words are Slurm's own, the controller has it nevertheless, a minute late."""
    no = said(1, "sbatch: error: Batch job submission failed: Unspecified error\n")
    history.add("first", Plan(5.0))
    history.until(lambda: history.over)
    for number in range(3):  # all cards are taken: it would wait
        history.add(f"busy{number}", Plan(300.0))
    history.until(running(history, 3))
    history.faults = only("sbatch", Fault(30.0, 0.1, no))
    history.add("j", Plan(5.0))
    history.until(lambda: len(history.told) > 1)
    assert isinstance(history.told[1].end.outcome, NotStarted)
    history.faults = fine
    history.until(handed_over(history, ":j"))
    history.finish()
    assert "j.1" not in history.cluster.truth.began
    assert history.starts("j") == 1


def test_of_one_submission_that_is_in_doubt_there_are_few_tries(history: History) -> None:
    """Neither is its answer heard, nor does squeue show it."""
    lost = replace(FINE, acts=None, change=EMPTY)
    history.faults = lambda program, words: {"sbatch": lost, "squeue": NO_ROWS}.get(program, FINE)
    history.add("j", Plan(5.0))
    history.passes(1800.0)
    submissions = [at for at, program, _ in history.programs.calls if program == "sbatch"]
    assert len(submissions) < 20
    history.faults = fine
    history.finish()


def test_what_is_left_of_a_cut_number_is_not_taken_for_one(history: History) -> None:
    """Else what needs the job would follow another, or none."""
    cut = replace(FINE, change=lambda end: replace(end, out=end.out[:2]))
    history.faults = only("sbatch", cut)
    history.add("a", Plan(20.0, 3))
    history.add("b", Plan(5.0), needs="a")
    history.until(lambda: history.over)
    assert [history.starts("a"), history.starts("b")] == [1, 0]
    history.faults = fine
    history.finish()


def test_that_nothing_comes_of_what_is_handed_over_is_said(history: History) -> None:
    lost = Fault(None, 0.1, EMPTY)
    history.faults = only("sbatch", lost)
    history.add("j", Plan(5.0))
    history.until(lambda: bool(history.warned))
    probe = "the probe of the run directory goes to Slurm again: sbatch: exit status 0"
    assert history.warned == [probe]
    history.faults = lambda program, words: (
        lost if program == "sbatch" and words[-1] != "probe" else FINE
    )
    history.until(lambda: len(history.warned) > 1)
    nothing = "its queue has nothing of it, so it is handed over again"
    given = f"Slurm is given no more for now: sbatch: exit status 0; {nothing}"
    assert history.warned == [probe, given]
    history.faults = fine
    history.finish()
    assert history.warned == [probe, given]


# ── squeue ──────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_queue_ends_nothing_that_runs_or_waits(history: History) -> None:
    for number in range(6):
        history.add(f"j{number}", Plan(200.0, number % 2))
    history.until(running(history, 3))
    history.faults = only("squeue", NO_ROWS)
    history.until(lambda: len(history.told) == 6)
    assert not any(isinstance(ended.end.outcome, Lost | Interrupted) for ended in history.told)
    assert history.cluster.submissions == 2  # the probe's, and one array
    history.finish()


@pytest.mark.parametrize("age", [10.0, 30.0, 120.0])
def test_an_old_answer_kills_nothing_that_has_just_started(history: History, age: float) -> None:
    history.faults = only("squeue", replace(FINE, stale=age))
    for number in range(9):
        history.add(f"j{number}", Plan(40.0))
    history.until(lambda: history.over)
    assert [ended.end.outcome for ended in history.told] == [Exited(0)] * 9
    history.finish()


def test_what_an_answer_leaves_out_was_not_cancelled(history: History) -> None:
    for number in range(9):
        history.add(f"j{number}", Plan(60.0))
    history.until(running(history, 3))
    halves = replace(FINE, change=lambda end: replace(end, out=end.out[: len(end.out) // 3]))
    history.faults = only("squeue", halves)
    history.until(lambda: history.over)
    assert [ended.end.outcome for ended in history.told] == [Exited(0)] * 9
    history.finish()


def test_while_its_node_gives_signs_of_life_an_attempt_is_not_lost_whatever_slurm_says(
    history: History,
) -> None:
    """All of its programs agree that there is no such job."""
    history.add("j", Plan(900.0, 4))
    history.until(running(history))
    none = said(1, "slurm_load_jobs error: Invalid job id specified\n")
    history.faults = lambda program, words: {
        "squeue": NO_ROWS,
        "scontrol": replace(FINE, change=none),
    }.get(program, FINE)
    history.until(lambda: history.over)
    assert [ended.end.outcome for ended in history.told] == [Exited(4)]
    history.finish()


def test_what_was_killed_with_its_node_is_lost_and_goes_again(history: History) -> None:
    history.add("j", Plan(100.0))
    history.until(running(history))
    (task,) = (task for task in history.cluster.tasks if task.attempt == "j.1")
    history.cluster.fail_node(task)
    history.until(lambda: history.over)
    assert [type(ended.end.outcome) for ended in history.told] == [Lost, Exited]
    assert history.starts("j") == 2
    history.finish()


def test_what_slurm_has_forgotten_is_lost_once_both_witnesses_and_its_node_are_silent(
    history: History,
) -> None:
    history.add("j", Plan(100.0))
    history.until(running(history))
    (task,) = (task for task in history.cluster.tasks if task.attempt == "j.1")
    history.cluster.forget(task)
    began = history.loop.now
    history.until(lambda: bool(history.told))
    assert isinstance(history.told[0].end.outcome, Lost)
    assert 60.0 <= history.loop.now - began < 120.0
    history.finish()


def test_what_a_person_cancels_while_it_waits_was_cancelled(history: History) -> None:
    for number in range(6):
        history.add(f"j{number}", Plan(60.0))
    history.until(running(history, 3))
    history.wanted["j5"].stopped = True
    (task,) = (task for task in history.cluster.tasks if task.index == 5)
    history.cluster.cancel([str(task)])
    history.until(lambda: bool(history.told))
    assert history.told[0].attempt.job == "j5"
    assert history.told[0].end.outcome == Cancelled(by=ByCluster("cancelled"))
    history.finish()


def test_few_are_asked_of_and_only_where_something_would_be_ended(history: History) -> None:
    for number in range(9):
        history.add(f"j{number}", Plan(60.0, number % 2))
    history.until(lambda: history.over)
    assert not [call for call in history.programs.calls if "job" in call[2]]


# ── A full disk ─────────────────────────────────────────────────────────────────────────────────


def test_what_found_the_run_s_disk_full_is_said_to_be_over_and_goes_again(history: History) -> None:
    history.cluster.full.add("a.1")
    history.add("a", Plan(5.0, 3))
    history.until(lambda: history.warned)
    (said,) = history.warned
    assert said == "is over on n1, where the run's disk is full: a record of its end is awaited"
    assert not history.told
    history.until(lambda: history.over)
    first, second = (ended.end.outcome for ended in history.told)
    assert isinstance(first, Interrupted)
    assert "the run directory's disk is full" in cause(first.by)
    assert second == Exited(3)
    assert history.warned == [said]
    history.finish()


# ── Memory ──────────────────────────────────────────────────────────────────────────────────────


def test_a_kill_for_memory_that_a_jobs_own_status_hides_is_said_and_so_is_what_it_costs(
    history: History,
) -> None:
    history.cluster.oom.add("a")
    history.add("a", Plan(20.0))
    history.add("b", Plan(5.0), needs="a")
    history.until(lambda: history.over)
    outcomes = [(str(ended.attempt), ended.end.outcome) for ended in history.told]
    cancelled = Interrupted(ByCluster("need_failed"))
    assert outcomes == [("a.1", Exited(0)), ("b.1", cancelled), ("b.2", Exited(0))]
    hidden, again = history.warned
    assert hidden.startswith("a process of a.1 was killed for its memory (Slurm: OUT_OF_MEMORY)")
    assert "raise memory:" in hidden
    assert again == (
        "Slurm cancelled b.1, which takes a.1 for failed (OUT_OF_MEMORY); it is handed over again"
    )
    history.finish()


def test_a_hidden_kill_for_memory_is_said_with_its_end_before_slurm_says_so(
    history: History,
) -> None:
    """Of the last job of a run nothing is heard after that."""
    history.cluster.oom.add("a")
    history.cluster.counted.add("a")
    history.add("a", Plan(20.0))
    history.until(lambda: history.told)
    (said,) = history.warned
    assert said.startswith("a process of a.1 was killed for its memory (")
    history.until(lambda: history.over)
    assert history.warned == [said]
    history.finish()


# ── Any of them, at random ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_histories(tmp_path: Path, group: int) -> None:
    for seed in range(group, HISTORIES, GROUPS):
        played(tmp_path / str(seed), seed)


def test_a_greeting_around_an_answer_changes_nothing(history: History) -> None:
    def greeted(end: _End) -> _End:
        return replace(end, out=f"Welcome\n{end.out}\nYou have mail\n", said="note\n" + end.said)

    history.faults = lambda program, words: replace(FINE, change=greeted)
    history.add("j", Plan(5.0, 3))
    history.until(lambda: history.over)
    assert [ended.end.outcome for ended in history.told] == [Exited(3)]
