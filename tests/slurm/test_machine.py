"""What is handed over, taken up again, held, ended and lost: the engine on a pretend cluster."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpulaunch.base.wording import ending, job_reason
from gpulaunch.core.events import Launch
from gpulaunch.core.model import (
    Cancelled,
    Demand,
    Exited,
    Interrupted,
    Job,
    Lost,
    NotStarted,
    TimedOut,
)
from gpulaunch.core.retry import Settle, decide
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.engines.slurm import script, step
from gpulaunch.engines.slurm.commands import ScriptsAnswer, Unreachable, _End
from gpulaunch.engines.slurm.health import directories_of
from tests.slurm.histories import FINE, History, Wanted, fine
from tests.slurm.programs import Faults
from tests.slurm.scenes import (
    ENDLESS,
    attempt,
    begun,
    busy,
    free,
    good,
    launcher_is_killed,
    outcomes,
    queued,
    submissions,
    task_of,
)
from tests.slurm.world import Plan

ONE = attempt("one")


@pytest.fixture(autouse=True)
def calm(history: History) -> None:
    """Nothing goes wrong but what a test has go wrong."""
    history.calm = True


# ── What Slurm and people do to it ──────────────────────────────────────────────────────────────


def test_a_job_that_slurms_time_limit_ends_names_it_with_its_length_and_what_to_do(
    history: History,
) -> None:
    """Exited with a failure or with a success at the warning, it is the limit that ended it."""
    history.add("j", Plan(ENDLESS))
    history.until(begun(history, 1))
    history.run.log(attempt("j")).write_text("epoch 3\n")
    history.cluster.reaches_limit(task_of(history, "j.1"), 90)
    history.finish()
    (ended,) = history.told
    assert ended.end.outcome == TimedOut("queue", 5400.0, Exited(143))
    assert ended.end.failure is not None
    assert (ended.end.failure.kind, ended.end.failure.evidence) == ("timeout", "epoch 3")
    assert ending(ended.end.outcome).startswith("Slurm's time limit of 1 h 30 min (")
    assert "timeout:" in advice(ended.end.failure.advice)


def test_of_a_job_whose_node_is_down_is_said_so_until_it_is_over(history: History) -> None:
    """Put back into the queue or not, a minute goes by until no record can come any more."""
    for name in ("gone", "back", "fine"):
        history.add(name, Plan(ENDLESS))
    history.until(lambda: len(history.begun) == 3)
    assert not any(history.engine.why(attempt(name)) for name in ("gone", "back", "fine"))
    history.cluster.loses_node(task_of(history, "gone.1"))
    history.cluster.fail_node(task_of(history, "back.1"))
    history.until(lambda: "for 30 s;" in history.engine.why(attempt("gone")))
    said = "node n1 is down, Slurm says, for 30 s; without a record of its end it is over in 30 s"
    assert history.engine.why(attempt("gone")) == said
    said = "Slurm has put it back into its queue, as when node n1 fails, for "
    assert history.engine.why(attempt("back")).startswith(said)
    assert not history.engine.why(attempt("fine"))
    history.until(lambda: len(history.told) == 2)
    assert {type(ended.end.outcome) for ended in history.told} == {Lost}
    history.cluster.ends("gone", "back", "fine")
    history.finish()


def test_of_a_job_that_slurm_has_suspended_or_not_yet_ended_is_said_so(history: History) -> None:
    history.add("j", Plan(ENDLESS, 3))
    history.until(lambda: len(history.begun) == 1)
    history.faults = shows("SUSPENDED")
    history.until(lambda: history.engine.why(attempt("j")).startswith("Slurm has suspended it"))
    history.faults = shows("RUNNING")
    history.until(lambda: not history.engine.why(attempt("j")))
    history.faults = shows("COMPLETING")
    history.cluster.ends("j")
    history.until(lambda: "it has ended;" in history.engine.why(attempt("j")))
    history.faults = fine
    history.finish()
    assert outcomes(history) == {"j": Exited(3)}


def shows(state: str) -> Faults:
    """Slurm's programs show so whatever has a node."""

    def change(end: _End) -> _End:
        return replace(end, out=re.sub("RUNNING|FAILED", state, end.out))

    return lambda program, arguments: replace(FINE, change=change)


def test_a_job_that_a_person_cancelled_in_slurm_says_so_and_one_that_gpulaunch_cancelled_does_not(
    history: History,
) -> None:
    busy(history, "waits")
    for name in ("a0", "waits"):
        history.wanted[name].person = True
    history.cluster.cancels([str(task_of(history, "a0.1"))])
    history.cluster.cancels([str(history.cluster.waiting_for("waits"))])
    history.cancel("a1")
    history.until(lambda: len(history.told) == 3)
    by = {ended.attempt.job: ended.end.outcome for ended in history.told}
    in_slurm = "cancelled in Slurm (scancel), not by gpulaunch"
    assert by["a1"] == Cancelled(Exited(143))
    assert {ending(by["a0"]), ending(by["waits"])} == {in_slurm}
    decided = decide(by["a0"], history.wanted["a0"].job, 0)
    assert isinstance(decided, Settle)
    assert (decided.state, job_reason(decided.reason)) == ("cancelled", in_slurm)
    free(history)
    history.finish()


# ── Handing over ────────────────────────────────────────────────────────────────────────────────


def test_what_waits_says_for_what_and_what_runs_on_which_card(history: History) -> None:
    busy(history, "waits")
    history.until(lambda: history.engine.why(attempt("waits")).endswith(" (Resources)"))
    assert {event.gpus[0].node for _, event in history.begun} == {"n1"}
    free(history)
    history.finish()


def test_what_slurm_refuses_was_not_started_and_says_why(history: History) -> None:
    history.add("j", Plan(1.0), gpus=8)
    history.wanted["j"].stopped = True  # else it would be tried again
    history.until(lambda: bool(history.told))
    (ended,) = history.told
    assert isinstance(ended.end.outcome, NotStarted)
    assert ended.end.outcome.error.startswith("sbatch: ")
    assert ended.end.outcome.error.count("sbatch") == 1
    assert ended.end.failure is not None
    assert ended.end.failure.kind == "not_started"
    assert "--slurm" in advice(ended.end.failure.advice)
    history.finish()


def test_what_slurm_got_twice_runs_once(history: History) -> None:
    history.calm = False
    history.add("j", Plan(50.0, 3))
    history.until(begun(history, 1))
    *_, (_, _, words) = (call for call in history.programs.calls if call[1] == "sbatch")
    again = history.cluster.submit(words)
    history.until(lambda: bool(history.cluster.truth.useless))
    history.finish()
    (task,) = history.cluster.named([str(again)]) or [None]
    assert task is None or (task.state, task.status >> 8) == ("FAILED", 75)
    assert outcomes(history) == {"j": Exited(3)}
    assert history.starts("j") == 1


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
    write = script.write
    tries = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "tickets/a.1")] * 3

    def until_there_is_room(*given: Any) -> None:
        if tries:
            raise tries.pop()
        write(*given)

    monkeypatch.setattr(script, "write", until_there_is_room)
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
    write = script.write

    def needs_a(launch: Launch, *given: Any) -> None:
        if launch.attempt.job == "b" and not outcomes(history):
            raise script.NotPreparedError("its directory is not there")
        write(launch, *given)

    monkeypatch.setattr(script, "write", needs_a)
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


@pytest.mark.parametrize("before", [True, False])
def test_what_waits_stays_held_by_a_launcher_that_begins_outside_the_hours_of_the_run(
    history: History, before: bool
) -> None:
    """`before`: the launcher that died had held it already."""
    busy(history, "one", "two")
    if before:
        history.pause(True)
        history.passes(30.0)
    history.restart(paused=True)
    history.passes(30.0)
    free(history)
    history.passes(100.0)
    assert {history.cluster.waiting_for(name).reason for name in ("one", "two")} == {"JobHeldUser"}
    assert outcomes(history) == good("a0", "a1", "a2")
    history.pause(False)
    history.finish()
    assert outcomes(history) == good("one", "two", "a0", "a1", "a2")


def test_while_paused_what_waits_does_not_start_and_what_runs_goes_on(history: History) -> None:
    busy(history, "one", "two")
    history.add("lone", Plan(1.0), gpus=2)
    history.until(queued(history, 6))
    history.pause(True)
    history.until(lambda: ": held until the run goes on (JobHeld" in history.engine.why(ONE))
    handed_over = submissions(history)
    history.add("late", Plan(1.0))
    free(history)
    history.passes(100.0)
    assert outcomes(history) == good("a0", "a1", "a2")
    assert {history.cluster.waiting_for(name).reason for name in ("one", "two", "lone")} == {
        "JobHeldUser"
    }
    assert submissions(history) == handed_over
    assert history.engine.why(attempt("late")) == "not yet handed to Slurm"
    history.pause(False)
    history.finish()
    assert outcomes(history) == good("a0", "a1", "a2", "one", "two", "lone", "late")
    assert not history.run.held.exists()


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


def test_whose_jobs_wait_or_run_is_known_by_their_script_when_no_launcher_lives(
    history: History,
) -> None:
    history.cluster.strange()
    busy(history, "waits")
    launcher_is_killed(history)
    assert directories(history) == [history.run.path]
    history.restart()
    free(history)
    history.finish()
    assert directories(history) == []
    odd = ("gl:x:1-1:a", "/a b/slurm/batch.sh /r\u00fcn/slurm/batch.sh 1-1")
    assert directories_of([odd]) == [Path("/a b/slurm/batch.sh /r\u00fcn")]
    assert directories_of([("gl:x", "(null)"), ("", ""), ("wrap", "/r/slurm/batch.sh 1-1")]) == []


def directories(history: History) -> list[Path]:
    """The runs that have jobs in the queue, as a launcher that begins asks for them."""
    answers: list[ScriptsAnswer] = []
    history.programs.scripts(answers.append)
    while not answers:
        history.loop.turn()
    assert not isinstance(answers[0], Unreachable)
    return directories_of(answers[0])


def test_what_runs_goes_on_without_its_launcher_and_is_taken_up(history: History) -> None:
    history.add("j", Plan(50.0, 3))
    history.until(begun(history, 1))
    history.restart()
    history.begun.clear()
    history.finish()
    assert [event.attempt for _, event in history.begun] == [attempt("j")]
    assert outcomes(history) == {"j": Exited(3)}


def test_what_another_version_handed_over_is_taken_up_and_judged_by_what_is_known(
    history: History,
) -> None:
    history.add("j", Plan(50.0, 3))
    history.until(begun(history, 1))
    history.run.ticket(attempt("j")).write_text("of another version")
    history.restart()
    history.finish()
    assert outcomes(history) == {"j": Exited(3)}
    (warned,) = history.warned
    assert warned.startswith("j: handed to Slurm by another version of gpulaunch, whose tickets")


def test_what_was_taken_up_can_be_stopped(history: History) -> None:
    history.add("j", Plan(ENDLESS))
    history.until(begun(history, 1))
    history.restart()
    history.cancel("j")
    history.finish()
    assert outcomes(history) == {"j": Cancelled(Exited(143))}


def test_all_that_a_killed_launcher_left_is_cancelled_by_the_next_and_nobody_elses(
    history: History,
) -> None:
    strange = history.cluster.strange(2)
    busy(history, "waits")
    launcher_is_killed(history)
    history.restart()
    for name in history.wanted:
        history.cancel(name)
    history.finish()
    assert outcomes(history) == {
        **dict.fromkeys(("a0", "a1", "a2"), Cancelled(Exited(143))),
        "waits": Cancelled(),
    }
    assert {task.state for task in strange} == {"COMPLETED"}


def test_an_end_that_nobody_saw_is_found(history: History) -> None:
    history.add("j", Plan(5.0, 3))
    history.until(begun(history, 1))
    launcher_is_killed(history)
    while history.cluster.truth.alive:
        history.loop.turn()
    history.restart()
    history.finish()
    assert outcomes(history) == {"j": Exited(3)}


def test_what_needs_another_follows_it_into_the_queue_and_starts_without_a_launcher(
    history: History,
) -> None:
    history.add("a", Plan(ENDLESS))
    history.add("b", Plan(1.0), "a")
    history.add("c", Plan(1.0), "b")
    history.until(queued(history, 3))
    launcher_is_killed(history)
    history.cluster.ends("a")
    while len(history.cluster.truth.ends) < 3:
        history.loop.turn()
    assert history.cluster.truth.began == ["a.1", "b.1", "c.1"]
    history.restart()
    history.finish()
    assert outcomes(history) == good("a", "b", "c")


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
    launcher_is_killed(history)
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
    launcher_is_killed(history)  # as if before it handed the second over
    history.cluster.tasks.remove(waiting)
    history.run.batch_id(waiting.batch).unlink()
    while [t for t in history.cluster.tasks if t.batch != "probe"]:
        history.loop.turn()
    history.calm = False
    history.restart()
    history.finish()
    assert outcomes(history) == good("a", "b")


# ── The state machine ───────────────────────────────────────────────────────────────────────────


def test_a_state_machine_reads_no_clock_and_no_file_and_calls_nothing() -> None:
    """Its modules import nothing that could."""
    package = Path(step.__file__).parent
    pure = "state step attempt following cancellation withdrawals submission"
    for name in [*pure.split(), "standstill", "outcome", "limits"]:
        lines = (package / f"{name}.py").read_text().splitlines()
        imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
        allowed = {"errno", "os"} if name == "outcome" else set()  # strerror alone
        bad = {"os", "time", "subprocess", "pathlib", "threading", "errno", "gpulaunch.base.loop"}
        assert not imported & bad - allowed, name
