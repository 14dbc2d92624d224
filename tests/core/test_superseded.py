"""Which attempts nobody needs any more."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Because
from gpulaunch.core.ledger import Ledger, superseded
from gpulaunch.core.model import (
    AttemptId,
    End,
    Exited,
    Failure,
    Instant,
    Interrupted,
    NotStarted,
    Outcome,
)

AT = Instant(0.0, 0.0)
FAILED, SUCCEEDED = End(Exited(1), Failure("exit")), End(Exited(0))
CUT_SHORT = End(Interrupted(Because("taken_back")))


def ledger(*ends: End | None, started: int | None = None) -> Ledger:
    """A job whose attempts ended so (None: not yet); so many of them were started, or all."""
    made = Ledger()
    made.apply(f.JobAdded("a", 0, 0, "v1"), AT)
    for number, end in enumerate(ends, 1):
        attempt = AttemptId("a", number)
        made.apply(f.AttemptLaunched(attempt, ()), AT)
        if started is None or number <= started:
            made.apply(f.AttemptStarted(attempt, 7), AT)
        if end is not None:
            made.apply(f.AttemptEnded(attempt, end), AT)
    return made


def numbers(found: Ledger) -> list[int]:
    return [attempt.number for attempt in superseded(found)]


def test_what_failed_or_was_cut_short_is_once_a_later_attempt_began() -> None:
    assert numbers(ledger(FAILED, CUT_SHORT, SUCCEEDED)) == [1, 2]
    assert numbers(ledger(FAILED, FAILED)) == [1], "the newest says why the job failed"
    assert numbers(ledger(FAILED, None)) == [1]
    assert numbers(ledger(FAILED)) == []
    assert numbers(ledger()) == []


def test_a_success_is_never_whatever_came_after_it() -> None:
    assert numbers(ledger(SUCCEEDED, FAILED, SUCCEEDED)) == [2]


def test_an_attempt_that_never_began_supersedes_nothing() -> None:
    not_started: Outcome = NotStarted("no such directory")
    never = End(not_started, Failure("not_started"))
    assert numbers(ledger(FAILED, never, started=1)) == []
    assert numbers(ledger(FAILED, CUT_SHORT, started=1)) == [], "taken back from a queue"


def test_what_may_have_succeeded_is_kept() -> None:
    made = ledger(FAILED, SUCCEEDED)
    for number in (3, 4):
        made.apply(f.AttemptLaunched(AttemptId("a", number), ()), AT)
        made.apply(f.AttemptStarted(AttemptId("a", number), 7), AT)
    assert numbers(made) == [1], "2 succeeded, and no end of 3 is on record"
