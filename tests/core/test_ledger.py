from __future__ import annotations

from gpulaunch.base.wording import job_reason
from gpulaunch.core import facts as f
from gpulaunch.core.causes import Because, Quoted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Gpu, Instant, Interrupted

A1 = AttemptId("a", 1)
CARD = Gpu("n1/0", 0, "n1/0", "", 0, node="n1")


def opened(epoch: int = 1, engine: str = "slurm") -> f.RunOpened:
    return f.RunOpened("r", "r", epoch, "0", "login", "b", 1, (), engine=engine)


class History:
    """A ledger of a run whose engine queues, a second between two facts."""

    def __init__(self, *facts: f.Fact) -> None:
        self.ledger, self.now = Ledger(), 100.0
        self.add(opened(), f.JobAdded("a", 0, 1, "d"), *facts)

    def add(self, *facts: f.Fact) -> None:
        for fact in facts:
            self.now += 1
            self.ledger.apply(fact, Instant(self.now, self.now))

    @property
    def state(self) -> tuple[str, str, str]:
        job = self.ledger.jobs["a"]
        return job.state, job.attempts[-1].state, job_reason(job.reason)


LAUNCHED = f.AttemptLaunched(A1, (), queued=True)
QUEUED = f.AttemptQueued(A1, "Slurm job 12_3")
STARTED = f.AttemptStarted(A1, 7, (CARD,), "n1")


def test_a_job_waits_until_its_attempt_in_the_queue_starts() -> None:
    history = History(LAUNCHED)
    assert history.state == ("waiting", "launching", "in the queue")
    history.add(QUEUED)
    assert history.state == ("waiting", "launching", "in the queue (Slurm job 12_3)")
    assert history.ledger.jobs["a"].in_queue
    history.add(STARTED)
    assert history.state == ("running", "running", "")
    assert not history.ledger.jobs["a"].in_queue
    assert history.ledger.counts["running"] == 1


def test_an_attempt_that_the_journal_lost_is_not_waited_for() -> None:
    lost = AttemptId("lost", 1), AttemptId("a", 5), AttemptId("a", -1)
    history = History(f.AttemptLaunched(A1, (), queued=True, after=lost))
    assert history.state == ("waiting", "launching", "in the queue")
    assert history.ledger.needs_of(history.ledger.attempt(A1)) == ()


def test_a_card_is_known_from_the_first_attempt_that_started_there() -> None:
    history = History(LAUNCHED)
    assert not history.ledger.gpus
    history.add(STARTED)
    card = history.ledger.gpus["n1/0"]
    assert (card.gpu, card.state, card.attempts) == (CARD, "leased", {A1})
    record = history.ledger.attempt(A1)
    assert (record.gpus, record.node, record.pid) == (("n1/0",), "n1", 7)
    history.add(f.AttemptEnded(A1, End(Exited(0))))
    assert (card.state, card.attempts) == ("free", set())


def test_an_attempt_in_the_queue_has_no_end_on_record() -> None:
    history = History(LAUNCHED)
    assert [attempt.id for attempt in history.ledger.open_attempts()] == [A1]
    history.add(STARTED)
    assert [attempt.id for attempt in history.ledger.open_attempts()] == [A1]
    history.add(f.AttemptEnded(A1, End(Exited(0))), f.JobSettled("a", "succeeded"))
    assert history.ledger.open_attempts() == []


def test_one_that_ended_in_the_queue_never_ran() -> None:
    history = History(LAUNCHED, f.AttemptEnded(A1, End(Interrupted(Quoted("stop")))))
    assert history.ledger.open_attempts() == []
    assert history.state[0] == "running"  # what follows from its end was not recorded
    history.add(f.JobDelayed("a", Quoted("interrupted: stop")))
    assert history.state == ("waiting", "interrupted", "interrupted: stop")
    assert history.ledger.attempt(A1).seconds == 0


def test_what_the_queue_has_goes_on_when_the_supervisor_is_gone() -> None:
    history = History(LAUNCHED, STARTED)
    history.ledger.cut_off()
    assert history.state == ("running", "running", "")
    history.add(opened(2))
    assert history.ledger.gpus["n1/0"].attempts == {A1}
    history.add(f.AttemptEnded(A1, End(Exited(0))))
    assert history.ledger.gpus["n1/0"].state == "free"


def test_what_was_cut_off_is_unrecorded_until_its_job_waits_for_something_else() -> None:
    history = History(f.AttemptLaunched(A1, ()), STARTED)
    history.ledger.cut_off()
    job = history.ledger.jobs["a"]
    assert (job.state, job.unrecorded) == ("waiting", True)
    history.add(opened(2), f.JobRequeued("a", Because("taken_up")))
    assert (job.state, job.unrecorded) == ("waiting", False)


def test_another_engine_begins_without_the_cards_of_the_one_before() -> None:
    history = History(LAUNCHED, STARTED, f.AttemptEnded(A1, End(Exited(0))))
    assert history.ledger.opening.engine == "slurm"
    history.add(opened(2, "local"))
    assert history.ledger.opening.engine == "local"
    assert not history.ledger.gpus


def test_what_is_behind_another_attempt_has_no_card_until_it_begins() -> None:
    behind = f.AttemptLaunched(A1, ("GPU-0",), worker=AttemptId("b", 1), behind=AttemptId("b", 1))
    first = f.AttemptLaunched(AttemptId("b", 1), ("GPU-0",))
    history = History(f.JobAdded("b", 0, 1, "d"), first, behind)
    assert history.state == ("waiting", "launching", "is next in the worker of b")
    assert history.ledger.attempt(A1).gpus == ()
    history.add(f.AttemptStarted(A1, 7))
    assert history.state == ("running", "running", "")
    assert history.ledger.attempt(A1).gpus == ("GPU-0",)


def test_what_is_behind_another_attempt_was_not_running_when_the_run_was_cut_off() -> None:
    behind = f.AttemptLaunched(A1, ("GPU-0",), worker=AttemptId("b", 1), behind=AttemptId("b", 1))
    history = History(behind)
    history.ledger.cut_off()
    assert history.state == ("waiting", "interrupted", "")
    assert not history.ledger.jobs["a"].unrecorded
