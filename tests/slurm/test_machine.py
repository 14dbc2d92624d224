"""What is handed over, taken up again, held, ended and lost: the engine on a pretend cluster."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Launch, StopAttempt, StopReason
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    Exited,
    Interrupted,
    Job,
    Lost,
    Outcome,
)
from gpulaunch.engines.slurm import launch_files, step
from gpulaunch.engines.slurm.records import DiskRecords
from gpulaunch.process.nodeside import Reason, withdraw
from tests.slurm.histories import History, Wanted
from tests.slurm.world import Plan

ENDLESS = 1e6


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "run")
    made.calm = True
    yield made
    made.engine.close()


def attempt(name: str) -> AttemptId:
    return AttemptId(name, 1)


def outcomes(history: History) -> dict[str, Outcome]:
    return {ended.attempt.job: ended.end.outcome for ended in history.told}


def good(*names: str) -> dict[str, Outcome]:
    return dict.fromkeys(names, Exited(0))


def submissions(history: History) -> int:
    return len(list(history.run.batch_lists.glob("*.id")))


def begun(history: History, count: int) -> Callable[[], bool]:
    return lambda: len(history.cluster.truth.alive) == count


def queued(history: History, count: int) -> Callable[[], bool]:
    return lambda: len(history.queued) >= count


def busy(history: History, *waiting: str) -> None:
    """Three endless jobs have the cards; behind them these wait."""
    for number in range(3):
        history.add(f"a{number}", Plan(ENDLESS))
    history.until(begun(history, 3))
    for name in waiting:
        history.add(name, Plan(1.0))
    history.until(queued(history, 3 + len(waiting)))


def free(history: History) -> None:
    history.cluster.ends("a0", "a1", "a2")


def first_jobs(history: History, *followed: int, bad: int = -1) -> None:
    """Six endless jobs; behind those which are told, another each. `bad` is to fail."""
    for number in range(6):
        history.add(f"a{number}", Plan(ENDLESS, 3 if number == bad else 0))
    for number in followed:
        history.add(f"b{number}", Plan(1.0), f"a{number}")
    history.until(queued(history, 6 + len(followed)))


def all_end(history: History) -> None:
    history.cluster.ends(*(f"a{number}" for number in range(6)))


# ── Handing over ────────────────────────────────────────────────────────────────────────────────


def test_what_waits_says_for_what_and_what_runs_on_which_card(history: History) -> None:
    busy(history, "waits")
    history.until(lambda: history.engine.why(attempt("waits")).endswith(" (Resources)"))
    assert {event.gpus[0].node for _, event in history.begun} == {"n1"}
    free(history)
    history.finish()


def test_more_than_an_array_may_hold_goes_as_several(history: History) -> None:
    history.cluster.largest = 4
    for number in range(9):
        history.add(f"j{number}", Plan(1.0, number % 2))
    history.finish()
    assert submissions(history) == 3


def test_a_queue_that_is_full_is_waited_for(history: History) -> None:
    history.cluster.room, history.cluster.remembers = 4, 2.0
    for number in range(8):
        history.add(f"j{number}", Plan(1.0, number))
    history.finish()
    assert outcomes(history) == {f"j{number}": Exited(number) for number in range(8)}


def test_of_items_that_are_too_many_at_once_some_follow_later(history: History) -> None:
    history.cluster.room, history.cluster.remembers = 10, 2.0
    for number in range(6):
        history.add(f"a{number}", Plan(20.0))
        history.add(f"b{number}", Plan(1.0), f"a{number}")
    history.finish()
    assert all(history.in_order(f"b{number}") for number in range(6))


def test_what_is_scarce_here_is_waited_for_and_fails_no_job(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = launch_files.write
    tries = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "tickets/a.1")] * 3

    def until_there_is_room(*given: Any) -> None:
        if tries:
            raise tries.pop()
        write(*given)

    monkeypatch.setattr(launch_files, "write", until_there_is_room)
    history.add("stopped", Plan(1.0))
    history.add("waits", Plan(1.0))
    full = f"{os.strerror(errno.ENOSPC)}: tickets/a.1"
    assert history.engine.why(attempt("waits")) == full
    history.cancel("stopped")
    history.finish()
    assert outcomes(history) == {"stopped": Cancelled(), "waits": Exited(0)}
    assert not tries
    assert history.warned == [f"Slurm is given no more for now: {full}"]


def test_what_another_is_to_make_is_waited_for(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = launch_files.write

    def needs_a(launch: Launch, *given: Any) -> None:
        if launch.attempt.job == "b" and not outcomes(history):
            raise launch_files.NotPreparedError("its directory is not there")
        write(launch, *given)

    monkeypatch.setattr(launch_files, "write", needs_a)
    history.add("a", Plan(5.0))
    history.add("b", Plan(1.0), "a")
    assert history.engine.why(attempt("b")) == "waits for what it needs"
    history.finish()
    assert outcomes(history) == good("a", "b")


def test_of_two_arrays_with_a_token_one_follows_the_other(history: History) -> None:
    history.cluster.largest = 4
    names = [f"j{number}" for number in range(6)]
    for name in names:
        job = Job(name, "true", demand=Demand(gpus=0))
        history.wanted[name] = Wanted(job, number=1)
        history.open.add(attempt(name))
        history.behind[attempt(name)] = ()
        with history.loop.clock():
            history.engine.carry_out(Launch(attempt(name), job, (), share=("msa", 2)))
    most = 0
    while history.open:
        history.turn()
        most = max(most, len(history.cluster.truth.alive))
    assert (most, submissions(history)) == (2, 2)


# ── Ending ──────────────────────────────────────────────────────────────────────────────────────


def test_one_that_waits_is_cancelled_and_its_siblings_are_not(history: History) -> None:
    for number in range(6):
        history.add(f"j{number}", Plan(30.0))
    history.until(begun(history, 3))
    history.cancel("j5")
    history.finish()
    assert outcomes(history) == {**good(*(f"j{n}" for n in range(5))), "j5": Cancelled()}
    assert history.starts("j5") == 0


def test_one_that_is_stopped_while_it_is_handed_over_never_runs_on(history: History) -> None:
    for turns in range(14):
        history.add(f"j{turns}", Plan(ENDLESS))
        for _ in range(turns):
            history.turn()
        history.cancel(f"j{turns}")
        history.until(lambda: history.over)
    history.finish()
    assert {type(outcome) for outcome in outcomes(history).values()} == {Cancelled}


# ── Stops, with a controller or without one ─────────────────────────────────────────────────────


def stop(history: History, name: str, reason: StopReason = "interrupted") -> None:
    history.wanted[name].stopped = True
    with history.loop.clock():
        history.engine.carry_out(StopAttempt(attempt(name), reason, Quoted("a test")))


def still_queued(history: History) -> set[str]:
    return {str(task) for task in history.cluster.tasks if not task.over}


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
    history.loop.drop("slurm:", "answer ")  # its launcher is killed
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


# ── A paused run ────────────────────────────────────────────────────────────────────────────────


def test_what_was_held_when_its_launcher_died_is_released_by_the_next(history: History) -> None:
    busy(history, "one", "two")
    history.pause(True)
    history.passes(30.0)
    assert {history.cluster.waiting_for(name).reason for name in ("one", "two")} == {"JobHeldUser"}
    history.restart()
    history.until(lambda: not history.run.held.exists())
    free(history)
    history.finish()
    assert outcomes(history) == good("one", "two", "a0", "a1", "a2")


def test_a_pause_that_is_over_at_once_holds_nothing(history: History) -> None:
    busy(history, "one", "two")
    for on in (True, False, True, False):
        history.pause(on)
    free(history)
    history.finish()
    assert not [call for call in history.programs.calls if "hold" in call[2]]


def test_what_a_person_held_in_slurm_stays_held_when_the_run_goes_on(history: History) -> None:
    busy(history, "theirs", "ours")
    history.cluster.holds(history.cluster.waiting_for("theirs"))
    history.until(lambda: "JobHeld" in history.engine.why(attempt("theirs")))
    history.pause(True)
    history.passes(30.0)
    history.pause(False)
    free(history)
    history.until(lambda: len(history.told) == 4)
    history.passes(100.0)
    assert outcomes(history) == good("ours", "a0", "a1", "a2")
    history.cluster.frees()
    history.finish()


# ── Taken up by a later launcher ────────────────────────────────────────────────────────────────


def test_what_runs_goes_on_without_its_launcher_and_is_taken_up(history: History) -> None:
    history.add("j", Plan(50.0, 3))
    history.until(begun(history, 1))
    history.restart()
    history.begun.clear()
    history.finish()
    assert [event.attempt for _, event in history.begun] == [attempt("j")]
    assert outcomes(history) == {"j": Exited(3)}


def test_what_was_taken_up_can_be_stopped(history: History) -> None:
    history.add("j", Plan(ENDLESS))
    history.until(begun(history, 1))
    history.restart()
    history.cancel("j")
    history.finish()
    assert outcomes(history) == {"j": Cancelled(Exited(143))}


def test_an_end_that_nobody_saw_is_found(history: History) -> None:
    history.add("j", Plan(5.0, 3))
    history.until(begun(history, 1))
    history.loop.drop("slurm:", "answer ")  # its launcher is killed
    while history.cluster.truth.alive:
        history.loop.turn()
    history.restart()
    history.finish()
    assert outcomes(history) == {"j": Exited(3)}


def test_what_was_never_handed_over_is_interrupted_and_goes_again(history: History) -> None:
    history.add("j", Plan(1.0))
    history.restart()
    history.finish()
    assert [type(ended.end.outcome) for ended in history.told] == [Interrupted, Exited]
    assert history.starts("j") == 1


@pytest.mark.parametrize("turns", range(2, 12))
def test_a_launcher_killed_while_it_hands_over_hands_nothing_over_twice(
    history: History, turns: int
) -> None:
    history.add("j", Plan(30.0))
    for _ in range(turns):
        history.turn()
    history.restart()
    history.finish()
    assert outcomes(history) == good("j")
    assert history.starts("j") == 1


def test_a_number_that_was_not_written_is_looked_up(history: History) -> None:
    history.add("j", Plan(30.0))
    history.until(begun(history, 1))
    (number,) = history.run.batch_lists.glob("*.id")
    number.unlink()
    history.restart()
    history.until(number.exists)
    history.finish()
    assert history.cluster.submissions == 2  # the probe's, and one


def test_a_number_that_came_to_be_anothers_is_not_taken_for_ones_own(history: History) -> None:
    """A controller that was killed gives numbers anew that it had not written down yet."""
    busy(history)
    history.cluster.save()
    history.add("j", Plan(1.0))
    history.until(queued(history, 4))
    history.cluster.kill()
    (other,) = history.cluster.strange()
    assert str(other) in history.engine.why(attempt("j"))
    history.passes(20.0)
    history.cancel("j")
    history.passes(30.0)
    assert other.state in ("PENDING", "RUNNING")
    history.calm = False
    free(history)
    history.finish()


# ── Slurm in trouble ────────────────────────────────────────────────────────────────────────────


def test_while_the_controller_is_away_nothing_is_judged_and_nothing_lost(history: History) -> None:
    history.add("runs", Plan(60.0))
    history.until(begun(history, 1))
    history.down_until = history.loop.now + 600.0
    history.add("late", Plan(1.0, 4))
    history.until(lambda: "does not answer" in history.engine.why(attempt("late")))
    history.until(lambda: outcomes(history) == good("runs"))
    assert history.loop.now < history.down_until
    history.finish()
    assert outcomes(history) == {"runs": Exited(0), "late": Exited(4)}


def test_what_slurm_has_forgotten_is_known_by_its_record_or_lost(history: History) -> None:
    history.cluster.remembers = 2.0
    for name in ("kept", "erased"):
        history.add(name, Plan(5.0, 3))
    history.until(begun(history, 2))
    history.loop.drop("slurm:", "answer ")  # its launcher is killed
    while history.cluster.truth.alive or [t for t in history.cluster.tasks if t.batch != "probe"]:
        history.loop.turn()
    history.run.end(attempt("erased")).unlink()
    history.cluster.truth.ends["erased.1"] = "killed"
    history.restart()
    history.until(lambda: len(history.told) >= 2)
    assert outcomes(history)["kept"] == Exited(3)
    assert isinstance(outcomes(history)["erased"], Lost)
    history.finish()


def test_what_needs_one_that_slurm_has_forgotten_since_it_succeeded_is_run(
    history: History,
) -> None:
    history.cluster.remembers = 2.0
    history.add("a", Plan(5.0))
    history.until(begun(history, 1))
    history.add("b", Plan(1.0), "a")
    history.until(queued(history, 2))
    waiting = history.cluster.waiting_for("b")
    history.loop.drop("slurm:", "answer ")  # killed, as if before it handed the second over
    history.cluster.tasks.remove(waiting)
    history.run.batch_id(waiting.batch).unlink()
    while [t for t in history.cluster.tasks if t.batch != "probe"]:
        history.loop.turn()
    history.calm = False
    history.restart()
    history.finish()
    assert outcomes(history) == good("a", "b")


# ── One after the other, item by item ───────────────────────────────────────────────────────────


def test_what_needs_one_that_fails_is_interrupted_by_slurm_itself(history: History) -> None:
    history.add("a", Plan(5.0, 3))
    history.add("b", Plan(1.0), "a")
    history.finish()
    assert outcomes(history)["a"] == Exited(3)
    assert isinstance(outcomes(history)["b"], Interrupted)
    assert history.starts("b") == 0


def test_of_items_one_that_fails_keeps_its_own_successor_alone_from_running(
    history: History,
) -> None:
    first_jobs(history, *range(6), bad=2)
    all_end(history)
    history.finish()
    others = [f"{kind}{n}" for kind in "ab" for n in range(6) if n != 2]
    found = outcomes(history)
    assert found.pop("a2") == Exited(3)
    assert isinstance(found.pop("b2"), Interrupted)
    assert found == good(*others)
    assert submissions(history) == 2


def test_items_may_be_missing_and_their_launcher_may_die(history: History) -> None:
    first_jobs(history, 1, 3, 4)
    assert submissions(history) == 2
    history.restart()
    all_end(history)
    history.finish()
    assert outcomes(history) == good(*(f"a{n}" for n in range(6)), "b1", "b3", "b4")


def test_an_array_behind_an_array_that_is_not_known_to_be_handed_over_is_looked_up(
    history: History,
) -> None:
    first_jobs(history, 2, 5)
    history.run.batch_id(history.cluster.waiting_for("b2").batch).unlink()
    history.restart()
    all_end(history)
    history.finish()
    assert outcomes(history) == good(*(f"a{n}" for n in range(6)), "b2", "b5")
    assert history.cluster.submissions == 3  # the probe's, and two arrays


def test_several_may_follow_each_item(history: History) -> None:
    first_jobs(history, *range(6))
    for number in range(6):
        history.add(f"c{number}", Plan(1.0), f"a{number}")
    history.until(queued(history, 18))
    assert submissions(history) == 3
    all_end(history)
    history.finish()
    assert outcomes(history) == good(*(f"{kind}{n}" for kind in "abc" for n in range(6)))


@pytest.mark.parametrize("by", ["us", "a person in Slurm"])
def test_of_what_follows_item_by_item_one_can_be_cancelled_while_it_waits(
    history: History, by: str
) -> None:
    first_jobs(history, *range(6))
    if by == "us":
        history.cancel("b3")
    else:
        history.wanted["b3"].person = True
        history.cluster.cancels([str(history.cluster.waiting_for("b3"))])
    history.until(lambda: bool(history.told))
    assert outcomes(history) == {"b3": Cancelled()}
    all_end(history)
    history.finish()
    assert history.starts("b3") == 0
    assert len([o for o in outcomes(history).values() if o == Exited(0)]) == 11


def test_what_an_item_needs_may_be_over_when_the_others_are_handed_over(history: History) -> None:
    first_jobs(history)
    history.until(begun(history, 3))
    history.pause(True)
    for number in (0, 1, 2):
        history.add(f"b{number}", Plan(1.0), f"a{number}")
    history.passes(1.0)
    history.cluster.ends("a0")
    history.until(lambda: outcomes(history) == good("a0"))
    history.pause(False)
    history.cluster.ends("a3", "a4", "a5")
    history.until(lambda: outcomes(history) == good("a0", "a3", "a4", "a5", "b0"))
    assert submissions(history) == 3
    all_end(history)
    history.finish()


# ── What the nodes see ──────────────────────────────────────────────────────────────────────────


def test_the_nodes_are_looked_at_once_in_a_run(history: History) -> None:
    for number in range(3):
        history.add(f"j{number}", Plan(1.0))
        history.until(lambda: history.over)
        history.restart()
    assert history.cluster.submissions == 4
    history.finish()


# ── The state machine ───────────────────────────────────────────────────────────────────────────


def test_a_state_machine_reads_no_clock_and_no_file_and_calls_nothing() -> None:
    """Its modules import nothing that could."""
    package = Path(step.__file__).parent
    pure = "state step attempt following stopping withdrawals submission probe queue_hold"
    for name in [*pure.split(), "standstill", "judge", "limits"]:
        lines = (package / f"{name}.py").read_text().splitlines()
        imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
        allowed = {"errno", "os"} if name == "judge" else set()  # strerror alone
        bad = {"os", "time", "subprocess", "pathlib", "threading", "errno", "gpulaunch.loop"}
        assert not imported & bad - allowed, name
