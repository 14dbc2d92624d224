"""What an attempt's end means: again, or settled, and in which words."""

from __future__ import annotations

import pytest

from gpulaunch.base.wording import ending, job_reason
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.model import (
    Cancelled,
    Exited,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    RetryPolicy,
    Service,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.core.reasons import AttemptEnd, RetryGranted
from gpulaunch.core.retry import RetryPlacement, Settle, TryAgain, decide

TWICE = Job("a", "true", retry=RetryPolicy(2, delay=30.0))


@pytest.mark.parametrize(
    ("outcome", "failure", "reason"),
    [
        (Exited(3), "exit", "exited with status 3"),
        (Signaled(11), "signal", "killed by SIGSEGV"),
        (Signaled(9), "signal", "killed by SIGKILL"),
        (Signaled(40), "signal", "killed by signal 40"),
        (TimedOut("timeout", 7200.0), "timeout", "ran longer than its timeout of 2 h"),
        (
            TimedOut("idle_timeout", 600.0),
            "idle_timeout",
            "wrote nothing for its idle_timeout of 10 min",
        ),
        (MissingOutput(("pred.cif",)), "missing_output", "left no good output: pred.cif"),
        (
            MissingOutput(tuple("abcde")),
            "missing_output",
            "left no good output: a, b, c and 2 more",
        ),
        (NotStarted("no such file"), "not_started", "could not be started: no such file"),
    ],
)
def test_each_failure_has_a_class_and_words(outcome: Outcome, failure: str, reason: str) -> None:
    assert decide(outcome, TWICE, 2) == Settle("failed", AttemptEnd(outcome), failure, True)
    assert ending(outcome) == reason
    granted = RetryGranted(AttemptEnd(outcome), 2, 2)
    later = RetryPlacement(TWICE.demand, delay=30.0)
    assert decide(outcome, TWICE, 1) == TryAgain(later, granted, failure, True)
    assert job_reason(granted) == f"{reason}; retry 2 of 2"


def test_success_is_what_the_job_file_says() -> None:
    job = Job("a", "true", success_codes=frozenset({0, 7}))
    assert decide(Exited(7), job, 0) == Settle("succeeded")
    over = AttemptEnd(Exited(1))
    assert decide(Exited(1), job, 0) == Settle("failed", over, "exit", True)


def test_only_the_named_classes_are_tried_again() -> None:
    job = Job("a", "true", retry=RetryPolicy(2, frozenset({"timeout"})))
    assert isinstance(decide(Exited(1), job, 0), Settle)
    assert isinstance(decide(TimedOut("timeout", 1.0), job, 0), TryAgain)


def test_what_is_not_the_jobs_doing_is_not_charged() -> None:
    job = Job("a", "true")
    here = RetryPlacement(job.demand)
    drained = Interrupted(Because("gave_back"))
    assert decide(drained, job, 0) == TryAgain(here, AttemptEnd(drained))
    lost = Lost(Quoted("gone"))
    assert decide(lost, job, 0, lost=1) == TryAgain(here, AttemptEnd(lost), "lost")
    assert decide(Cancelled(), TWICE, 0) == Settle("cancelled", Because("cancelled"))
    assert decide(Stopped(), job, 0) == Settle("succeeded")


def test_a_service_that_ends_by_itself_has_failed() -> None:
    job = Job("web", "serve", service=Service("tcp:80"))
    early = AttemptEnd(Exited(0), service=True)
    assert decide(Exited(0), job, 0) == Settle("failed", early, "exit", True)
    assert job_reason(early) == "ended early: exited with status 0"
