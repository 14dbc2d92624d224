"""One run's decisions, history by history."""

from __future__ import annotations

import time
from collections import deque

from gpulaunch.base.wording import card_reason, job_reason
from gpulaunch.core.causes import Because, Quoted, ServiceEnded, SignalCaught
from gpulaunch.core.events import (
    Acquire,
    Cancel,
    Drain,
    Drained,
    DrainGpus,
    Ended,
    Event,
    GangGranted,
    GpuEvent,
    Granted,
    Launch,
    Pause,
    Retry,
    Stop,
    Submitted,
    Unending,
    Wanted,
)
from gpulaunch.core.facts import AttemptEnded, AttemptStarted, JobAdded, ServiceReady
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    Cancelled,
    End,
    Exited,
    Failure,
    Instant,
    Interrupted,
    Lost,
    RetryPolicy,
    Signaled,
    Stopped,
)
from gpulaunch.core.reasons import LeftAlive, LeftProcesses
from tests.core.check import check
from tests.core.table import Table, attempt, in_words, job, service
from tests.core.world import GIB

# ── Cards ───────────────────────────────────────────────────────────────────────────────────────


def test_one_job_from_the_asking_for_a_card_to_its_return() -> None:
    table = Table(2)
    assert table.submit(job("fold")) == ["acquire 0"]
    assert table.granted(0) == ["launch fold.1 on 0"]
    assert table.started("fold.1") == []
    assert table.ended("fold.1") == ["drain 0"]
    assert not table.run.finished
    assert table.drained(0) == ["release 0"]
    assert table.run.finished
    assert table.run.outcome() == ("succeeded", None)


def test_a_card_whose_memory_is_seen_to_be_back_serves_the_next_job_at_once() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    assert table.ended("a.1", back=[0]) == ["launch b.1 on 0"]
    assert table.ended("b.1", back=[0]) == ["release 0"]


def test_a_card_whose_memory_is_back_is_set_aside_where_its_job_lost_it() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    table.on(GpuEvent("GPU-0", 79, "Xid 79: it has fallen off the bus", "lost"))
    assert table.ended("a.1", back=[0]) == ["release 0"]
    assert table.run.ledger.gpus["GPU-0"].state == "aside"


def test_a_card_is_drained_and_kept_while_ready_jobs_can_use_it() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    assert table.ended("a.1") == ["drain 0"]
    assert table.drained(0) == ["launch b.1 on 0"]


def test_no_more_cards_are_asked_for_than_ready_jobs_can_use() -> None:
    table = Table(4)
    assert table.submit(job("a"), job("b"), job("c", needs=("a",))) == ["acquire 0", "acquire 1"]


def test_a_job_that_was_ready_before_hides_none_behind_it() -> None:
    table = Table(2)
    table.submit(job("x", gpus=0), job("a", after=("x",)), job("b", after=("x",)))
    table.asked(Pause(Quoted("the disk is full")))
    table.ended("x.1", Exited(1))
    # In one turn, so that nothing looks at the jobs that wait between the two.
    table.asked(Retry(("x",)), Cancel(("x",)))
    assert table.asked(Pause(None)) == ["acquire 0", "acquire 1"]


def test_at_most_limit_cards_are_held_at_once_and_any_will_do() -> None:
    table = Table(3, limit=1)
    assert table.submit(job("a"), job("b")) == ["acquire 0"]
    assert table.elsewhere(0) == ["acquire 1"]
    assert table.granted(1) == ["launch a.1 on 1"]


def test_a_card_elsewhere_is_waited_for_without_polling() -> None:
    table = Table(1)
    table.submit(job("a"))
    assert table.elsewhere(0) == []
    assert table.state("a") == (
        "waiting: waits for a card: GPU 0 is held by run fold of alice (pid 7)"
    )
    assert table.freed(0) == ["acquire 0"]


def test_a_card_in_strangers_use_is_looked_at_from_2_to_15_seconds_apart() -> None:
    table = Table(1)
    table.submit(job("a"))
    for pause in ("2", "4", "8", "15", "15"):
        assert table.occupied(0) == [f"at {pause} gpu/0"]
        assert table.timer("gpu/GPU-0", float(pause)) == ["acquire 0"]
    assert table.granted(0) == ["launch a.1 on 0"]


def test_a_sick_card_is_set_aside_and_what_needs_it_fails_rather_than_waits() -> None:
    table = Table(2)
    table.submit(job("pair", gpus=2), job("one"))
    table.granted(0)
    assert table.sick(1) == ["launch one.1 on 0"]
    assert table.state("pair") == (
        "failed: never started: needs 2 cards at once, the run has 1; "
        "GPU 1 was set aside: fell off the bus"
    )


def test_a_card_whose_memory_does_not_come_back_is_set_aside() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    table.ended("a.1")
    assert table.sick(0) == []
    assert table.state("b").startswith("failed: never started: needs a card, none is left")
    assert table.run.finished


def test_a_wanted_card_is_handed_over_though_jobs_are_ready_and_asked_for_again() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    table.on(Wanted("GPU-0", True))
    table.ended("a.1")
    assert table.drained(0) == ["at 1 gpu/0", "release 0"]
    assert table.timer("gpu/GPU-0", 1.0) == ["acquire 0"]
    table.elsewhere(0)
    assert table.freed(0) == ["acquire 0"]
    assert table.granted(0) == ["launch b.1 on 0"]


def test_a_card_no_longer_wanted_is_kept() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    table.on(Wanted("GPU-0", True))
    table.on(Wanted("GPU-0", False))
    table.ended("a.1")
    assert table.drained(0) == ["launch b.1 on 0"]


def test_sharing_is_among_jobs_that_say_the_same_and_at_most_so_many() -> None:
    table = Table(1)
    table.submit(*(job(f"s{n}", per_gpu=2) for n in range(3)), job("alone"))
    assert table.granted(0) == ["launch s0.1 on 0", "launch s1.1 on 0"]
    assert table.ended("s0.1") == ["launch s2.1 on 0"], "no drain while another job is on it"
    assert table.ended("s1.1") == []
    assert table.ended("s2.1") == ["drain 0"]
    assert table.drained(0) == ["launch alone.1 on 0"]


def test_jobs_that_share_through_mps_share_with_no_others() -> None:
    table = Table(1)
    table.submit(job("a", per_gpu=2, mps=True), job("b", per_gpu=2), job("c", per_gpu=2, mps=True))
    assert table.granted(0) == ["launch a.1 on 0", "launch c.1 on 0"]
    assert table.ended("a.1") == []
    assert table.ended("c.1") == ["drain 0"]
    assert table.drained(0) == ["launch b.1 on 0"]


def test_promised_memory_counts_against_a_shared_card() -> None:
    table = Table(1)
    table.submit(*(job(f"m{n}", per_gpu=3, gpu_memory=30 * GIB) for n in range(3)))
    assert table.granted(0) == ["launch m0.1 on 0", "launch m1.1 on 0"]


def test_a_card_with_too_little_free_memory_is_released_and_looked_at_later() -> None:
    table = Table(1)
    table.submit(job("big", gpu_memory=20 * GIB))
    assert table.granted(0, free=12 * GIB) == ["release 0", "at 2 gpu/0"]
    assert table.state("big") == (
        "waiting: waits for a card with 20 GiB free: GPU 0 has 12 GiB free"
    )
    assert table.timer("gpu/GPU-0", 2) == ["acquire 0"]
    assert table.granted(0, free=12 * GIB) == ["release 0", "at 4 gpu/0"]
    table.timer("gpu/GPU-0", 4)
    assert table.granted(0, free=30 * GIB) == ["launch big.1 on 0"]


def test_a_wide_job_with_too_little_memory_on_one_card_says_so() -> None:
    table = Table(3)
    table.submit(job("pair", gpus=2, gpu_memory=79 * GIB))
    table.granted(0, free=80 * GIB)
    table.granted(1, free=12 * GIB)
    table.occupied(2)
    assert table.state("pair") == (
        "waiting: waits for 2 cards with 79 GiB free each: GPU 0 has 80 GiB free, "
        "GPU 1 has 12 GiB free, GPU 2 is in use: user bob (pid 123)"
    )


def test_spans_in_reasons_go_on_between_events() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    later = Instant(table.now + 75, table.now + 75)
    said = "waits for a card: GPU 0 is busy with a "
    assert job_reason(table.run.why_waiting("b")) == said + "(0:00)"
    assert job_reason(table.run.why_waiting("b", later)) == said + "(1:15)"


def test_many_busy_cards_are_said_in_one_phrase() -> None:
    table = Table(8)
    table.submit(*[job(f"w-{n}") for n in range(8)], job("late"))
    for gpu in range(8):
        table.granted(gpu)
    later = Instant(table.now + 75, table.now + 75)
    assert job_reason(table.run.why_waiting("late", later)) == (
        "waits for a card: GPUs 0-7 are busy with w-0, w-1, w-2 and 5 more (1:15)"
    )


def test_cards_of_which_the_same_is_to_be_said_are_told_together() -> None:
    table = Table(6)
    table.submit(job("a"), job("b"), job("c"), job("wide", gpus=6))
    table.granted(0)
    table.granted(2)
    for gpu in (1, 3, 4, 5):
        table.occupied(gpu)
    assert job_reason(table.run.why_waiting("wide")) == (
        "waits for 6 cards: GPUs 0, 2 are busy with a, b (0:00); "
        "GPUs 1, 3-5 are in use: user bob (pid 123)"
    )


def test_more_memory_than_any_card_has_can_never_be_given() -> None:
    table = Table(1)
    assert table.submit(job("huge", gpu_memory=100 * GIB)) == []
    assert table.state("huge").startswith("failed: never started")


# ── Wide jobs ───────────────────────────────────────────────────────────────────────────────────


def test_a_wide_job_takes_all_its_cards_or_none() -> None:
    table = Table(2)
    assert table.submit(job("pair", gpus=2)) == ["acquire 0", "acquire 1"]
    assert table.granted(0) == []
    assert table.granted(1) == ["launch pair.1 on 0 1"]


def test_cards_taken_for_a_wide_job_are_released_when_another_is_refused() -> None:
    table = Table(2)
    table.submit(job("pair", gpus=2))
    table.granted(0)
    assert table.elsewhere(1) == ["release 0", "gather True"]
    assert table.on(GangGranted()) == ["acquire 0"]
    assert table.granted(0) == ["at 45 gather"], "now it may keep the card idle"
    assert table.on(Wanted("GPU-0", True)) == []
    assert table.freed(1) == ["acquire 1"]
    assert table.granted(1) == ["launch pair.1 on 0 1", "gather False"]


def test_a_gatherer_in_vain_lets_go_after_a_while() -> None:
    table = Table(2)
    table.submit(job("pair", gpus=2))
    table.granted(0)
    table.elsewhere(1)
    table.on(GangGranted())
    table.granted(0)
    assert table.timer("gather", 44) == []
    assert table.timer("gather", 1) == ["gather False", "at 13.4 gather", "release 0"]
    assert table.timer("gather", 15) == ["gather True"]


def test_a_wide_job_is_not_overtaken_for_ever() -> None:
    table = Table(2)
    ones = [job(f"one{n:02}", priority=0) for n in range(40)]
    table.submit(job("seed"), job("pair", gpus=2, needs=("seed",)), *ones)
    started = table.granted(0, 1)
    live = [line.split()[1] for line in started if line.startswith("launch")]
    history = list(live)
    for _ in range(40):
        if "pair.1" in history:
            break
        lines = table.ended(live.pop(0))
        if "gather True" in lines:
            lines += table.on(GangGranted())
        for line in list(lines):
            if line.startswith("drain"):
                more = table.drained(int(line.split()[1]))
                lines += more + (table.on(GangGranted()) if "gather True" in more else [])
        fresh = [line.split()[1] for line in lines if line.startswith("launch")]
        live += fresh
        history += fresh
    assert "pair.1" in history, "it never started"
    assert history.index("pair.1") <= 2 + 2 * 2 + 2, history


def test_two_wide_jobs_do_not_keep_cards_from_each_other() -> None:
    table = Table(3)
    assert len(table.submit(job("p", gpus=2), job("q", gpus=2))) == 2
    assert table.granted(0, 1) == ["launch p.1 on 0 1"]
    table.ended("p.1")
    table.drained(0)
    lines = table.drained(1)
    while "launch q.1 on 0 1" not in lines and any("acquire" in line for line in lines):
        lines = [x for a in lines if "acquire" in a for x in table.granted(int(a.split()[1]))]
    assert any(line.startswith("launch q.1") for line in lines)


def test_a_job_that_wants_a_card_alone_is_not_overtaken_for_ever_by_sharing_ones() -> None:
    table = Table(1)
    sharing = [job(f"s{n:02}", per_gpu=2, cost=1.0) for n in range(2)]
    later = [job(f"t{n:02}", per_gpu=2) for n in range(30)]
    table.submit(*sharing, job("alone"), *later)
    table.granted(0)
    live, overtaken = ["s00.1", "s01.1"], 0
    while live:
        lines = table.ended(live.pop(0))
        for line in list(lines):
            lines += table.drained(0) if line == "drain 0" else []
        if "launch alone.1 on 0" in lines:
            break
        fresh = [line.split()[1] for line in lines if line.startswith("launch")]
        overtaken += len(fresh)
        live += fresh
    assert "alone.1" in str(table.run.ledger.jobs["alone"].attempts[0].id)
    assert overtaken <= 3


# ── Jobs without cards, tokens, order ───────────────────────────────────────────────────────────


def test_jobs_without_cards_stay_within_the_allowed_cpus() -> None:
    table = Table(0, cpus=2)
    jobs = [job("a", gpus=0), job("b", gpus=0), job("c", gpus=0)]
    assert table.submit(*jobs) == ["launch a.1 on none", "launch b.1 on none"]
    assert table.state("c") == "waiting: waits for 1 CPU; 2 of 2 are in use"
    assert table.ended("a.1") == ["launch c.1 on none"]


def test_a_job_that_wants_more_cpus_than_allowed_runs_alone() -> None:
    table = Table(0, cpus=2)
    table.submit(job("a", gpus=0), job("greedy", gpus=0, cpus=9), job("b", gpus=0))
    assert table.states() == {"a": "running", "greedy": "waiting", "b": "running"}
    table.ended("a.1")
    assert table.ended("b.1") == ["launch greedy.1 on none"]


def test_a_greedy_job_is_not_overtaken_for_ever() -> None:
    table = Table(1, cpus=2)
    table.submit(job("z", gpus=0), job("greedy", gpus=0, cpus=2),
                 *(job(f"a{n}", gpus=0) for n in range(30)))  # fmt: skip
    live, count = ["z.1", "a0.1"], 0
    while table.states()["greedy"] == "waiting":
        live += [line.split()[1] for line in table.ended(live.pop(0))]
        count += 1
        assert count < 10


def test_a_card_job_is_never_held_back_by_cpus() -> None:
    table = Table(1, cpus=1)
    assert table.submit(job("cpu", gpus=0), job("card", cpus=64)) == [
        "launch cpu.1 on none",
        "acquire 0",
    ]
    assert table.granted(0) == ["launch card.1 on 0"]


def test_tokens_are_held_while_a_job_runs() -> None:
    table = Table(2, limits={"msa_server": 1})
    table.submit(job("fold-a", uses=("msa_server",)), job("fold-b", uses=("msa_server",)))
    table.granted(0)
    assert table.state("fold-b") == (
        "waiting: waits for a token of msa_server (1 of 1 in use by fold-a)"
    )
    table.ended("fold-a.1")
    assert table.drained(0) == ["launch fold-b.1 on 0"]


def test_more_tokens_than_there_are_can_never_be_given() -> None:
    table = Table(1, limits={"t": 1})
    table.submit(job("a", uses=("t", "t")))
    assert table.state("a") == "failed: never started: needs 2 of t, of which there are 1"


def test_the_order_is_priority_then_cost_then_the_file() -> None:
    table = Table(1)
    table.submit(job("a"), job("b", cost=5.0), job("c", priority=1), job("d"))
    order = [table.granted(0)]
    for name in ("c.1", "b.1", "a.1"):
        table.ended(name)
        order.append(table.drained(0))
    assert [lines[0].split()[1] for lines in order] == ["c.1", "b.1", "a.1", "d.1"]


# ── Needs and after ─────────────────────────────────────────────────────────────────────────────


def test_a_failure_skips_what_needs_it_and_not_what_comes_after_it() -> None:
    table = Table(0, cpus=8)
    table.submit(
        job("a", gpus=0),
        job("b", gpus=0, needs=("a",)),
        job("c", gpus=0, needs=("b",)),
        job("d", gpus=0, after=("a", "c")),
    )
    assert table.state("b") == "waiting: needs a, which is running"
    assert table.state("d") == "waiting: comes after a, which is running (and 1 more)"
    assert table.ended("a.1", Exited(3)) == ["launch d.1 on none"]
    assert table.state("a") == "failed: exited with status 3"
    assert table.state("b") == "skipped: needs a, which failed"
    assert table.state("c") == "skipped: needs b, which was skipped"
    table.ended("d.1")
    assert table.run.finished
    assert table.run.outcome()[0] == "failed"


def test_a_need_that_waits_for_its_retry_has_not_failed() -> None:
    table = Table(0)
    policy = RetryPolicy(times=1, delay=30.0)
    table.submit(job("a", gpus=0, retry=policy), job("b", gpus=0, after=("a",)))
    assert table.ended("a.1", Signaled(11)) == ["at 30 job/a"]
    assert table.state("a") == "waiting: retries in 30 s"
    assert job_reason(table.run.ledger.jobs["a"].reason) == "killed by SIGSEGV; retry 1 of 1"
    assert table.timer("job/a", 30) == ["launch a.2 on none"]
    assert table.ended("a.2", Signaled(11)) == ["launch b.1 on none"]
    assert table.state("a") == "failed: killed by SIGSEGV"


def test_a_chain_of_20000_needs_is_skipped_without_recursion() -> None:
    table = Table(0)
    chain = [job(f"j{n}", gpus=0, needs=(f"j{n - 1}",) if n else ()) for n in range(20_000)]
    table.submit(*chain)
    table.ended("j0.1", Exited(1))
    assert table.states()["j19999"] == "skipped"
    assert table.run.finished


def test_a_need_that_is_not_in_the_file_never_hangs_the_run() -> None:
    table = Table(1)
    table.submit(job("a", needs=("ghost",)))
    assert table.state("a") == "skipped: needs ghost, which is not in the job file"


# ── Attempts ────────────────────────────────────────────────────────────────────────────────────


def test_interrupted_and_lost_attempts_spend_no_retry() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0, retry=RetryPolicy(1)))
    assert table.ended("a.1", Interrupted(Quoted("drain"))) == ["launch a.2 on none"]
    assert table.ended("a.2", Lost(Quoted("gone"))) == ["launch a.3 on none"]
    assert table.ended("a.3", Exited(1)) == ["launch a.4 on none"]
    table.ended("a.4", Exited(1))
    assert table.state("a") == "failed: exited with status 1"


def test_three_lost_in_a_row_are_a_failure() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0))
    for number in (1, 2, 3):
        table.ended(f"a.{number}", Lost(Because("unseen")))
    assert table.state("a") == "failed: lost: nobody saw its end, 3 times in a row"


def test_stale_events_are_ignored() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    assert table.granted(0) == []
    table.ended("a.1")
    assert table.ended("a.1", Exited(9)) == []
    assert table.started("a.1") == []
    assert table.drained(0) == ["release 0"]
    assert table.drained(0) == []
    assert table.freed(0) == []
    assert (
        table.timer("gpu/GPU-0", 1) == table.timer("job/a", 1) == table.timer("gpu/none", 1) == []
    )
    assert table.states() == {"a": "succeeded"}


# ── Services ────────────────────────────────────────────────────────────────────────────────────


def test_a_service_starts_with_its_first_dependant_and_stops_with_its_last() -> None:
    table = Table(2)
    table.submit(service("web"), job("prep", gpus=0), job("ask", needs=("web", "prep")))
    assert table.states()["web"] == "waiting", "nothing is ready to use it"
    assert table.ended("prep.1") == ["acquire 0"]
    assert table.granted(0) == ["launch web.1 on 0"]
    assert table.state("ask") == "waiting: waits for its service web to be ready"
    assert table.on(ServiceReady(attempt("web.1"))) == ["acquire 1"]
    assert table.granted(1) == ["launch ask.1 on 1"]
    assert table.ended("ask.1") == ["drain 1", "stop web.1 stopped"]
    table.drained(1)
    assert table.ended("web.1", Stopped(Signaled(15))) == ["drain 0"]
    table.drained(0)
    assert table.run.finished
    assert in_words(table.run.outcome()) == ("succeeded", "")


def test_a_services_early_end_fails_what_runs_and_skips_what_waits() -> None:
    table = Table(0, cpus=9)
    table.submit(
        service("web", gpus=0),
        job("ask", gpus=0, needs=("web",)),
        job("next", gpus=0, needs=("web", "ask")),
    )
    table.on(ServiceReady(attempt("web.1")))
    assert table.ended("web.1", Exited(0)) == ["stop ask.1 interrupted"]
    assert table.state("web") == "failed: ended early: exited with status 0"
    assert table.state("next") == "skipped: needs web, which failed"
    table.ended("ask.1", Interrupted(Quoted("x")))
    assert table.state("ask") == (
        "failed: its service web failed: ended early: exited with status 0"
    )


def test_a_service_that_is_tried_again_takes_its_dependants_along() -> None:
    table = Table(0, cpus=9)
    table.submit(service("web", gpus=0, retry=RetryPolicy(1)), job("ask", gpus=0, needs=("web",)))
    table.on(ServiceReady(attempt("web.1")))
    assert table.ended("web.1", Exited(1)) == ["stop ask.1 interrupted"]
    assert table.ended("ask.1", Interrupted(Quoted("x"))) == ["launch web.2 on none"]
    assert table.on(ServiceReady(attempt("web.2"))) == ["launch ask.2 on none"]


def with_a_client(retries: int = 1, **fields: object) -> Table:
    """A service that answers, with a client that runs on a card."""
    table = Table(1, cpus=9)
    web = service("web", gpus=0, retry=RetryPolicy(retries))
    table.submit(web, job("ask", needs=("web",), **fields))
    table.on(ServiceReady(attempt("web.1")))
    table.granted(0)
    return table


def test_a_client_that_failed_just_before_its_services_end_is_interrupted_by_it() -> None:
    table = with_a_client()
    assert table.ended("ask.1", Exited(1)) == ["at 3 verdict/ask.1"]
    assert table.states()["ask"] == "running", "the service may be about to end"
    assert table.ended("web.1", Signaled(11)) == ["drain 0", "launch web.2 on none"]
    record = table.run.ledger.jobs["ask"]
    assert (record.state, record.charged) == ("waiting", 0)
    by = ServiceEnded("web", None, 11)
    assert record.attempts[0].end.outcome == Interrupted(by, Exited(1))
    table.drained(0)
    assert table.on(ServiceReady(attempt("web.2"))) == ["acquire 0"]


def test_a_client_that_fails_after_its_services_end_is_interrupted_by_it_too() -> None:
    table = with_a_client()
    assert table.ended("web.1", Signaled(11)) == ["stop ask.1 interrupted"]
    table.ended("ask.1", Exited(1))
    assert (table.states()["ask"], table.run.ledger.jobs["ask"].charged) == ("waiting", 0)


def test_a_client_whose_service_goes_on_has_failed_in_the_end() -> None:
    table = with_a_client(retry=RetryPolicy(1))
    table.ended("ask.1", Exited(1))
    assert table.timer("verdict/ask.1", 2.9) == [], "a timer that comes early decides nothing"
    assert table.timer("verdict/ask.1", 0.1) == ["drain 0"]
    record = table.run.ledger.jobs["ask"]
    assert (record.state, record.charged) == ("waiting", 1)
    assert record.attempts[0].failure == "exit"


def test_a_client_fails_once_its_service_has_ended_for_good() -> None:
    table = with_a_client(retries=0)
    table.ended("ask.1", Exited(1))
    table.ended("web.1", Signaled(11))
    assert table.state("ask") == "failed: its service web failed: ended early: killed by SIGSEGV"


def test_a_client_that_crashes_its_service_each_time_is_bounded_by_the_services_retries() -> None:
    table, attempts = with_a_client(retries=2), 1
    while table.states()["ask"] != "failed":
        table.ended(f"ask.{attempts}", Exited(1))
        table.ended(f"web.{attempts}", Signaled(11))
        table.drained(0)
        attempts += 1
        table.on(ServiceReady(attempt(f"web.{attempts}")))
        table.granted(0)
    assert table.states() == {"web": "failed", "ask": "failed"}
    assert len(table.run.ledger.jobs["ask"].attempts) == 3


def test_a_held_failure_is_judged_at_once_when_somebody_cancels_the_job_or_stops_the_run() -> None:
    for request, state in ((Cancel(("ask",)), "cancelled"), (Stop(SignalCaught("x")), "failed")):
        table = with_a_client()
        table.ended("ask.1", Exited(1))
        table.asked(request)
        assert table.states()["ask"] == state


def test_a_failure_that_no_service_brings_about_is_judged_at_once() -> None:
    table = with_a_client()
    table.on(Ended(attempt("ask.1"), End(Exited(1), Failure("gpu_oom"))))
    assert table.states()["ask"] == "failed"


def test_a_success_beside_a_service_is_not_held() -> None:
    table = with_a_client()
    assert table.ended("ask.1") == ["drain 0", "stop web.1 stopped"]


def test_two_services_do_not_keep_each_others_dependants_from_the_last_card() -> None:
    table = Table(2)
    table.submit(service("web"), service("api"), job("a", needs=("web",)), job("b", needs=("api",)))
    assert table.granted(0) == ["launch web.1 on 0"]
    assert table.states()["api"] == "waiting"
    table.on(ServiceReady(attempt("web.1")))
    assert table.granted(1) == ["launch a.1 on 1"]


def test_a_service_nobody_needs_runs_until_the_others_have_ended() -> None:
    table = Table(0, cpus=9)
    assert table.submit(service("board", gpus=0), job("a", gpus=0)) == [
        "launch board.1 on none",
        "launch a.1 on none",
    ]
    assert table.ended("a.1") == ["stop board.1 stopped"]
    table.ended("board.1", Stopped())
    assert in_words(table.run.outcome()) == ("succeeded", "")


def test_a_service_is_run_again_for_a_retried_job() -> None:
    table = Table(0, cpus=9)
    table.submit(service("web", gpus=0), job("ask", gpus=0, needs=("web",)))
    table.on(ServiceReady(attempt("web.1")))
    table.ended("ask.1", Exited(1))
    assert table.timer("verdict/ask.1", 3.0) == ["stop web.1 stopped"]
    assert table.asked(Retry(None)) == []
    assert table.ended("web.1", Stopped()) == ["launch web.2 on none"]
    assert table.on(ServiceReady(attempt("web.2"))) == ["launch ask.2 on none"]


def test_a_service_that_leaves_no_card_for_its_dependant_fails_it_in_the_end() -> None:
    table = Table(1)
    table.submit(service("web"), job("ask", needs=("web",)), job("other"))
    table.granted(0)
    assert table.states()["other"] == "running"
    table.ended("other.1")
    table.drained(0)
    assert table.state("ask").startswith("failed: never started: it does not fit")
    assert table.run.finished


# ── What people ask ─────────────────────────────────────────────────────────────────────────────


def test_stop_before_first_launch_is_not_lost() -> None:
    table = Table(1)
    table.submit(job("a"))
    assert table.asked(Stop(SignalCaught("SIGINT"))) == []
    assert table.granted(0) == ["release 0"]
    assert table.run.finished
    assert in_words(table.run.outcome()) == ("stopped", "Ctrl-C")
    assert table.state("a") == "waiting: not started: stopped by Ctrl-C"


def test_stop_interrupts_and_a_second_one_kills() -> None:
    table = Table(2)
    table.submit(job("a"), job("b"))
    table.granted(0, 1)
    assert table.asked(Stop(Quoted("Ctrl-C"))) == ["stop a.1 interrupted", "stop b.1 interrupted"]
    assert table.ended("a.1", Interrupted(Quoted("Ctrl-C"))) == ["drain 0"]
    assert table.drained(0) == ["release 0"]
    assert table.asked(Stop(Quoted("Ctrl-C"), now=True)) == ["stop b.1 interrupted now"]
    assert table.ended("b.1", Interrupted(Quoted("Ctrl-C"))) == ["release 1"]
    assert table.run.finished
    assert table.states() == {"a": "waiting", "b": "waiting"}


def test_a_stop_does_not_wait_for_what_cannot_be_killed() -> None:
    table = Table(2)
    table.submit(job("a"), job("b"), job("c"))
    table.granted(0, 1)
    table.on(Unending(attempt("a.1"), (42,)))
    assert not table.run.finished, "nobody asked it to end"
    table.asked(Stop(Quoted("Ctrl-C")))
    assert not table.run.finished, "b.1 can end"
    table.ended("b.1", Interrupted(Quoted("Ctrl-C")))
    assert not table.run.finished, "its card is held still"
    table.drained(1)
    assert table.run.finished
    left = LeftAlive((LeftProcesses(attempt("a.1"), (42,), (0,)),))
    assert table.run.outcome() == ("interrupted", left)
    table.ended("a.1", Interrupted(Quoted("Ctrl-C")))  # gone at the last moment
    assert in_words(table.run.outcome()) == ("stopped", "Ctrl-C")


def test_what_was_cancelled_and_cannot_be_killed_holds_up_only_what_is_to_come() -> None:
    table = Table(2)
    table.submit(job("a"), job("b"))
    table.granted(0, 1)
    table.asked(Cancel(("a",)))
    table.on(Unending(attempt("a.1"), (42,)))
    assert not table.run.finished
    table.ended("b.1", back=[1])
    assert table.run.finished
    assert table.run.outcome()[0] == "interrupted"


def test_an_idle_worker_that_cannot_be_killed_holds_up_no_stop() -> None:
    table = Table(2)
    table.submit(job("a", worker="w"), job("c"), job("b", worker="w", after=("c",)))
    table.granted(0, 1)
    table.ended("a.1", kept=True)
    assert "end worker a.1" in table.asked(Stop(Quoted("Ctrl-C")))
    table.ended("c.1", Interrupted(Quoted("Ctrl-C")), back=[1])
    assert not table.run.finished
    table.on(Unending(attempt("a.1"), (42,)))
    assert table.run.finished
    left = LeftAlive((LeftProcesses(attempt("a.1"), (42,), (0,)),))
    assert table.run.outcome() == ("interrupted", left)


def test_a_job_that_succeeds_while_it_is_stopped_has_succeeded() -> None:
    table = Table(0)
    table.submit(job("a", gpus=0))
    table.asked(Stop(Quoted("Ctrl-C")))
    table.ended("a.1", Exited(0))
    assert in_words(table.run.outcome()) == ("succeeded", "")


def test_cancel_ends_waiting_and_running_jobs_for_good() -> None:
    table = Table(1)
    table.submit(job("a", retry=RetryPolicy(5)), job("b"), job("c", needs=("b",)))
    table.granted(0)
    assert table.asked(Cancel(("a", "b"))) == ["stop a.1 cancelled"]
    table.ended("a.1", Cancelled(Signaled(15)))
    assert table.states() == {"a": "cancelled", "b": "cancelled", "c": "skipped"}


def test_retry_requeues_what_failed_and_what_was_skipped_because_of_it() -> None:
    table = Table(0, cpus=9)
    table.submit(
        job("a", gpus=0), job("b", gpus=0, needs=("a",)), job("x", gpus=0), job("y", gpus=0)
    )
    table.ended("a.1", Exited(1))
    table.ended("x.1")
    table.asked(Cancel(("y",)))
    table.ended("y.1", Cancelled())
    assert table.asked(Retry(None)) == ["launch a.2 on none"]
    assert table.states() == {"a": "running", "b": "waiting", "x": "succeeded", "y": "cancelled"}
    assert table.asked(Retry(("y",))) == ["launch y.2 on none"]


def test_a_retry_counts_a_delayed_job_once_whatever_it_comes_after() -> None:
    table = Table(0, cpus=2)
    table.submit(job("a", gpus=0), job("b", gpus=0, after=("a",), retry=RetryPolicy(1, delay=30.0)))
    table.ended("a.1", Exited(1))
    table.ended("b.1", Exited(1))
    assert table.asked(Retry(("a", "b"))) == ["launch a.2 on none"]
    assert table.ended("a.2") == ["launch b.2 on none"]
    table.ended("b.2")
    assert table.run.finished


def test_drain_gives_cards_back_and_off_takes_them_again() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    assert table.asked(DrainGpus(None)) == []
    table.ended("a.1")
    assert table.drained(0) == ["release 0"]
    assert table.state("b") == (
        "waiting: waits for a card: GPU 0 was given back by a person (drain)"
    )
    assert not table.run.finished
    assert table.asked(DrainGpus(None, off=True)) == ["acquire 0"]


def test_drain_now_interrupts_and_the_job_goes_on_elsewhere() -> None:
    table = Table(2)
    table.submit(job("a"))
    table.granted(0)
    assert table.asked(DrainGpus(("GPU-0",), now=True)) == ["stop a.1 interrupted"]
    assert table.ended("a.1", Interrupted(Quoted("drain"))) == ["drain 0", "acquire 1"]
    assert table.granted(1) == ["launch a.2 on 1"]


def test_pause_starts_nothing_until_it_is_over() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.asked(Pause(Quoted("the disk is full")))
    assert table.granted(0) == ["release 0"]
    assert table.state("a") == "waiting: paused: the disk is full"
    assert table.asked(Pause(None)) == ["acquire 0"]


def test_a_job_that_a_stop_interrupted_is_not_said_never_to_have_started() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    table.started("a.1")
    table.asked(Stop(SignalCaught("SIGHUP")))
    table.ended("a.1", Interrupted(SignalCaught("SIGHUP")))
    stop = "stopped by SIGHUP (the terminal closed)"
    assert table.state("a") == f"waiting: was started, and is not started again: {stop}"
    assert table.state("b") == f"waiting: not started: {stop}"


def test_fail_fast_lets_running_jobs_finish_and_starts_nothing_more() -> None:
    table = Table(2, fail_fast=True)
    table.submit(job("fold-1"), job("fold-2"), job("fold-3"))
    table.granted(0, 1)
    table.ended("fold-2.1", Exited(1))
    assert table.drained(1) == ["release 1"]
    assert table.state("fold-3") == "waiting: not started: --fail-fast after fold-2 failed"
    table.ended("fold-1.1")
    table.drained(0)
    assert table.run.finished
    assert in_words(table.run.outcome()) == ("failed", "--fail-fast after fold-2 failed")


def test_max_failures_counts() -> None:
    table = Table(0, max_failures=2)
    table.submit(*(job(f"j{n}", gpus=0) for n in range(4)))
    table.ended("j0.1", Exited(1))
    assert table.states()["j1"] == "running"
    table.ended("j1.1", Exited(1))
    assert table.states() == {"j0": "failed", "j1": "failed", "j2": "waiting", "j3": "waiting"}


# ── Going on with a run ─────────────────────────────────────────────────────────────────────────


def interrupted_run() -> Ledger:
    """`done` succeeded, `bad` failed, `cut` was running, `ended` has an end and no state yet."""
    table = Table(0, cpus=9)
    names = ("done", "bad", "cut", "ended", "gone")
    table.submit(*(job(name, gpus=0) for name in names))
    table.ended("done.1")
    table.ended("bad.1", Exited(1))
    ledger = table.run.ledger
    at = Instant(2000.0, 2000.0)
    ledger.apply(AttemptStarted(attempt("ended.1"), 7), at)
    ledger.apply(AttemptEnded(attempt("ended.1"), End(Exited(0))), at)
    ledger.apply(AttemptEnded(attempt("gone.1"), End(Interrupted(Quoted("x")))), at)
    return ledger


def test_a_resume_runs_nothing_again_that_was_done_and_counts_attempts_on() -> None:
    table = Table(0, ledger=interrupted_run(), cpus=9)
    lines = table.submit(
        *(job(name, gpus=0) for name in ("done", "bad", "cut", "ended", "new")), again=["bad"]
    )
    assert lines == ["launch bad.2 on none", "launch new.1 on none"]
    assert table.states()["ended"] == "succeeded", "its end was recorded"
    assert table.states()["cut"] == "running", "an old keeper may still be ending it"
    assert table.run.ledger.jobs["gone"].vanished
    assert [f.name for f in table.facts if isinstance(f, JobAdded)] == ["new"]
    assert table.ended("cut.1", Interrupted(Quoted("its supervisor died"))) == [
        "launch cut.2 on none"
    ]


def test_an_inherited_attempt_is_not_stopped_by_us_and_holds_none_of_our_cards() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.granted(0)
    again = Table(1, ledger=table.run.ledger)
    assert again.submit(job("a"), job("b")) == ["acquire 0"]
    assert again.elsewhere(0) == []
    assert again.asked(Cancel(("a",))) == []
    again.ended("a.1", Interrupted(Quoted("its supervisor died")))
    assert again.state("a") == "cancelled: cancelled"
    assert again.freed(0) == ["acquire 0"]


def test_crashes_of_supervisors_never_fail_a_job() -> None:
    ledger = Ledger()
    for number in range(1, 6):
        table = Table(0, ledger=ledger)
        lines = table.submit(job("a", gpus=0))
        if number > 1:
            lines = table.ended(f"a.{number - 1}", Lost(Quoted("its supervisor died")))
        assert lines == [f"launch a.{number} on none"]
        ledger = table.run.ledger


def test_what_a_round_leaves_is_left() -> None:
    table = Table(0, ledger=interrupted_run(), cpus=9)
    names = ("done", "bad", "ended", "gone", "new")
    lines = table.submit(
        *(job(name, gpus=0) for name in names), again=["bad"], left=["gone", "new"]
    )
    assert lines == ["launch bad.2 on none"]
    assert table.state("new") == "waiting: left as it is this time"
    table.ended("cut.1", Lost(Quoted("gone")))
    table.ended("bad.2")
    assert table.run.finished
    assert in_words(table.run.outcome()) == ("stopped", "2 waiting jobs were left as they are")


def test_facts_come_before_the_instructions_that_rest_on_them() -> None:
    table = Table(0)
    results = table.run.handle([Submitted((job("a", gpus=0),))], table.instant)
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["JobAdded", "AttemptLaunched", "Launch"]


def test_many_jobs_pass_through_the_core_cheaply() -> None:
    """A hundred thousand take about 15 s here; a scan over all jobs per event would take hours."""
    table = Table(8)
    jobs = tuple(job(f"j{n}") for n in range(10_000))
    inbox: deque[Event] = deque([Submitted(jobs)])
    begun, events = time.process_time(), 0
    while inbox:
        events += 1
        for result in table.run.handle([inbox.popleft()], table.instant):
            match result:
                case Acquire(gpu):
                    inbox.append(Granted(gpu, 1))
                case Drain(gpu):
                    inbox.append(Drained(gpu, 1))
                case Launch(what):
                    inbox.append(Ended(what, End(Exited(0))))
    assert table.run.finished
    assert events == 1 + 8 + 20_000
    assert time.process_time() - begun < 20


def test_a_retried_job_that_is_skipped_again_lets_nobody_come_up_before_its_turn() -> None:
    table = Table(0)
    cpu = {"gpus": 0}
    table.submit(
        job("off", **cpu),
        job("bad", **cpu, after=("off",)),
        job("skipped", **cpu, needs=("off",)),
        job("x", **cpu, needs=("bad", "skipped")),
        job("y", **cpu, needs=("bad",), after=("x",)),
    )
    table.asked(Cancel(("off",)))
    table.ended("off.1", Cancelled())
    table.ended("bad.1", Exited(1))
    assert table.run.ledger.counts["skipped"] == 3
    assert table.asked(Retry(None)) == ["launch bad.2 on none"]
    check(table.run)
    assert table.ended("bad.2") == ["launch y.1 on none"]


def test_a_second_ctrl_c_waits_for_no_cards_memory() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    assert table.ended("a.1") == ["drain 0"]
    assert table.asked(Stop(Quoted("Ctrl-C"))) == []
    assert not table.run.finished
    assert table.asked(Stop(Quoted("Ctrl-C"), now=True)) == ["release 0"]
    assert table.run.finished


# ── Whoever has a card elsewhere ────────────────────────────────────────────────────────────────


def test_a_holder_that_is_stopped_or_goes_on_is_told_to_those_who_wait() -> None:
    table = Table(1)
    table.submit(job("a"))
    table.elsewhere(0)
    for holder in ("alice (pid 7, stopped: kill -CONT 7 continues it)", "alice (pid 7)"):
        assert table.held_by(0, holder) == []
        assert table.state("a") == f"waiting: waits for a card: GPU 0 is held by {holder}"
        assert card_reason(table.run.ledger.gpus["GPU-0"].why) == holder
    before = len(table.facts)
    table.held_by(0, "alice (pid 7)")
    assert len(table.facts) == before, "nothing new is recorded twice"
    assert table.freed(0) == ["acquire 0"]


def test_a_holder_of_a_card_that_is_ours_or_asked_for_is_no_news() -> None:
    table = Table(1)
    table.submit(job("a"))
    assert table.held_by(0, "alice (pid 7)") == []
    assert table.granted(0) == ["launch a.1 on 0"]
    assert table.held_by(0, "alice (pid 7)") == []
    assert table.run.ledger.gpus["GPU-0"].state == "leased"


def test_a_card_that_was_handed_over_is_asked_for_again_whoever_has_it() -> None:
    table = Table(1)
    table.submit(job("a"), job("b"))
    table.granted(0)
    table.on(Wanted("GPU-0", True))
    table.ended("a.1")
    assert table.drained(0) == ["at 1 gpu/0", "release 0"]
    assert table.held_by(0, "alice (pid 7)") == []
    assert table.timer("gpu/GPU-0", 1.0) == ["acquire 0"]
