"""An engine that queues and places by itself: who is handed over, and what its word means."""

from __future__ import annotations

import copy

import pytest

from gpulaunch.base.wording import job_reason
from gpulaunch.core import resume
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Cancel, Ended, GoOn, OutOfReach, Pause, Retry, Stop
from gpulaunch.core.facts import AttemptEnded, AttemptLaunched, AttemptQueued, AttemptStarted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    End,
    Exited,
    Failure,
    Gpu,
    Instant,
    Interrupted,
    Job,
    Lost,
    NotStarted,
    RetryPolicy,
)
from tests.core.table import Table, attempt, in_words, job, service


def queue(most: int = 100, ledger: Ledger | None = None, **options: object) -> Table:
    return Table(0, ledger, queue=most, **options)


def on(node: str, index: int) -> Gpu:
    return Gpu(f"{node}/{index}", index, f"{node}/{index}", "", 0, node=node)


def jobs(*names: str, **fields: object) -> list[Job]:
    return [job(name, **fields) for name in names]  # type: ignore[arg-type]


# ── Handing over ────────────────────────────────────────────────────────────────────────────────


def test_every_ready_job_is_handed_over_without_a_card() -> None:
    table = queue()
    lines = table.submit(*jobs("a", "b"), job("wide", gpus=8), job("none", gpus=0))
    assert lines == [f"launch {name}.1 on none" for name in ("a", "b", "wide", "none")]
    assert all(fact.queued for fact in table.facts if isinstance(fact, AttemptLaunched))


def test_jobs_go_in_the_order_in_which_they_would_start() -> None:
    table = queue()
    lines = table.submit(job("a"), job("long", cost=9.0), job("first", priority=1))
    assert lines == [f"launch {name}.1 on none" for name in ("first", "long", "a")]


def test_no_more_are_handed_over_than_may_be_at_once() -> None:
    table = queue(2)
    assert table.submit(*jobs("a", "b", "c")) == ["launch a.1 on none", "launch b.1 on none"]
    assert table.state("c") == (
        "waiting: waits for its turn: 2 attempts at once are in the queue or running"
    )
    assert table.started("b.1", on("n1", 0)) == []
    assert table.ended("b.1") == ["launch c.1 on none"]


def test_cards_that_attempts_ask_for_count_against_the_limit() -> None:
    table = queue(limit=4)
    lines = table.submit(job("a", gpus=3), job("b", gpus=2), job("c", gpus=0), job("d"))
    assert lines == ["launch a.1 on none", "launch c.1 on none", "launch d.1 on none"]
    assert table.state("b") == (
        "waiting: waits for 2 cards: the run may take 4 at once, 4 are taken or queued for"
    )
    assert table.ended("d.1") == []
    assert table.ended("a.1") == ["launch b.1 on none"]


def test_a_wide_job_is_not_overtaken_for_ever() -> None:
    table = queue(limit=2)
    names = [f"j{number}" for number in range(20)]
    lines = table.submit(job("a"), job("wide", gpus=2), *jobs(*names))
    started = running = [line.split()[1] for line in lines]
    while "wide.1" not in running:
        new = [line.split()[1] for line in table.ended(running[0])]
        running, started = [*running[1:], *new], [*started, *new]
    assert started.index("wide.1") == 5


def test_a_job_that_can_never_be_handed_over_fails_with_the_reason() -> None:
    table = queue(limit=2, limits={"msa": 1})
    table.submit(job("wide", gpus=3), job("greedy", uses=("msa", "msa")), service("db"))
    assert table.state("wide") == (
        "failed: never started: needs 3 cards at once, the run may take 2"
    )
    assert table.state("greedy") == "failed: never started: needs 2 of msa, of which there are 1"
    assert table.state("db").startswith("failed: never started: a service cannot wait in a queue")
    assert table.run.finished


def test_tokens_are_held_in_the_queue_already() -> None:
    table = queue(limits={"msa": 1})
    assert table.submit(job("a", uses=("msa",)), job("b", gpus=2, uses=("msa",))) == [
        "launch a.1 on none"
    ]
    assert table.state("b") == "waiting: waits for a token of msa (1 of 1 in use by a)"
    assert table.ended("a.1") == ["launch b.1 on none"]


def test_cpus_are_not_counted_on_machines_of_others() -> None:
    table = queue(cpus=1)
    assert len(table.submit(*jobs("a", "b", "c", gpus=0, cpus=64))) == 3


def test_jobs_that_need_others_wait_for_them() -> None:
    table = queue()
    assert table.submit(job("a"), job("b", needs=("a",))) == ["launch a.1 on none"]
    table.queued("a.1")
    assert table.ended("a.1") == ["launch b.1 on none"]


def test_a_job_in_the_queue_is_not_said_to_be_running() -> None:
    table = queue()
    table.submit(job("a"), job("b"), job("c", needs=("a", "b")))
    assert table.state("c") == "waiting: needs a, which is in the queue (and 1 more)"
    table.started("b.1", on("n1", 0), node="n1")
    assert table.state("c") == "waiting: needs b, which is running (and 1 more)"


# ── What the engine says ────────────────────────────────────────────────────────────────────────


def test_a_job_waits_in_the_queue_and_runs_where_the_engine_says() -> None:
    table = queue()
    table.submit(job("a", gpus=2))
    assert table.run.ledger.jobs["a"].state == "waiting"
    assert job_reason(table.run.why_waiting("a")) == ""  # the engine knows better
    assert table.run.with_engine("a") == attempt("a.1")
    table.queued("a.1", "Slurm job 12_3")
    assert job_reason(table.run.ledger.jobs["a"].reason) == "in the queue (Slurm job 12_3)"
    table.started("a.1", on("n2", 0), on("n2", 1), node="n2")
    assert table.run.with_engine("a") == attempt("a.1")  # which may doubt that it runs
    assert table.state("a") == "running"
    assert table.run.ledger.attempt(attempt("a.1")).gpus == ("n2/0", "n2/1")
    assert table.ended("a.1") == []
    assert table.run.with_engine("a") is None
    assert table.states() == {"a": "succeeded"}
    assert table.run.finished


def test_a_job_in_the_queue_ahead_of_its_needs_says_which_they_are() -> None:
    table = queue(ahead=True)
    table.submit(*jobs("a", "b"), job("c", needs=("a", "b")))
    assert table.run.with_engine("c") == attempt("c.1")
    assert job_reason(table.run.why_waiting("c")) == "needs a, which is in the queue (and 1 more)"
    assert (
        job_reason(table.run.ledger.why_queued(table.run.ledger.jobs["c"]))
        == "needs a, b; in the queue"
    )
    table.started("b.1", on("n1", 0), node="n1")
    table.ended("a.1")
    assert job_reason(table.run.why_waiting("c")) == "needs b, which is running"
    assert (
        job_reason(table.run.ledger.why_queued(table.run.ledger.jobs["c"]))
        == "needs b; in the queue"
    )
    table.ended("b.1")
    assert job_reason(table.run.why_waiting("c")) == ""


def test_what_is_told_twice_or_too_late_is_recorded_once() -> None:
    table = queue()
    table.submit(job("a"))
    for _ in range(2):
        table.queued("a.1")
        table.queued("b.1")
    for _ in range(2):
        table.started("a.1", on("n1", 0))
    table.queued("a.1", "Slurm job 8")
    for _ in range(2):
        table.ended("a.1")
    table.queued("a.1")
    told = [type(fact) for fact in table.facts]
    for kind in (AttemptQueued, AttemptStarted, AttemptEnded):
        assert told.count(kind) == 1


def test_an_attempt_that_the_engine_refuses_never_ran() -> None:
    table = queue()
    table.submit(job("a", retry=RetryPolicy(1)))
    assert table.ended("a.1", NotStarted("Slurm refused it")) == ["launch a.2 on none"]
    table.ended("a.2", NotStarted("Slurm refused it"))
    assert table.states() == {"a": "failed"}


def test_an_attempt_that_was_cut_short_goes_again_and_spends_no_retry() -> None:
    table = queue()
    table.submit(job("a"))
    table.started("a.1", on("n1", 0))
    assert table.ended("a.1", Interrupted(Quoted("node n1 failed"))) == ["launch a.2 on none"]
    table.queued("a.2")
    assert table.ended("a.2", Interrupted(Quoted("preempted"))) == ["launch a.3 on none"]
    assert table.run.ledger.jobs["a"].charged == 0


def test_what_nobody_can_account_for_is_tried_three_times() -> None:
    table = queue()
    table.submit(job("a"))
    assert table.ended("a.1", Lost(Quoted("Slurm forgot it"))) == ["launch a.2 on none"]
    assert table.ended("a.2", Lost(Quoted("Slurm forgot it"))) == ["launch a.3 on none"]
    table.ended("a.3", Lost(Quoted("Slurm forgot it")))
    assert table.states() == {"a": "failed"}


@pytest.mark.parametrize("kind", ["wrong_arch", "gpu_oom", "crash", "gpu_lost", "exit"])
def test_what_might_do_better_on_another_card_simply_goes_again(kind: str) -> None:
    table = queue()
    table.submit(job("a", retry=RetryPolicy(1)))
    table.started("a.1", on("n1", 0))
    seen = Failure(kind, "said so", gpus=("n1/0",))
    assert table.on(Ended(attempt("a.1"), End(Exited(1), seen))) == ["launch a.2 on none"]
    assert not table.run.job("a").demand.avoid  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["not_installed", "device_mismatch"])
def test_what_no_card_mends_is_not_tried_again(kind: str) -> None:
    table = queue()
    table.submit(job("a", retry=RetryPolicy(1)))
    table.started("a.1", on("n1", 0))
    assert table.on(Ended(attempt("a.1"), End(Exited(1), Failure(kind)))) == []
    assert "it would end in the same way" in table.state("a")


def test_a_retry_later_waits_for_its_time() -> None:
    table = queue()
    table.submit(job("a", retry=RetryPolicy(1)))
    lines = table.on(Ended(attempt("a.1"), End(Exited(1), Failure("host_oom"))))
    assert lines == ["at 30 job/a"]
    assert table.timer("job/a", 30) == ["launch a.2 on none"]


# ── What people ask ─────────────────────────────────────────────────────────────────────────────


def test_a_job_is_cancelled_in_the_queue() -> None:
    table = queue()
    table.submit(job("a"), job("b", needs=("a",)))
    table.queued("a.1")
    assert table.asked(Cancel(("a",))) == ["stop a.1 cancelled"]
    table.ended("a.1", Cancelled())
    assert table.states() == {"a": "cancelled", "b": "skipped"}


def test_a_stop_ends_what_runs_and_what_is_in_the_queue() -> None:
    table = queue(2)
    table.submit(*jobs("a", "b", "c"))
    table.started("a.1", on("n1", 0))
    assert table.asked(Stop(Quoted("Ctrl-C"))) == ["stop a.1 interrupted", "stop b.1 interrupted"]
    table.ended("a.1", Interrupted(Quoted("Ctrl-C")))
    table.ended("b.1", Interrupted(Quoted("Ctrl-C")))
    assert table.run.finished
    assert in_words(table.run.outcome()) == ("stopped", "Ctrl-C")
    assert set(table.states().values()) == {"waiting"}


def test_what_is_out_of_reach_is_left_only_where_it_is_to_end_at_once() -> None:
    table = queue()
    table.submit(*jobs("a", "b"))
    table.started("a.1", on("n1", 0))
    lost = OutOfReach(Quoted("1 attempt is still in the queue's hands"))
    for request in (None, Stop(Quoted("Ctrl-C"))):
        if request is not None:
            table.asked(request)
        table.on(lost)
        assert not table.run.finished
    table.ended("b.1", Interrupted(Quoted("Ctrl-C")))
    table.asked(Stop(Quoted("Ctrl-C"), now=True))
    assert not table.run.finished
    table.on(lost)
    assert table.run.finished
    assert table.run.outcome() == ("interrupted", lost.why)
    assert table.states() == {"a": "running", "b": "waiting"}
    table.ended("a.1", Interrupted(Quoted("Ctrl-C")))  # it told at the last moment
    assert in_words(table.run.outcome()) == ("stopped", "Ctrl-C")


def test_while_paused_nothing_is_handed_over_and_the_queue_is_held() -> None:
    table = queue(1)
    table.submit(*jobs("a", "b"))
    assert table.asked(Pause(Quoted("the disk is full"))) == ["hold"]
    assert job_reason(table.run.why_waiting("a")) == "paused: the disk is full"
    table.started("a.1", on("n1", 0))
    assert table.ended("a.1") == []
    assert table.asked(Pause(None)) == ["release", "launch b.1 on none"]


def test_the_first_failure_takes_the_others_out_of_the_queue() -> None:
    table = queue(fail_fast=True)
    table.submit(*jobs("a", "b", "c"))
    table.started("a.1", on("n1", 0))
    table.started("b.1", on("n1", 1))
    assert table.ended("a.1", Exited(1)) == ["stop c.1 interrupted"]
    table.ended("c.1", Interrupted(Quoted("--fail-fast")))
    assert not table.run.finished  # what runs may go on to its end
    table.ended("b.1")
    assert table.run.finished
    assert table.states() == {"a": "failed", "b": "succeeded", "c": "waiting"}


def test_many_alike_failures_take_the_rest_out_of_the_queue_until_somebody_says_so() -> None:
    table = queue(3, breaker=2, patient=True)
    table.submit(*jobs("a", "b", "c", "d"))
    assert table.ended("a.1", Exited(1)) == ["launch d.1 on none"]
    stops = ["stop c.1 interrupted", "stop d.1 interrupted"]
    assert table.ended("b.1", Exited(1)) == ["hold", *stops]
    table.ended("c.1", Interrupted(Quoted("2 jobs in a row")))
    table.ended("d.1", Interrupted(Quoted("2 jobs in a row")))
    assert not table.run.finished
    assert table.asked(GoOn()) == ["release", "launch c.2 on none", "launch d.2 on none"]


def test_what_failed_is_handed_over_again_when_somebody_asks() -> None:
    table = queue()
    table.submit(job("a"))
    table.ended("a.1", Exited(1))
    assert table.asked(Retry(None)) == ["launch a.2 on none"]


# ── Ahead of what is needed ─────────────────────────────────────────────────────────────────────


def chain() -> list[Job]:
    return [job("a"), job("b", needs=("a",)), job("c", needs=("b", "a"))]


def test_jobs_follow_those_that_they_need_into_the_queue() -> None:
    table = queue(ahead=True)
    assert table.submit(*chain(), job("d", after=("a",))) == [
        "launch a.1 on none",
        "launch b.1 on none after a.1",
        "launch c.1 on none after b.1 after a.1",
    ]
    assert table.ended("a.1") == ["launch d.1 on none"]
    table.started("b.1", on("n1", 0))
    assert table.ended("b.1") == []
    table.ended("c.1")
    table.ended("d.1")
    assert set(table.states().values()) == {"succeeded"}


def test_jobs_whose_need_is_half_done_follow_what_is_left_of_it() -> None:
    table = queue(1, ahead=True)
    both = job("both", needs=("a", "b"))
    assert table.submit(*jobs("a", "b"), both) == ["launch a.1 on none"]
    assert table.ended("a.1") == ["launch b.1 on none"]  # and no more than one at once
    assert table.ended("b.1") == ["launch both.1 on none"]
    table = queue(2, ahead=True)
    assert len(table.submit(*jobs("a", "b"), both)) == 2
    assert table.ended("a.1") == ["launch both.1 on none after b.1"]


def test_when_a_need_fails_what_followed_it_is_skipped_and_charged_nothing() -> None:
    table = queue(ahead=True)
    table.submit(*chain())
    assert table.ended("a.1", Exited(1)) == ["stop b.1 interrupted", "stop c.1 interrupted"]
    table.ended("c.1", Interrupted(Quoted("its dependency failed")))
    table.ended("b.1", Interrupted(Quoted("its dependency failed")))
    assert table.state("b") == "skipped: needs a, which failed"
    assert table.state("c") == "skipped: needs a, which failed"
    assert table.run.ledger.jobs["b"].charged == 0
    assert table.run.finished


def test_when_a_need_is_tried_again_what_followed_it_follows_again() -> None:
    table = queue(ahead=True)
    table.submit(job("a", retry=RetryPolicy(1)), job("b", needs=("a",)))
    assert table.ended("a.1", Exited(1)) == ["stop b.1 interrupted", "launch a.2 on none"]
    ahead = "launch b.2 on none after a.2"
    assert table.ended("b.1", Interrupted(Quoted("its dependency failed"))) == [ahead]
    assert table.ended("a.2") == []
    table.ended("b.2")
    assert table.states() == {"a": "succeeded", "b": "succeeded"}


def test_a_need_that_is_cancelled_takes_along_what_followed_it() -> None:
    table = queue(ahead=True)
    table.submit(*chain())
    assert table.asked(Cancel(("a",))) == ["stop a.1 cancelled"]
    assert len(table.ended("a.1", Cancelled())) == 2
    table.ended("b.1", Interrupted(Quoted("a did not succeed")))
    table.ended("c.1", Interrupted(Quoted("a did not succeed")))
    assert table.states() == {"a": "cancelled", "b": "skipped", "c": "skipped"}


def test_what_is_scarce_is_not_held_ahead() -> None:
    follower = job("b", needs=("a",), uses=("msa",))
    table = queue(ahead=True, limits={"msa": 1})
    assert table.submit(job("a"), follower) == ["launch a.1 on none"]
    table = queue(ahead=True, limit=4)
    assert table.submit(job("a"), job("b", needs=("a",))) == ["launch a.1 on none"]


def test_a_job_that_needs_very_many_follows_when_they_are_done() -> None:
    table = queue(ahead=True)
    names = [f"j{number}" for number in range(60)]
    lines = table.submit(*jobs(*names), job("all", needs=tuple(names)))
    assert len(lines) == 60


def test_what_went_ahead_goes_on_with_another_supervisor() -> None:
    table = queue(ahead=True)
    table.submit(*chain())
    other, lines = resumed(table, *chain(), job("new", needs=("a",)), ahead=True)
    assert lines == ["launch new.1 on none after a.1"]
    assert other.ended("a.1", Lost(Quoted("Slurm forgot it"))) == [
        "stop b.1 interrupted",
        "stop c.1 interrupted",
        "stop new.1 interrupted",
        "launch a.2 on none",
    ]


# ── Another supervisor ──────────────────────────────────────────────────────────────────────────


def resumed(
    table: Table, *again: Job, most: int = 100, **options: object
) -> tuple[Table, list[str]]:
    """The run taken up again from its ledger, by a supervisor that knows nothing else."""
    other = queue(most, copy.deepcopy(table.run.ledger), **options)
    return other, other.submit(*again)


def test_what_is_in_the_queue_or_runs_goes_on_with_another_supervisor() -> None:
    table = queue()
    names = jobs("a", "b", "c")
    table.submit(*names)
    table.queued("a.1")
    table.started("b.1", on("n1", 0))
    other, lines = resumed(table, *names)
    assert lines == []
    assert other.states() == {"a": "waiting", "b": "running", "c": "waiting"}
    other.started("a.1", on("n1", 1))
    for name in ("a.1", "b.1", "c.1"):
        assert other.ended(name) == []
    assert set(other.states().values()) == {"succeeded"}
    assert other.run.finished


def test_an_attempt_of_an_earlier_supervisor_is_judged_and_stopped_as_any_other() -> None:
    table = queue()
    names = [job("a", retry=RetryPolicy(1)), job("b"), job("c")]
    table.submit(*names)
    other, _ = resumed(table, *names, breaker=2)
    assert other.ended("a.1", Exited(1)) == ["launch a.2 on none"]
    assert other.run.ledger.jobs["a"].charged == 1
    assert other.asked(Cancel(("b",))) == ["stop b.1 cancelled"]
    assert other.asked(Stop(Quoted("Ctrl-C"))) == ["stop c.1 interrupted", "stop a.2 interrupted"]


def test_what_an_earlier_supervisor_handed_over_takes_its_share() -> None:
    table = queue(limits={"msa": 1})
    first = job("a", gpus=2, uses=("msa",))
    table.submit(first)
    rest = [job("token", uses=("msa",)), job("wide", gpus=2), job("small")]
    other, lines = resumed(table, first, *rest, most=2, limits={"msa": 1}, limit=3)
    assert lines == ["launch small.1 on none"]
    assert other.ended("a.1") == ["launch token.1 on none"]
    assert other.ended("token.1") == ["launch wide.1 on none"]


def test_a_smaller_share_than_before_holds_for_what_comes() -> None:
    table = queue(3)
    names = jobs("a", "b", "c", "d")
    table.submit(*names)
    other, lines = resumed(table, *names, most=1)
    assert lines == []
    assert [other.ended(f"{name}.1") for name in "ab"] == [[], []]
    assert other.ended("c.1") == ["launch d.1 on none"]


def test_a_job_that_the_file_lost_goes_on_and_can_be_stopped() -> None:
    table = queue()
    table.submit(job("a", gpus=2), job("b"))
    other, lines = resumed(table, job("b"), job("c", gpus=2), limit=3)
    assert lines == []  # three cards are asked for already
    assert other.asked(Cancel(("a",))) == ["stop a.1 cancelled"]
    assert other.ended("a.1", Cancelled()) == ["launch c.1 on none"]
    assert other.state("a").startswith("cancelled")


def test_all_that_is_cancelled_includes_what_the_file_lost() -> None:
    table = queue()
    table.submit(job("a"), job("b"))
    other, _ = resumed(table, job("b"))
    assert sorted(other.asked(Cancel(None))) == ["stop a.1 cancelled", "stop b.1 cancelled"]


def test_a_success_counts_for_the_definition_that_ran() -> None:
    table = queue()
    table.submit(job("a", digest="old"))
    other, lines = resumed(table, job("a", digest="new"))
    assert lines == []
    other.ended("a.1")
    assert other.run.ledger.jobs["a"].changed


def test_an_end_of_which_the_rest_was_not_recorded_is_followed_up() -> None:
    for outcome, state in ((Cancelled(), "cancelled"), (Interrupted(Quoted("stop")), "waiting")):
        table = queue()
        table.submit(job("a"))
        ledger = table.run.ledger
        ledger.apply(AttemptEnded(AttemptId("a", 1), End(outcome)), Instant(2000.0, 2000.0))
        other = queue(ledger=ledger)
        lines = other.submit(job("a"))
        assert other.states() == {"a": state}
        assert lines == ([] if state == "cancelled" else ["launch a.2 on none"])


def test_a_resume_says_what_is_under_way() -> None:
    table = queue(2)
    names = jobs("a", "b", "c")
    table.submit(*names)
    table.started("a.1", on("n1", 0))
    result = resume.resume(table.run.ledger, names)
    assert str(result) == "0 done, 2 under way, 1 again"
    assert not result.requeue
    assert not resume.resume(table.run.ledger, jobs("a")).nothing


def test_a_retry_leaves_what_is_under_way_and_hears_of_its_end() -> None:
    table = queue(2)
    names = [*jobs("a", "b")]
    table.submit(*names)
    table.ended("a.1", Exited(1))
    asked = resume.retried(table.run.ledger, names)
    chosen = resume.resume(table.run.ledger, names, asked)
    assert chosen.left == {"b"}
    other = queue(ledger=copy.deepcopy(table.run.ledger))
    assert other.submit(*names, again=["a"], left=["b"]) == ["launch a.2 on none"]
    assert other.run.with_engine("b") == attempt("b.1")
    other.ended("b.1")
    other.ended("a.2")
    assert other.states() == {"a": "succeeded", "b": "succeeded"}


# ── Tokens that the engine keeps count of ───────────────────────────────────────────────────────


def test_jobs_that_alone_use_a_token_are_handed_over_together_with_how_many_may_run() -> None:
    table = queue(limits={"msa": 2})
    lines = table.submit(*jobs("a", "b", "c", uses=("msa",)), job("other"))
    assert lines == [
        "launch a.1 on none %2",
        "launch b.1 on none %2",
        "launch c.1 on none %2",
        "launch other.1 on none",
    ]


def test_one_of_them_that_is_tried_again_waits_until_fewer_are_left_than_may_run() -> None:
    table = queue(limits={"msa": 2})
    again = RetryPolicy(1)
    table.submit(*jobs("a", "b", "c", uses=("msa",), retry=again))
    assert table.ended("a.1", Exited(1)) == []
    assert table.state("a").startswith("waiting: waits for a token of msa (2 of 2")
    assert table.ended("b.1") == ["launch a.2 on none"]


@pytest.mark.parametrize(
    "more",
    [
        [job("else", gpus=0, uses=("msa",))],
        [job("late", uses=("msa",), needs=("first",)), job("first")],
        [job("two", uses=("msa", "disk"))],
    ],
    ids=["another kind uses it", "one is not ready", "one uses another token too"],
)
def test_tokens_that_the_engine_could_not_keep_count_of_are_the_runs_own(more: list[Job]) -> None:
    table = queue(limits={"msa": 2, "disk": 9})
    lines = table.submit(*jobs("a", "b", "c", uses=("msa",)), *more)
    assert "launch a.1 on none" in lines
    assert "launch b.1 on none" in lines
    assert not any("c.1" in line or "%" in line for line in lines)


def test_a_limit_that_all_keep_to_anyway_is_nobodys_business() -> None:
    table = queue(limits={"msa": 3})
    lines = table.submit(*jobs("a", "b", "c", uses=("msa",)))
    assert lines == [f"launch {name}.1 on none" for name in "abc"]
