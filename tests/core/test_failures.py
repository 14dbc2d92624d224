"""What a recognised failure leads to: again, where, on which card, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpulaunch.base.wording import card_reason, job_reason, run_reason
from gpulaunch.core.causes import Because, Hint, Quoted
from gpulaunch.core.events import (
    Asked,
    Cancel,
    Ended,
    Event,
    GoOn,
    GpuEvent,
    HeldIdle,
    Misplaced,
    Pause,
    Retry,
    Stop,
    Timer,
    TimerFired,
    Unanswered,
)
from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptIdle,
    GpuReported,
    JobDelayed,
    JobRequeued,
    Noted,
    ServiceReady,
)
from gpulaunch.core.graph import IN_VAIN
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    End,
    Exited,
    Failure,
    Gpu,
    Interrupted,
    Ladder,
    Lost,
    MissingOutput,
    Outcome,
    RetryPolicy,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.core.reasons import FailedAlike, OutsideHours, RetryIn
from gpulaunch.core.retry import (
    CARD_PAUSE,
    POLICIES,
    RetryContext,
    RetryPlacement,
    choose_placement,
    failure_of,
)
from tests.core.table import Table, attempt, job, service
from tests.core.world import GIB

SMALL = Gpu("GPU-s", 0, "s", "A40", 48 * GIB)
TWIN = Gpu("GPU-t", 1, "t", "A40", 48 * GIB)
LARGE = Gpu("GPU-l", 2, "l", "H200", 141 * GIB)
ONE = Demand()
TWICE = RetryPolicy(2)


def failed(table: Table, what: str, kind: str, *gpus: int, **more: object) -> list[str]:
    told = tuple(f"GPU-{gpu}" for gpu in gpus)
    failure = Failure(kind, f"the log said {kind}", (Hint("no_modules"),), told, **more)  # type: ignore[arg-type]
    return table.on(Ended(attempt(what), End(Exited(1), failure)))


# ── Where ───────────────────────────────────────────────────────────────────────────────────────


def test_out_of_memory_goes_to_a_larger_card() -> None:
    found = choose_placement("gpu_oom", ONE, RetryContext((SMALL,), (TWIN, LARGE)))
    assert found == RetryPlacement(Demand(gpu_memory=48 * GIB + 1), "more_memory")


def test_out_of_memory_on_a_shared_card_goes_alone() -> None:
    found = choose_placement(
        "gpu_oom", Demand(per_gpu=4, gpu_memory=GIB), RetryContext((SMALL,), (LARGE,))
    )
    assert found == RetryPlacement(Demand(per_gpu=1, gpu_memory=GIB), "alone")


def test_out_of_memory_through_mps_goes_alone_without_its_limit() -> None:
    found = choose_placement("gpu_oom", Demand(per_gpu=4, mps=True), RetryContext((SMALL,)))
    assert found == RetryPlacement(Demand(per_gpu=1), "alone")


def test_out_of_memory_among_equals_is_not_tried_again() -> None:
    assert choose_placement("gpu_oom", ONE, RetryContext((SMALL,), (TWIN,))) == "no_larger"


def test_out_of_memory_beside_strangers_goes_elsewhere_or_waits() -> None:
    away = choose_placement("gpu_oom", ONE, RetryContext((SMALL,), (TWIN,), foreign=True))
    assert away == RetryPlacement(Demand(avoid=frozenset({"GPU-s"})), "other_card")
    assert choose_placement(
        "gpu_oom", ONE, RetryContext((SMALL,), (), foreign=True)
    ) == RetryPlacement(ONE, None, CARD_PAUSE)


def test_a_crash_is_tried_elsewhere_once() -> None:
    away = RetryPlacement(Demand(avoid=frozenset({"GPU-s"})), "other_card")
    assert choose_placement("crash", ONE, RetryContext((SMALL,), (TWIN,))) == away
    assert isinstance(
        choose_placement("crash", ONE, RetryContext((SMALL,), (TWIN,), before=1)), str
    )
    assert isinstance(choose_placement("crash", ONE, RetryContext((SMALL,), ())), str)


def test_a_build_for_another_card_goes_to_another_kind_only() -> None:
    found = choose_placement("wrong_arch", ONE, RetryContext((SMALL,), (TWIN, LARGE)))
    assert found == RetryPlacement(Demand(avoid=frozenset({"GPU-s", "GPU-t"})), "other_kind")
    assert isinstance(choose_placement("wrong_arch", ONE, RetryContext((SMALL,), (TWIN,))), str)


def test_a_busy_card_is_left_for_another_or_waited_for() -> None:
    assert isinstance(
        away := choose_placement("gpu_busy", ONE, RetryContext((SMALL,), (TWIN,))), RetryPlacement
    )
    assert away.demand.avoid == {"GPU-s"}
    waits = [
        choose_placement("gpu_busy", ONE, RetryContext((SMALL,), before=before))
        for before in range(9)
    ]
    delays = [wait.delay for wait in waits if isinstance(wait, RetryPlacement)]
    assert delays == [30, 60, 120, 240, 480, 600, 600, 600, 600]


def test_cards_avoided_before_stay_avoided_while_there_are_others() -> None:
    before = Demand(avoid=frozenset({"GPU-t"}))
    third = choose_placement("gpu_busy", before, RetryContext((SMALL,), (TWIN, LARGE)))
    assert isinstance(third, RetryPlacement)
    assert third.demand.avoid == {"GPU-s", "GPU-t"}
    back = choose_placement("gpu_busy", before, RetryContext((SMALL,), (TWIN,)))
    assert isinstance(back, RetryPlacement)
    assert back.demand.avoid == {"GPU-s"}


def test_an_ordinary_failure_leaves_a_doubted_card() -> None:
    assert choose_placement("exit", ONE, RetryContext((SMALL,), (TWIN,))) == RetryPlacement(ONE)
    doubted = choose_placement("exit", ONE, RetryContext((SMALL,), (TWIN,), doubted=True))
    assert isinstance(doubted, RetryPlacement)
    assert doubted.demand.avoid == {"GPU-s"}


@pytest.mark.parametrize("kind", POLICIES)
def test_every_class_is_decided_with_and_without_cards(kind: str) -> None:
    for ground in (RetryContext(), RetryContext((SMALL,)), RetryContext((SMALL,), (TWIN, LARGE))):
        found = choose_placement(kind, Demand(gpus=1 if ground.used else 0), ground)
        assert isinstance(found, RetryPlacement | str)
        assert isinstance(found, RetryPlacement) or POLICIES[kind].again == "no"


# ── Which class ─────────────────────────────────────────────────────────────────────────────────


def test_a_limit_gives_way_to_the_driver_alone() -> None:
    late = TimedOut("idle_timeout", 60.0)
    assert failure_of(late, job("a"), Failure("gpu_lost", gpus=("GPU-0",))) == "gpu_lost"
    assert failure_of(late, job("a"), Failure("gpu_lost")) == "idle_timeout"


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Exited(1), "gpu_oom"),
        (Signaled(9), "gpu_oom"),
        (MissingOutput(("a",)), "gpu_oom"),
        (TimedOut("timeout", 1.0), "timeout"),
        (Exited(0), None),
    ],
)
def test_what_was_recognised_refines_a_status_and_overrules_no_limit(
    outcome: Outcome, kind: str | None
) -> None:
    assert failure_of(outcome, job("a"), Failure("gpu_oom")) == kind


# ── In a run ────────────────────────────────────────────────────────────────────────────────────


def test_a_hopeless_failure_spends_no_further_attempt() -> None:
    table = Table(1)
    table.submit(job("a", retry=TWICE))
    table.granted(0)
    assert failed(table, "a.1", "device_mismatch") == ["drain 0"]
    assert table.state("a") == (
        "failed: exited with status 1: the log said device_mismatch;"
        " not tried again: it would end in the same way"
    )


def test_a_class_named_in_on_is_tried_again_all_the_same() -> None:
    table = Table(1)
    table.submit(job("a", retry=RetryPolicy(1, frozenset({"device_mismatch"}))))
    table.granted(0)
    failed(table, "a.1", "device_mismatch")
    assert table.drained(0) == ["launch a.2 on 0"]


def test_evidence_and_advice_are_recorded_with_the_end() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    failed(table, "a.1", "gpu_oom")
    (fact,) = [fact for fact in table.facts if isinstance(fact, AttemptEnded)]
    assert fact.end.failure == Failure("gpu_oom", "the log said gpu_oom", (Hint("no_modules"),))


def test_a_card_that_the_driver_says_is_lost_is_set_aside_and_its_job_goes_on_for_free() -> None:
    table = Table(2)
    table.submit(job("a"))
    table.granted(0)
    lines = failed(table, "a.1", "gpu_lost", 0)
    assert lines == ["release 0", "at 120 elsewhere/a", "acquire 1"]
    assert table.granted(1) == ["launch a.2 on 1"]
    assert table.run.ledger.gpus["GPU-0"].state == "aside"
    assert not table.run.ledger.jobs["a"].attempts[0].charged


def test_a_job_that_loses_card_after_card_is_held_to_be_why() -> None:
    table = Table(4)
    table.submit(job("a"))
    for number in (1, 2, 3):
        table.granted(number - 1)
        failed(table, f"a.{number}", "gpu_lost", number - 1)
    assert table.state("a") == (
        "failed: exited with status 1: the log said gpu_lost, 3 times in a row"
    )
    assert table.run.ledger.gpus["GPU-3"].state == "free"


def test_a_lost_card_is_set_aside_once_the_other_job_on_it_has_ended() -> None:
    table = Table(1)
    table.submit(job("a", per_gpu=2), job("b", per_gpu=2))
    table.granted(0)
    assert failed(table, "a.1", "gpu_lost", 0) == []
    assert table.run.ledger.gpus["GPU-0"].state == "leased"
    assert table.ended("b.1") == ["release 0"]
    assert table.state("a").startswith("failed: never started: needs a card, none is left; GPU 0")


def test_out_of_memory_beside_another_job_is_tried_alone() -> None:
    table = Table(1)
    table.submit(job("a", per_gpu=2, retry=TWICE), job("b", per_gpu=2))
    table.granted(0)
    assert failed(table, "a.1", "gpu_oom") == []
    assert table.ended("b.1") == ["drain 0"]
    assert table.drained(0) == ["launch a.2 on 0"]
    assert table.run.ledger.gpus["GPU-0"].attempts == {attempt("a.2")}


def test_a_job_avoids_a_card_only_while_there_is_another() -> None:
    table = Table(2)
    table.submit(job("a", retry=TWICE))
    table.granted(0)
    assert failed(table, "a.1", "crash") == ["drain 0", "at 120 elsewhere/a", "acquire 1"]
    assert table.sick(1) == []
    assert table.drained(0) == ["launch a.2 on 0"]


# ── What the driver reports ─────────────────────────────────────────────────────────────────────


def report(table: Table, gpu: int, verdict: str, stops: bool = False) -> list[str]:
    event = GpuEvent(f"GPU-{gpu}", 31, "Xid 31: a fault", verdict, stops)  # type: ignore[arg-type]
    return table.on(event)


def test_a_report_is_noted_with_the_attempts_that_run_there_once() -> None:
    table = Table(2)
    table.submit(job("a"))
    table.granted(0)
    for _ in range(3):
        assert report(table, 0, "app") == []
    reports = [fact for fact in table.facts if isinstance(fact, GpuReported)]
    assert reports == [GpuReported("GPU-0", "Xid 31: a fault", (attempt("a.1"),))]
    assert table.run.ledger.attempt(attempt("a.1")).reports == ["Xid 31: a fault"]


def test_what_the_driver_says_of_a_job_that_is_being_ended_is_no_news() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    killed = GpuEvent("GPU-0", 45, "Xid 45: preemptive cleanup", "app")
    table.asked(Cancel(("a",)))
    table.on(killed)
    assert not [fact for fact in table.facts if isinstance(fact, GpuReported)]


def test_a_report_of_a_loss_keeps_new_jobs_off_and_blames_the_card_for_the_end() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    assert report(table, 0, "lost") == []
    assert table.ended("a.1", Exited(1)) == ["release 0"]
    (fact,) = [fact for fact in table.facts if isinstance(fact, AttemptEnded)]
    assert fact.end.failure is not None
    assert (fact.end.failure.kind, fact.charged) == ("gpu_lost", False)
    assert table.states() == {"a": "failed", "b": "failed"}


def test_what_cannot_end_by_itself_on_a_lost_card_is_ended_and_goes_elsewhere() -> None:
    table = Table(2)
    table.submit(job("a"))
    table.granted(0)
    assert report(table, 0, "lost", stops=True) == ["stop a.1 interrupted"]


def test_a_loss_reported_while_the_card_is_asked_for_sets_it_aside_when_it_comes() -> None:
    table = Table(2)
    table.submit(job("a"))
    assert report(table, 0, "lost") == ["acquire 1"]
    assert table.granted(0) == ["release 0"]


def misplaced(table: Table, what: str) -> list[str]:
    text = f"process 77 of {what} is on GPU 1, which is not its own"
    return table.on(Misplaced(attempt(what), "GPU-1", 77, text, (Hint("wrong_gpu"),)))


def test_an_attempt_on_a_card_of_others_is_ended_and_has_failed() -> None:
    table = Table(2)
    table.submit(job("a", retry=TWICE))
    table.granted(0)
    assert misplaced(table, "a.1") == ["stop a.1 interrupted"]
    assert misplaced(table, "a.1") == []
    table.ended("a.1", Interrupted(Quoted("process 77")))
    assert table.state("a") == (
        "failed: process 77 of a.1 is on GPU 1, which is not its own;"
        " not tried again: it would end in the same way"
    )
    (fact,) = [fact for fact in table.facts if isinstance(fact, AttemptEnded)]
    assert fact.end.failure is not None
    assert (fact.end.failure.kind, fact.end.failure.advice) == ("wrong_gpu", (Hint("wrong_gpu"),))
    assert table.run.ledger.attempt(attempt("a.1")).state == "failed"


def test_even_a_success_on_a_card_of_others_is_none() -> None:
    table = Table(2)
    table.submit(job("a"))
    table.granted(0)
    misplaced(table, "a.1")
    table.ended("a.1", Exited(0))
    assert table.states() == {"a": "failed"}


def test_where_only_a_warning_is_wanted_it_is_one() -> None:
    table = Table(2, pinned=False)
    table.submit(job("a"))
    table.granted(0)
    assert misplaced(table, "a.1") == []
    assert [fact for fact in table.facts if isinstance(fact, Noted)]
    table.ended("a.1", Exited(0))
    assert table.states() == {"a": "succeeded"}


def test_what_a_person_cancels_is_cancelled_wherever_it_ran() -> None:
    table = Table(2)
    table.submit(job("a"))
    table.granted(0)
    misplaced(table, "a.1")
    table.asked(Cancel(("a",)))
    table.ended("a.1", Cancelled())
    assert table.states() == {"a": "cancelled"}


# ── Cards held and not used ─────────────────────────────────────────────────────────────────────

USED_NOTHING = "used 0 % of GPU 0 for 31 min with 38 GiB held"


NO_ANSWER = "no answer at tcp:8000 within 30 min"


def idle(table: Table, what: str, ends: bool = True) -> list[str]:
    told = attempt(what), 1860.0, 38 << 30, USED_NOTHING
    return table.on(HeldIdle(*told, ends, (Hint("gpu_idle"),)))


def test_an_attempt_that_computes_nothing_is_ended_and_tried_again() -> None:
    table = Table(1)
    table.submit(job("a", retry=TWICE))
    table.granted(0)
    assert idle(table, "a.1") == ["stop a.1 interrupted"]
    assert idle(table, "a.1") == []
    table.ended("a.1", Interrupted(Quoted(USED_NOTHING), Signaled(15)))
    (fact,) = [fact for fact in table.facts if isinstance(fact, AttemptEnded)]
    assert fact.charged
    assert fact.end.failure == Failure("gpu_idle", USED_NOTHING, (Hint("gpu_idle"),))
    assert table.run.ledger.attempt(attempt("a.1")).state == "failed"
    assert table.states() == {"a": "waiting"}


def test_a_service_that_does_not_answer_in_time_has_failed_and_may_go_again() -> None:
    table = Table(1)
    table.submit(service("llm", gpus=0, retry=RetryPolicy(1)), job("a", gpus=0, needs=("llm",)))
    for number in (1, 2):
        name = f"llm.{number}"
        assert table.on(Unanswered(attempt(name), NO_ANSWER)) == [f"stop {name} interrupted"]
        table.ended(name, Interrupted(Quoted(NO_ANSWER), Signaled(15)))
        assert table.run.ledger.attempt(attempt(name)).failure == "not_ready"
    assert table.states() == {"llm": "failed", "a": "skipped"}
    assert table.state("llm") == f"failed: {NO_ANSWER}"


def test_a_service_that_has_answered_is_not_ended_for_an_answer() -> None:
    table = Table(1)
    table.submit(service("llm", gpus=0), job("a", gpus=0, needs=("llm",)))
    assert table.on(ServiceReady(attempt("llm.1"))) == ["launch a.1 on none"]
    assert table.on(Unanswered(attempt("llm.1"), NO_ANSWER)) == []


def test_without_retries_or_where_they_are_for_other_classes_it_has_failed() -> None:
    table = Table(1)
    table.submit(job("a", retry=RetryPolicy(2, frozenset({"gpu_oom"}))))
    table.granted(0)
    idle(table, "a.1")
    table.ended("a.1", Interrupted(Quoted(USED_NOTHING), Exited(0)))
    assert table.state("a") == f"failed: {USED_NOTHING}"


@pytest.mark.parametrize("outcome", [Exited(0), Exited(3)])
def test_an_idle_one_that_ended_before_it_was_told_has_ended_as_it_did(outcome: Exited) -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    idle(table, "a.1")
    table.ended("a.1", outcome)
    assert table.states() == {"a": "failed" if outcome.code else "succeeded"}
    assert table.run.ledger.attempt(attempt("a.1")).failure == ("exit" if outcome.code else None)


def test_one_that_a_person_cancels_meanwhile_is_cancelled() -> None:
    table = Table(1)
    table.submit(job("a", retry=TWICE))
    table.granted(0)
    idle(table, "a.1")
    table.asked(Cancel(("a",)))
    table.ended("a.1", Interrupted(Quoted(USED_NOTHING)))
    assert table.states() == {"a": "cancelled"}


def test_one_that_is_being_ended_already_is_left_to_that() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    table.asked(Stop(Quoted("enough")))
    assert idle(table, "a.1") == []
    table.ended("a.1", Interrupted(Quoted("enough")))
    assert table.run.ledger.attempt(attempt("a.1")).state == "interrupted"


def test_one_whose_job_has_no_limit_is_named_once_and_goes_on() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    assert idle(table, "a.1", ends=False) == []
    record = table.run.ledger.attempt(attempt("a.1"))
    assert record.idle == AttemptIdle(attempt("a.1"), 1860.0, 38 << 30)
    table.ended("a.1", Exited(0))
    assert table.states() == {"a": "succeeded"}
    assert idle(table, "a.1", ends=False) == []  # it comes too late


# ── Cards under suspicion ───────────────────────────────────────────────────────────────────────


def two_cards(*names: str, **fields: object) -> Table:
    table = Table(2)
    table.submit(*[job(name, **fields) for name in names])
    table.granted(0, 1)
    return table


def on(table: Table, card: int) -> str:
    (running,) = table.run.ledger.gpus[f"GPU-{card}"].attempts
    return str(running)


def end_on(table: Table, card: int, outcome: Outcome) -> None:
    table.ended(on(table, card), outcome)
    table.drained(card)


def test_a_card_on_which_jobs_fail_that_succeed_elsewhere_is_set_aside() -> None:
    table = two_cards(*"abcdefghijklmnopqrst")
    while table.run.ledger.gpus["GPU-0"].state != "aside":
        table.ended(on(table, 0), Exited(1))
        table.drained(0)
        end_on(table, 1, Exited(0))
    trials = [fact for fact in table.facts if isinstance(fact, JobRequeued)]
    assert [fact.name for fact in trials[:3]] == ["a", "c", "e"]
    assert job_reason(trials[0].why) == "failed on GPU 0, as 3 jobs in a row did; tried elsewhere"
    why = table.run.ledger.gpus["GPU-0"].why
    assert "different jobs failed there in a row, and 3 of them succeeded elsewhere" in card_reason(
        why
    )
    while "waiting" in table.states().values() or "running" in table.states().values():
        end_on(table, 1, Exited(0))
    assert set(table.states().values()) == {"succeeded"}, "no job is lost to a sick card"


def test_a_success_there_ends_the_suspicion() -> None:
    table = two_cards(*"abcdefghijkl")
    for outcome in (Exited(1), Exited(1), Exited(0), Exited(1), Exited(1), Exited(0)):
        end_on(table, 0, outcome)
        end_on(table, 1, Exited(0))
    assert not any(
        "elsewhere" in job_reason(record.reason) for record in table.run.ledger.jobs.values()
    )


def test_jobs_that_fail_elsewhere_as_well_clear_the_card() -> None:
    table = two_cards(*"abcdefghijklmnop")
    bad: set[str] = set()
    for _ in range(3):
        bad.add(on(table, 0)[0])
        end_on(table, 0, Exited(1))
        end_on(table, 1, Exited(0))
    while any(state in ("waiting", "running") for state in table.states().values()):
        for card in (0, 1):
            for running in list(table.run.ledger.gpus[f"GPU-{card}"].attempts):
                table.ended(str(running), Exited(1 if running.job in bad else 0))
                table.drained(card)
    assert table.run.ledger.gpus["GPU-0"].state == "free"
    assert {name for name, state in table.states().items() if state == "failed"} == bad
    assert all(len(table.run.ledger.jobs[name].attempts) == 2 for name in bad)


def test_the_last_card_is_never_put_aside_on_suspicion() -> None:
    table = Table(1)
    table.submit(*[job(name) for name in "abcdef"])
    table.granted(0)
    for name in "abcdef":
        table.ended(f"{name}.1", Exited(1))
        table.drained(0)
    assert table.run.ledger.gpus["GPU-0"].state == "free"


def test_two_jobs_that_say_they_lost_the_card_are_enough() -> None:
    table = two_cards("a", "b", "c", "d")
    failed(table, on(table, 0), "gpu_lost")
    table.drained(0)
    assert table.run.ledger.gpus["GPU-0"].state == "leased"
    failed(table, on(table, 0), "gpu_lost")
    table.drained(0)
    assert card_reason(table.run.ledger.gpus["GPU-0"].why).startswith("2 different jobs lost it")


# ── The circuit breaker ─────────────────────────────────────────────────────────────────────────


def alike(table: Table, *names: str, line: str = "No module named 'chai'") -> None:
    for name in names:
        failure = Failure("exit", f"{name}: {line}")
        table.on(Ended(attempt(f"{name}.1"), End(Exited(1), failure)))


def list_of(count: int, **options: object) -> Table:
    table = Table(0, **options)
    table.submit(*[job(f"job-{n}", gpus=0) for n in range(count)])
    return table


def test_jobs_that_fail_fast_and_alike_stop_the_run_that_nobody_watches() -> None:
    table = list_of(9, breaker=3)
    alike(table, "job-0", "job-1")
    assert table.states()["job-2"] == "running"
    alike(table, "job-2")
    assert table.states()["job-3"] == "waiting"
    assert table.run.finished
    state, reason = table.run.outcome()
    assert state == "failed"
    assert run_reason(reason).startswith(
        "3 jobs in a row failed within 60 s of their start, all in the same"
    )
    assert "No module named" in table.state("job-8")


def test_a_run_that_somebody_watches_waits_and_goes_on_when_told() -> None:
    table = list_of(9, breaker=3, patient=True)
    alike(table, "job-0", "job-1", "job-2")
    assert not table.run.finished
    assert table.state("job-3").startswith("waiting: paused: 3 jobs in a row")
    assert table.on(Asked(GoOn())) == ["launch job-3.1 on none"]
    alike(table, "job-3", "job-4")
    assert table.states()["job-5"] == "running"


def test_retry_lets_the_run_go_on_with_what_failed() -> None:
    table = list_of(4, breaker=3, patient=True)
    alike(table, "job-0", "job-1", "job-2")
    table.on(Asked(Retry(None)))
    assert table.states()["job-0"] in ("waiting", "running")
    assert table.run.ledger.paused is None


def test_the_end_of_another_pause_does_not_let_it_go_on() -> None:
    table = list_of(9, breaker=3, patient=True)
    alike(table, "job-0", "job-1")
    table.on(Asked(Pause(Quoted("the disk is full"))))
    alike(table, "job-2")
    table.on(Asked(Pause(None)))
    assert table.states()["job-3"] == "waiting"
    assert "3 jobs in a row" in run_reason(table.run.ledger.paused)


@pytest.mark.parametrize("last", ["recorder", "asked", "hours"])
def test_a_run_goes_on_once_each_that_paused_it_lets_it(last: str) -> None:
    table = list_of(2)
    for by in ("recorder", "asked", "hours"):
        table.on(Asked(Pause(Quoted(by), by)))  # type: ignore[arg-type]
    table.ended("job-0.1")
    for by in {"recorder", "asked", "hours"} - {last}:
        assert table.on(Asked(Pause(None, by)), Asked(GoOn())) == []  # type: ignore[arg-type]
    assert table.state("job-1") == f"waiting: paused: {last}"
    assert table.on(Asked(Pause(None, last))) == ["launch job-1.1 on none"]  # type: ignore[arg-type]


def test_what_a_person_ends_leaves_the_hours_of_the_run() -> None:
    table = list_of(2)
    table.on(Asked(Pause(OutsideHours(5000.0), "hours")))
    table.on(Asked(Pause(Quoted("asked for in gpulaunch top"))))
    table.ended("job-0.1")
    assert table.on(Asked(GoOn()), Asked(Pause(None))) == []
    assert "the run starts no job before" in table.state("job-1")


def test_jobs_that_fail_after_the_hours_of_the_run_count_as_before() -> None:
    table = list_of(9, breaker=2, patient=True)
    table.on(Asked(Pause(OutsideHours(5000.0), "hours")))
    table.ended("job-0.1", Exited(1))
    assert table.run._state.health.breaker._jobs == {"job-0"}


@pytest.mark.parametrize(
    "between",
    [
        lambda table: table.ended("job-2.1"),
        lambda table: table.on(
            Ended(attempt("job-2.1"), End(Exited(1), Failure("exit", "another line")))
        ),
    ],
)
def test_an_end_of_another_kind_begins_the_count_anew(between: object) -> None:
    assert callable(between)
    table = list_of(9, breaker=3)
    alike(table, "job-0", "job-1")
    between(table)
    alike(table, "job-3", "job-4")
    assert table.states()["job-5"] == "running"


def test_slow_failures_do_not_trip_it() -> None:
    table = list_of(9, breaker=3)
    for n in range(5):
        table.started(f"job-{n}.1")
        table.now += 61
        alike(table, f"job-{n}")
    assert table.states()["job-5"] == "running"


def all_end_alike(table: Table, kind: str = "exit") -> None:
    """All attempts that run now fail alike."""
    for name, state in table.states().items():
        if state == "running":
            last = table.run.ledger.jobs[name].attempts[-1].id
            table.on(Ended(last, End(Exited(1), Failure(kind, f"{name}: no luck"))))


def test_first_failures_that_are_to_be_repeated_do_not_trip_it() -> None:
    table = Table(0, breaker=3, cpus=6)
    table.submit(*[job(f"job-{n}", gpus=0, retry=RetryPolicy(1, delay=5.0)) for n in range(7)])
    all_end_alike(table)
    assert table.states()["job-6"] == "running"
    table.now += 5
    lines = table.on(*[TimerFired(Timer("retry", f"job-{n}")) for n in range(6)])
    assert len(lines) == 5
    all_end_alike(table)
    assert isinstance(table.run.outcome()[1], FailedAlike), "the repeats did not help either"


def test_failures_after_which_a_job_goes_on_with_less_do_not_trip_it() -> None:
    ladder, twice = Ladder(("batch",), (("32",), ("8",))), RetryPolicy(2, frozenset({"gpu_oom"}))
    table = Table(1, breaker=3)
    jobs = [job(f"j{n}", per_gpu=6, ladder=ladder, retry=twice) for n in range(6)]
    table.submit(*jobs)
    table.granted(0)
    all_end_alike(table, "gpu_oom")
    table.drained(0)
    assert table.states()["j0"] == "running", "with batch 8"
    table.ended("j0.2")
    assert table.drained(0) == ["launch j1.2 on 0"]


@pytest.mark.parametrize(("delay", "most"), [(0.0, 44), (5.0, 60)])
def test_a_long_list_with_retries_that_all_fail_alike_is_stopped_soon(
    delay: float, most: int
) -> None:
    table, attempts = Table(0, breaker=10, cpus=4), 0
    retry = RetryPolicy(3, delay=delay)
    table.submit(*[job(f"job-{n:03}", gpus=0, retry=retry) for n in range(1000)])
    while not table.run.finished:
        attempts += sum(state == "running" for state in table.states().values())
        table.now += 1
        all_end_alike(table)
        due = [f for f in table.facts if isinstance(f, JobDelayed)]
        table.on(*[TimerFired(Timer("retry", f.name)) for f in due[-40:] if delay])
    assert isinstance(table.run.outcome()[1], FailedAlike)
    assert 10 <= attempts <= most


def test_one_jobs_retries_do_not_trip_it() -> None:
    table = Table(0, breaker=3)
    table.submit(job("a", gpus=0, retry=RetryPolicy(9)), job("b", gpus=0))
    for number in range(1, 6):
        table.ended(f"a.{number}", Exited(1))
    assert table.run.ledger.paused is None
    assert not table.run.finished


def test_what_a_reboot_lost_does_not_trip_it() -> None:
    before = Table(0, cpus=9)
    before.submit(*[job(f"job-{n}", gpus=0) for n in range(3)])
    table = Table(0, ledger=before.run.ledger, breaker=3, cpus=9)
    table.submit(*[job(f"job-{n}", gpus=0) for n in range(3)])
    for n in range(3):
        table.ended(f"job-{n}.1", Lost(Because("unseen")))
    assert [table.states()[f"job-{n}"] for n in range(3)] == ["running"] * 3


def doubted_beside_a_long_job() -> Table:
    """`b` failed once on card 1, and is to go to card 0, where `long` runs."""
    table = Table(2)
    table.submit(job("long"), job("b", retry=RetryPolicy(3)), job("c"))
    table.granted(0, 1)
    table.started("long.1")
    failed(table, "b.1", "crash")
    table.drained(1)
    return table


def test_a_card_that_a_job_avoids_does_not_lie_idle_for_long() -> None:
    table = doubted_beside_a_long_job()
    table.ended("c.1")
    table.drained(1)
    assert table.states() == {"long": "running", "b": "waiting", "c": "succeeded"}
    assert table.timer("elsewhere/b", 120) == ["acquire 1"]
    assert table.granted(1) == ["launch b.2 on 1"]


def test_while_others_use_it_a_job_goes_on_avoiding_a_card() -> None:
    table = doubted_beside_a_long_job()
    assert table.states()["c"] == "running"
    assert table.timer("elsewhere/b", 120) == ["at 120 elsewhere/b"]
    table.ended("long.1")
    assert table.drained(0) == ["launch b.2 on 0"]


def test_a_later_retry_waits_for_its_turn() -> None:
    table = Table(1)
    table.submit(job("a", retry=TWICE))
    table.granted(0)
    lines = failed(table, "a.1", "rate_limit")
    assert "at 30 job/a" in lines
    table.drained(0)
    table.now += 30
    assert table.on(TimerFired(Timer("retry", "a"))) == ["acquire 0"]


# ── An engine that answers at once, always alike ────────────────────────────────────────────────


def launches(table: Table, lines: list[str], answer: Callable[[AttemptId], Event]) -> int:
    """How often a job is launched, at this moment, by a run that hears this of every launch."""
    count = 0
    while launched := [line.split()[1] for line in lines if line.startswith("launch")]:
        count += len(launched)
        assert count <= 20, "it is launched without end"
        lines = [line for what in launched for line in table.on(answer(attempt(what)))]
    return count


def refused(what: AttemptId) -> Ended:
    return Ended(what, End(Interrupted(Because("worker_ended"))))


def test_a_job_whose_attempts_are_all_in_vain_waits_longer_each_time() -> None:
    table = Table(0)
    assert launches(table, table.submit(job("a", gpus=0)), refused) == IN_VAIN
    for seconds in (0.5, 1, 2, 4, 8, 16, 32, 60, 60):
        assert table.run.why_waiting("a") == RetryIn(seconds)
        assert launches(table, table.timer("job/a", seconds), refused) == 1
    delays = [fact.delay for fact in table.facts if isinstance(fact, JobDelayed)]
    assert delays == [0, 0, 0, 0, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_what_ends_a_second_later_or_costs_the_job_a_retry_was_not_in_vain() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, retry=RetryPolicy(20)))
    for number in range(1, 8):
        table.now += 1.0
        assert table.on(refused(AttemptId("a", number))) == [f"launch a.{number + 1} on none"]
    for number in range(8, 16):
        assert table.ended(f"a.{number}", Exited(1)) == [f"launch a.{number + 1} on none"]


def test_a_request_starts_a_job_at_once_whose_attempts_were_in_vain() -> None:
    table = Table(0)
    launches(table, table.submit(job("a", gpus=0)), refused)
    assert table.asked(Retry(("a",))) == [f"launch a.{IN_VAIN + 1} on none"]


def test_what_is_refused_behind_an_attempt_without_an_end_is_not_launched_without_end() -> None:
    table = Table(1)
    table.submit(*(job(f"fold{n}", worker="fold") for n in range(2)))
    table.granted(0)
    assert launches(table, table.started("fold0.1"), refused) == IN_VAIN


def test_a_service_that_is_stopped_as_soon_as_it_is_launched_is_not_launched_without_end() -> None:
    table = Table(0)
    jobs = service("s", gpus=0), job("a", gpus=0, needs=("s",))
    count = launches(table, table.submit(*jobs), lambda what: Ended(what, End(Stopped(Exited(0)))))
    assert count == IN_VAIN
