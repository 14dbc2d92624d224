"""A history that has lost any of its facts still adds up, and never to less than was settled."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.mending import Mender
from gpulaunch.core.model import AttemptId, End, Exited, Failure, Gpu, Instant, Signaled

CARD = Gpu("GPU-0", 0, "key", "H200", 1 << 37)
A1, A2, B1, C1 = AttemptId("a", 1), AttemptId("a", 2), AttemptId("b", 1), AttemptId("c", 1)


def opened(epoch: int) -> f.RunOpened:
    return f.RunOpened("id", "fold", epoch, "0.1", "box", "boot", 7, (CARD,))


HISTORY: list[f.Fact] = [
    opened(1),
    *(f.JobAdded(name, 0, 1, "d") for name in "abcd"),
    f.GpuChanged("GPU-0", "leased"),
    f.AttemptLaunched(A1, ("GPU-0",)),
    f.AttemptStarted(A1, 99),
    f.GpuReported("GPU-0", "Xid 31", (A1,)),
    f.AttemptEnded(A1, End(Signaled(9), Failure("signal")), charged=True),
    f.JobDelayed("a", Quoted("again in 1 s"), 1.0),
    f.AttemptLaunched(A2, ("GPU-0",)),
    f.AttemptStarted(A2, 100),
    f.AttemptEnded(A2, End(Exited(0))),
    f.JobSettled("a", "succeeded"),
    f.AttemptLaunched(B1, ("GPU-0",)),
    f.AttemptStarted(B1, 101),
    f.AttemptEnded(B1, End(Exited(1), Failure("exit")), charged=True),
    f.JobSettled("b", "failed", Quoted("exited with status 1")),
    f.JobSettled("d", "skipped", Quoted("needs b, which failed")),
    f.StopAsked(Quoted("Ctrl-C")),
    f.RunClosed("stopped", None, 130),
    opened(2),
    f.JobRequeued("b", Quoted("again")),
    f.JobVanished("d"),
    f.AttemptLaunched(C1, ("GPU-0",)),
    f.AttemptStarted(C1, 102),
    f.AttemptEnded(C1, End(Exited(0))),
    f.JobSettled("c", "succeeded"),
    f.RunClosed("failed", None, 1),
]


def mended(lost: set[int], history: list[f.Fact] = HISTORY) -> tuple[Ledger, list[f.Fact]]:
    mender, facts, gap = Mender(Ledger()), list[f.Fact](), False
    for number, fact in enumerate(history):
        if number in lost:
            gap = True
            continue
        facts += mender.fit(fact, Instant(number, number), gap)
        gap = False
    facts += mender.end(Instant(99, 99))
    return mender.ledger, facts


@settings(max_examples=500)
@given(st.sets(st.integers(0, len(HISTORY) - 1)))
def test_what_is_left_adds_up_and_its_settled_jobs_are_settled(lost: set[int]) -> None:
    ledger, facts = mended(lost)
    again = Ledger()
    for fact in facts:
        again.apply(fact, Instant(0, 0))
    assert {name: job.state for name, job in again.jobs.items()} == {
        name: job.state for name, job in ledger.jobs.items()
    }
    assert ledger.counts.total() + ledger.vanished == len(ledger.jobs)
    assert min(ledger.counts.values(), default=0) >= 0
    for name, settled, end in (("a", 14, 13), ("c", 28, 27)):
        if settled not in lost or end not in lost:
            assert ledger.jobs[name].state == "succeeded"
    for job in ledger.jobs.values():
        numbers = [attempt.id.number for attempt in job.attempts]
        assert numbers == list(range(1, len(numbers) + 1))
    if len(HISTORY) - 1 not in lost:
        assert not ledger.open_attempts(), "a run that is closed has nothing under way"


def test_a_history_that_lost_nothing_is_as_it_was() -> None:
    assert mended(set())[1] == HISTORY


def test_in_a_run_that_succeeded_every_job_that_ran_did() -> None:
    history = [*HISTORY[:5], *HISTORY[6:8], f.RunClosed("succeeded")]
    ledger, _ = mended(set(), history)
    assert ledger.jobs["a"].state == "succeeded"


def test_what_became_of_an_attempt_is_unrecorded_until_its_job_is_taken_up_again() -> None:
    history = [*HISTORY[:8], f.RunClosed("stopped")]
    ledger, _ = mended(set(), history)
    a = ledger.jobs["a"]
    assert (a.state, a.unrecorded, a.attempts[-1].unrecorded) == ("waiting", True, True)
    ledger.apply(opened(2), Instant(100, 100))
    ledger.apply(f.JobRequeued("a", Because("taken_up")), Instant(100, 100))
    assert (a.state, a.unrecorded, a.attempts[-1].unrecorded) == ("waiting", False, True)


def test_an_end_on_record_whose_sequel_is_lost_leaves_the_job_alone_unrecorded() -> None:
    ended = f.AttemptEnded(A1, End(Exited(1), Failure("exit")), charged=True)
    ledger, _ = mended(set(), [*HISTORY[:8], ended, f.RunClosed("stopped")])
    a = ledger.jobs["a"]
    assert (a.state, a.unrecorded, a.attempts[-1].unrecorded) == ("waiting", True, False)


def test_what_a_queue_holds_outlives_a_run_that_is_closed() -> None:
    history: list[f.Fact] = [
        f.RunOpened("id", "fold", 1, "0.1", "box", "boot", 7, (), engine="slurm"),
        f.JobAdded("a", 0, 1, "d"),
        f.AttemptLaunched(A1, (), queued=True),
        f.AttemptStarted(A1, 1, (CARD,), "n1"),
        f.RunClosed("stopped"),
    ]
    ledger, _ = mended({2}, history)
    assert ledger.jobs["a"].goes_on
