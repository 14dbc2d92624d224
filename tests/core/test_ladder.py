"""A ladder: each charged retry takes the next step, and what one job learns holds for its entry."""

from __future__ import annotations

import pytest

from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.events import Asked, Cancel, Ended, Relisted, Retry
from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptLaunched,
    JobAdded,
    JobDelayed,
    JobSettled,
)
from gpulaunch.core.ledger import AttemptRecord, next_step, step_after, unrecorded
from gpulaunch.core.model import (
    AttemptId,
    Demand,
    End,
    Exited,
    Failure,
    Instant,
    Interrupted,
    Job,
    Ladder,
    LadderStep,
    Lost,
    RetryPolicy,
    TimedOut,
)
from gpulaunch.core.retry import RetryContext, RetryPlacement, choose_placement
from tests.core.table import Table, attempt, job
from tests.core.world import pretend_gpus

LADDER = Ladder(("batch",), (("32",), ("16",), ("8",)))
THRICE = RetryPolicy(3)


def climbing(name: str, retry: RetryPolicy = THRICE, group: int = 0, **fields: object) -> Job:
    return job(name, ladder=LADDER, retry=retry, group=group, **fields)


def batches(run: Table) -> dict[str, str]:
    """The value with which each attempt started."""
    launches = (fact for fact in run.facts if isinstance(fact, AttemptLaunched))
    return {str(one.attempt): one.step.values["batch"] for one in launches if one.step}


def fails(run: Table, what: str, kind: str = "exit") -> None:
    run.on(Ended(attempt(what), End(Exited(1), Failure(kind, "it said so"))))


def begun(*jobs: Job, cards: int = 1) -> Table:
    run = Table(cards)
    run.submit(*jobs)
    run.granted(*range(cards))
    return run


def test_each_charged_retry_takes_the_next_step_and_the_last_one_stays() -> None:
    run = begun(climbing("a"))
    for number in (1, 2, 3):
        fails(run, f"a.{number}")
        run.drained(0)
    assert batches(run) == {"a.1": "32", "a.2": "16", "a.3": "8", "a.4": "8"}
    moved = [fact.step for fact in run.facts if isinstance(fact, JobDelayed)]
    assert moved == [LADDER.step(2), LADDER.step(3), None]
    fails(run, "a.4")
    assert run.state("a").startswith("failed")


def test_only_classes_of_retries_on_move_it() -> None:
    run = begun(climbing("a", RetryPolicy(2, frozenset({"gpu_oom", "timeout"}))))
    run.on(Ended(attempt("a.1"), End(TimedOut("timeout", 60.0))))
    run.drained(0)
    fails(run, "a.2")
    assert batches(run) == {"a.1": "32", "a.2": "16"}
    assert run.state("a").startswith("failed")


@pytest.mark.parametrize(
    "end",
    [
        End(Interrupted(Because("cut_short"))),
        End(Lost(Quoted("gone"))),
        End(Exited(1), Failure("gpu_lost", "Xid 79", gpus=("GPU-0",))),
    ],
)
def test_what_spends_no_retry_keeps_the_step(end: End) -> None:
    run = begun(climbing("a"), cards=2)
    fails(run, "a.1")
    run.drained(0)
    run.on(Ended(attempt("a.2"), end))
    run.drained(0)
    run.granted(1)
    assert batches(run) == {"a.1": "32", "a.2": "16", "a.3": "16"}


def test_the_next_of_the_entry_starts_at_the_furthest_step_that_succeeded() -> None:
    run = begun(climbing("a", priority=9), climbing("b"), climbing("c"), climbing("other", group=1))
    fails(run, "a.1")
    run.drained(0)
    run.ended("a.2")
    run.drained(0)
    run.ended("b.1")
    run.drained(0)
    run.ended("c.1")
    run.drained(0)
    assert batches(run) == {
        "a.1": "32",
        "a.2": "16",
        "b.1": "16",
        "c.1": "16",
        "other.1": "32",
    }


def test_a_success_at_an_earlier_step_moves_nobody_back() -> None:
    run = begun(climbing("a"), climbing("b"), climbing("c"), cards=2)
    fails(run, "a.1")
    run.drained(0)
    run.ended("a.2")
    run.ended("b.1")
    run.drained(0, 1)
    assert batches(run)["c.1"] == "16"


def test_a_job_that_had_to_go_further_itself_goes_on_from_there() -> None:
    run = begun(climbing("a"), climbing("b"), cards=2)
    for number in (1, 2):
        fails(run, f"b.{number}")
        run.drained(1)
    run.ended("a.1")
    assert batches(run)["b.3"] == "8"


def test_what_one_job_learned_holds_for_the_retry_of_another() -> None:
    run = begun(climbing("a"), climbing("b"), cards=2)
    for number in (1, 2):
        fails(run, f"a.{number}")
        run.drained(0)
    run.ended("a.3")
    fails(run, "b.1")
    run.drained(0, 1)
    assert batches(run)["b.2"] == "8"


def test_a_persons_retry_starts_at_the_step_that_the_job_had() -> None:
    run = begun(climbing("a", RetryPolicy(1)))
    fails(run, "a.1")
    run.drained(0)
    fails(run, "a.2")
    run.asked(Retry(("a",)))
    run.drained(0)
    assert batches(run)["a.3"] == "16"


def test_a_resume_keeps_the_step_and_what_was_learned() -> None:
    jobs = [climbing("a"), climbing("b"), climbing("c")]
    run = begun(*jobs[:2])
    fails(run, "a.1")
    run.drained(0)
    run.ended("a.2")
    run.drained(0)
    fails(run, "b.1")
    run.asked(Cancel(("b",)))
    again = Table(1, run.run.ledger)
    again.submit(*jobs, again=["b"])
    again.granted(0)
    again.ended("b.2")
    again.drained(0)
    assert batches(again) == {"b.2": "8", "c.1": "8"}


def test_a_ladder_that_was_changed_knows_its_steps_by_their_values() -> None:
    run = begun(climbing("a", RetryPolicy(1)))
    fails(run, "a.1")
    run.drained(0)
    fails(run, "a.2")
    longer = Ladder(("batch",), (("64",), ("32",), ("16",), ("4",)))
    run.on(_anew(longer))
    run.on(Asked(Retry(("a",))))
    run.drained(0)
    assert batches(run)["a.3"] == "16"
    assert next_step(run.run.ledger, job("a", ladder=LADDER)) == LADDER.step(2)
    other = Ladder(("size",), (("9",), ("8",)))
    assert next_step(run.run.ledger, job("a", ladder=other)) == other.step(1)


def _anew(ladder: Ladder) -> Relisted:
    return Relisted((job("a", ladder=ladder, retry=THRICE),))


def test_out_of_memory_takes_a_step_before_a_larger_card() -> None:
    small, large = pretend_gpus(2, 24 << 30, 80 << 30)
    ground = RetryContext((small,), (large,), steps=True)
    assert choose_placement("gpu_oom", Demand(), ground) == RetryPlacement(Demand())
    at_last = choose_placement("gpu_oom", Demand(), RetryContext((small,), (large,)))
    assert isinstance(at_last, RetryPlacement)
    assert at_last.change == "more_memory"


def test_out_of_memory_is_tried_again_while_a_step_is_left() -> None:
    run = begun(climbing("a"))
    fails(run, "a.1", "gpu_oom")
    run.drained(0)
    fails(run, "a.2", "gpu_oom")
    run.drained(0)
    fails(run, "a.3", "gpu_oom")  # the last one: there is no larger card
    assert batches(run) == {"a.1": "32", "a.2": "16", "a.3": "8"}
    assert run.state("a").startswith("failed")


def test_a_job_without_a_ladder_has_no_step() -> None:
    run = begun(job("a", retry=THRICE))
    fails(run, "a.1")
    run.drained(0)
    assert batches(run) == {}
    assert run.run.ledger.jobs["a"].step is None


def test_a_service_that_fell_and_is_needed_no_more_proves_nothing() -> None:
    ledger = unrecorded(())
    at, why = Instant(0.0, 0.0), Because("cancelled")
    fell = End(Exited(1), Failure("exit"))
    for fact in (
        JobAdded("server", 0, 0, "", service=True),
        AttemptLaunched(AttemptId("server", 1), (), step=LADDER.step(2)),
        AttemptEnded(AttemptId("server", 1), fell, charged=True),
        JobDelayed("server", why, step=LADDER.step(3)),
        JobSettled("server", "succeeded"),
    ):
        ledger.apply(fact, at)
    assert next_step(ledger, job("other", ladder=LADDER)) == LADDER.step(1)


def test_steps_follow_each_other_up_to_the_last() -> None:
    assert [LADDER.step(number).number for number in (0, 1, 3, 9)] == [1, 1, 3, 3]
    assert LADDER.find(LADDER.step(2)) == 2
    assert LADDER.find(LadderStep(2, 3, {"batch": "64"})) == 0
    assert LADDER.find(LadderStep(2, 3, {"size": "16"})) == 0
    assert LADDER.find(None) == 0
    made = AttemptRecord(AttemptId("a", 1), (), Instant(0, 0), step=LADDER.step(3))
    assert step_after(climbing("a"), made) is None
