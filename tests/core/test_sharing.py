"""Jobs that share a card by memory, and what `gpu_memory: auto` learns: history by history."""

from __future__ import annotations

from msgspec.structs import replace

from gpulaunch.core.events import Ended, GangGranted, MemoryPeaked, Refused, Sick
from gpulaunch.core.facts import AttemptEnded, AttemptLaunched, JobAdded
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import End, Exited, Failure, Job, RetryPolicy
from tests.core.table import Table, attempt, job
from tests.core.world import GIB, pretend_gpus


def sharer(name: str, gib: int, **fields: object) -> Job:
    """A job that shares its card with as many others as its memory allows."""
    fields.setdefault("per_gpu", 0)
    return job(name, share=True, gpu_memory=gib * GIB, **fields)


def learner(name: str, kind: int = 1, **fields: object) -> Job:
    """A job that shares its card, and whose memory is learned."""
    fields.setdefault("per_gpu", 0)
    return job(name, share=True, kind=kind, group=kind, **fields)


def peaked(table: Table, what: str, gib: int) -> list[str]:
    return table.on(MemoryPeaked(attempt(what), gib * GIB))


def oom(table: Table, what: str) -> list[str]:
    return table.on(Ended(attempt(what), End(Exited(1), Failure("gpu_oom", "out of memory"))))


# ── Numbers that the job file gives ─────────────────────────────────────────────────────────────


def test_unlike_jobs_meet_on_a_card_as_long_as_what_they_were_promised_fits() -> None:
    table = Table(1)
    table.submit(sharer("fold", 40), sharer("a", 20), sharer("b", 20), sharer("c", 20))
    assert table.granted(0) == ["launch fold.1 on 0", "launch a.1 on 0", "launch b.1 on 0"]
    why = "waiting: waits for a card with 20 GiB free: GPU 0 is shared by fold, a, b, which are"
    assert table.state("c") == f"{why} promised 80 GiB of 80 GiB"
    assert table.ended("a.1") == ["launch c.1 on 0"]


def test_what_strangers_have_of_a_card_is_promised_to_nobody() -> None:
    table = Table(1)
    table.submit(sharer("a", 20), sharer("b", 20))
    assert table.granted(0, free=39 * GIB) == ["launch a.1 on 0"]


def test_a_job_that_shares_is_never_beside_one_that_does_not() -> None:
    table = Table(1)
    table.submit(sharer("a", 20), job("alone", per_gpu=2), job("whole"))
    assert table.granted(0) == ["launch a.1 on 0"]
    assert table.ended("a.1") == ["drain 0"]
    assert table.drained(0) == ["launch alone.1 on 0"]


def test_per_gpu_bounds_how_many_share_whoever_says_it() -> None:
    table = Table(1)
    table.submit(sharer("a", 1, per_gpu=2), sharer("b", 1), sharer("c", 1))
    assert table.granted(0) == ["launch a.1 on 0", "launch b.1 on 0"]
    assert table.ended("a.1") == ["launch c.1 on 0"]


def test_jobs_that_share_spread_over_cards_that_nobody_needs_alone() -> None:
    table = Table(2)
    table.submit(*(sharer(name, 10) for name in "abc"))
    assert table.granted(0) == ["launch a.1 on 0", "launch c.1 on 0"], "GPU 1 is asked for b"
    assert table.granted(1) == ["launch b.1 on 1"]


def test_a_card_that_drains_is_awaited_before_jobs_double_up_on_another() -> None:
    table = Table(2)
    table.submit(*(learner(name) for name in "abcd"))
    table.granted(0, 1)
    peaked(table, "a.1", 9)
    assert table.ended("a.1") == ["drain 0", "launch d.1 on 1"], "c is to be on GPU 0"
    assert table.drained(0) == ["launch c.1 on 0"]


def test_a_card_whose_memory_does_not_come_back_is_awaited_no_longer() -> None:
    table = Table(2)
    table.submit(*(learner(name) for name in "abcd"))
    table.granted(0, 1)
    peaked(table, "a.1", 9)
    table.ended("a.1")
    assert "launch c.1 on 1" in table.on(Refused("GPU-0", Sick("its memory is gone")))


def test_jobs_that_share_by_per_gpu_go_to_the_card_with_the_fewest_jobs_too() -> None:
    table = Table(2)
    table.submit(*(job(name, per_gpu=3) for name in "abcdefgh"))
    lines = table.granted(0, 1)
    first = [line.split()[1] for line in lines if line.endswith("on 0")]
    other = next(line.split()[1] for line in lines if line.endswith("on 1"))
    ends = [Ended(attempt(each), End(Exited(0))) for each in (*first, other)]
    assert table.on(*ends) == ["drain 0"]
    assert table.drained(0) == ["launch g.1 on 0", "launch h.1 on 0"]


def test_the_token_of_a_job_is_kept_while_its_card_drains() -> None:
    table = Table(2)
    later = job("d", gpus=0, cpus=0, uses=("seat",), needs=("a",))
    table.submit(sharer("a", 60), sharer("b", 60), sharer("c", 60, uses=("seat",)), later)
    table.granted(0, 1)
    assert table.ended("a.1") == ["drain 0"]
    assert table.drained(0) == ["launch c.1 on 0"]


def test_cards_are_left_to_a_wide_job_only_if_they_are_enough_for_it() -> None:
    table = Table(4)
    whole, pair = [job(name, cost=2.0) for name in "xy"], job("pair", gpus=2)
    sharing = [sharer(name, 10, cost=1.0) for name in "ab"]
    lines = table.submit(*whole, *sharing, pair)
    assert lines == [f"acquire {n}" for n in range(4)], "GPU 2 for a, GPU 3 for b"


def test_jobs_that_share_keep_together_while_another_needs_a_card_alone() -> None:
    table = Table(2)
    asked = table.submit(sharer("a", 10, cost=2.0), sharer("b", 10, cost=1.0), job("whole"))
    assert asked == ["acquire 0", "acquire 1"]
    lines = table.granted(0) + table.granted(1)
    assert sorted(lines) == ["launch a.1 on 0", "launch b.1 on 0", "launch whole.1 on 1"]


def test_a_card_that_is_refused_keeps_no_job_from_a_shared_one() -> None:
    table = Table(2)
    table.submit(*(sharer(name, 10) for name in "ab"))
    assert table.granted(0) == ["launch a.1 on 0"]
    assert table.elsewhere(1) == ["launch b.1 on 0"]


def test_a_job_that_needs_a_card_alone_is_not_overtaken_for_ever() -> None:
    table = Table(1)
    first = [sharer(f"s{n}", 40, cost=1.0) for n in range(2)]
    table.submit(*first, job("alone"), *(sharer(f"t{n}", 40) for n in range(30)))
    table.granted(0)
    live, overtaken = ["s0.1", "s1.1"], 0
    while "alone.1" not in live:
        lines = table.ended(live.pop(0))
        lines += table.drained(0) if "drain 0" in lines else []
        fresh = [line.split()[1] for line in lines if line.startswith("launch")]
        overtaken += len(fresh)
        live += fresh
    assert overtaken <= 3


def test_a_large_share_is_not_overtaken_for_ever_by_small_ones() -> None:
    table = Table(1)
    first = [sharer(f"s{n}", 20, cost=1.0) for n in range(4)]
    table.submit(*first, sharer("large", 60), *(sharer(f"t{n}", 20) for n in range(30)))
    table.granted(0)
    live, overtaken = [f"s{n}.1" for n in range(4)], 0
    while "large.1" not in live:
        lines = table.ended(live.pop(0))
        fresh = [line.split()[1] for line in lines if line.startswith("launch")]
        overtaken += len(fresh)
        live += fresh
    assert overtaken <= 3
    assert live, "it waited for an empty card, though there was room beside others"


def test_a_wide_job_is_not_overtaken_for_ever_by_jobs_that_share() -> None:
    table = Table(2)
    first = [sharer(f"s{n}", 40, cost=1.0) for n in range(4)]
    table.submit(*first, job("pair", gpus=2), *(sharer(f"t{n}", 40) for n in range(40)))
    live, history = [], []
    lines = table.granted(0, 1)
    while True:
        for line in list(lines):
            if line.startswith("drain"):
                more = table.drained(int(line.split()[1]))
                lines += more + (table.on(GangGranted()) if "gather True" in more else [])
            lines += table.on(GangGranted()) if line == "gather True" else []
        fresh = [line.split()[1] for line in lines if line.startswith("launch")]
        live, history = live + fresh, history + fresh
        if "pair.1" in history or not live:
            break
        lines = table.ended(live.pop(0))
    assert "pair.1" in history, "it never started"
    assert history.index("pair.1") <= 4 + 2 * 2 + 2, history


# ── Memory that is learned ──────────────────────────────────────────────────────────────────────


def test_the_first_of_a_kind_has_its_card_alone_and_what_it_took_is_promised_to_the_next() -> None:
    table = Table(1)
    table.submit(*(learner(name) for name in "abc"))
    assert table.granted(0) == ["launch a.1 on 0"]
    assert peaked(table, "a.1", 10) == []
    table.ended("a.1")
    assert table.drained(0) == ["launch b.1 on 0", "launch c.1 on 0"]
    launched = [fact for fact in table.facts if isinstance(fact, AttemptLaunched)]
    assert [fact.promised for fact in launched] == [0, 12 * GIB, 12 * GIB]
    ends = [fact.end.gpu_memory for fact in table.facts if isinstance(fact, AttemptEnded)]
    assert ends == [10 * GIB]


def test_while_nothing_is_known_each_of_them_has_a_card_alone() -> None:
    table = Table(2)
    table.submit(*(learner(name) for name in "abc"))
    assert table.granted(0) == ["launch a.1 on 0"]
    assert table.granted(1) == ["launch b.1 on 1"]
    assert table.state("c").startswith("waiting")


def test_kinds_learn_apart() -> None:
    table = Table(1)
    table.submit(learner("a"), learner("b"), learner("x", kind=2))
    table.granted(0)
    peaked(table, "a.1", 10)
    table.ended("a.1")
    assert table.drained(0) == ["launch b.1 on 0"], "x is not known"
    assert table.ended("b.1") == ["drain 0"]
    assert table.drained(0) == ["launch x.1 on 0"]


def test_a_job_that_was_never_seen_on_its_card_teaches_nothing() -> None:
    table = Table(1)
    table.submit(*(learner(name) for name in "abc"))
    table.granted(0)
    table.ended("a.1")
    assert table.drained(0) == ["launch b.1 on 0"]


def test_a_failure_raises_what_is_known_and_teaches_nothing_new() -> None:
    table = Table(1)
    table.submit(*(learner(name) for name in "abcd"))
    table.granted(0)
    peaked(table, "a.1", 1)
    table.ended("a.1", Exited(3))
    assert table.drained(0) == ["launch b.1 on 0"], "it may have failed before it took its memory"
    peaked(table, "b.1", 20)
    table.ended("b.1")
    assert table.drained(0) == ["launch c.1 on 0", "launch d.1 on 0"]
    peaked(table, "c.1", 30)
    table.ended("c.1", Exited(3))
    assert _promised(table) == 36 * GIB


def _promised(table: Table) -> int:
    """What a further job of the kind is promised."""
    state = table.run._state
    return state.learned.peaks[1] * 6 // 5


def test_what_earlier_runs_took_counts_from_the_first_job_on() -> None:
    table = Table(1)
    table.submit(*(learner(name, learned=30 * GIB) for name in "abc"))
    assert table.granted(0) == ["launch a.1 on 0", "launch b.1 on 0"]
    added = [fact.learned for fact in table.facts if isinstance(fact, JobAdded)]
    assert added == [30 * GIB] * 3


def test_a_job_that_takes_more_than_promised_is_given_it_at_once() -> None:
    table = Table(1)
    table.submit(*(learner(name, learned=20 * GIB) for name in "abcd"))
    lines = table.granted(0)
    assert lines == ["launch a.1 on 0", "launch b.1 on 0", "launch c.1 on 0"]
    peaked(table, "a.1", 50)
    assert table.ended("b.1") == [], "50 GiB and 24 GiB are taken"
    assert table.ended("a.1") == []
    assert table.ended("c.1") == ["drain 0"], "d is promised 60 GiB now"


def test_out_of_memory_on_a_shared_card_goes_alone_costs_nothing_and_teaches() -> None:
    table = Table(1)
    once = RetryPolicy(0)
    table.submit(*(learner(name, learned=10 * GIB, retry=once) for name in "abc"))
    assert len(table.granted(0)) == 3
    oom(table, "a.1")
    record = table.run.ledger.jobs["a"]
    assert (record.state, record.charged) == ("waiting", 0)
    assert _promised(table) == 12 * GIB * 6 // 5, "it took more than the 12 GiB it was promised"
    table.ended("b.1")
    assert table.ended("c.1") == ["drain 0"]
    assert table.drained(0) == ["launch a.2 on 0"]
    oom(table, "a.2")
    assert table.states()["a"] == "failed", "alone, it has itself to blame"


def test_out_of_memory_alone_is_charged_though_its_kind_may_share() -> None:
    table = Table(1)
    table.submit(learner("a", retry=RetryPolicy(0)))
    table.granted(0)
    oom(table, "a.1")
    assert table.states()["a"] == "failed"


def test_a_job_that_shares_by_numbers_goes_alone_for_nothing_too() -> None:
    table = Table(1)
    table.submit(sharer("a", 10), sharer("b", 10))
    table.granted(0)
    oom(table, "a.1")
    assert table.states()["a"] == "waiting"
    assert table.ended("b.1") == ["drain 0"]
    assert table.drained(0) == ["launch a.2 on 0"]


def test_what_another_of_the_first_ones_takes_already_counts_once_the_kind_is_known() -> None:
    table = Table(2)
    table.submit(*(learner(name) for name in "abcdef"))
    table.granted(0)
    table.granted(1)
    peaked(table, "b.1", 30)
    peaked(table, "a.1", 1)
    assert table.ended("a.1") == ["drain 0", "launch d.1 on 1"], "c waits for GPU 0"
    assert table.drained(0) == ["launch c.1 on 0", "launch e.1 on 0"], "30 GiB each, not 1 GiB"


def test_a_kind_that_nearly_fills_a_card_has_it_alone_and_is_not_refused() -> None:
    table = Table(1)
    table.submit(*(learner(name, learned=75 * GIB) for name in "ab"))
    assert table.granted(0) == ["launch a.1 on 0"], "a margin is for company"


def test_what_another_machines_cards_taught_keeps_no_job_from_smaller_ones() -> None:
    table = Table(1)
    table.submit(*(learner(name, learned=300 * GIB) for name in "ab"))
    assert table.granted(0) == ["launch a.1 on 0"]


def test_a_resume_knows_what_was_learned_before() -> None:
    table = Table(1)
    jobs = [learner(name) for name in "abc"]
    table.submit(*jobs)
    table.granted(0)
    peaked(table, "a.1", 10)
    table.ended("a.1")
    again = Table(1, ledger=_replayed(table))
    again.submit(*jobs)
    assert again.granted(0) == ["launch b.1 on 0", "launch c.1 on 0"]


def _replayed(table: Table) -> Ledger:
    """The ledger that the facts make, as a journal's replay would."""
    opened = Table(1).run.ledger
    for fact in table.facts:
        opened.apply(fact, table.instant)
    return opened


def test_a_peak_of_an_attempt_that_is_over_is_ignored() -> None:
    table = Table(1)
    table.submit(learner("a"), learner("b"))
    table.granted(0)
    table.ended("a.1")
    assert peaked(table, "a.1", 10) == []
    assert table.run._state.learned.peaks == {}


# ── Which cards, and what else is kept for them ─────────────────────────────────────────────────


def test_host_memory_is_kept_for_a_job_while_its_card_comes() -> None:
    table = Table(1, memory=100 * GIB)
    others = [job(name, gpus=0, cpus=0, memory=60 * GIB) for name in "bcd"]
    asked = table.submit(sharer("a", 10, memory=60 * GIB, priority=1), *others)
    assert asked == ["acquire 0"], "its memory is kept"
    assert table.granted(0) == ["launch a.1 on 0"]


def test_jobs_that_share_take_the_cards_that_are_used_last_last() -> None:
    table = Table(2, ranks=(1, 0))
    assert table.submit(sharer("a", 10), sharer("b", 10)) == ["acquire 1"]
    assert table.granted(1) == ["launch a.1 on 1", "launch b.1 on 1"]


def test_jobs_that_need_a_card_alone_and_cannot_start_keep_nobody_together() -> None:
    table = Table(2, limits={"seat": 1})
    seats = (job("first", uses=("seat",), gpus=0, cpus=0), job("whole", uses=("seat",)))
    lines = table.submit(*seats, sharer("a", 10), sharer("b", 10))
    assert lines == ["launch first.1 on none", "acquire 0", "acquire 1"]


def test_a_job_that_took_more_than_is_free_on_an_empty_card_has_one_all_the_same() -> None:
    table = Table(1)
    table.submit(learner("a", learned=100 * GIB))
    assert table.granted(0, free=79 * GIB) == ["launch a.1 on 0"]


def test_a_kind_that_may_have_small_cards_alone_is_promised_no_more_than_they_have() -> None:
    small, large = pretend_gpus(2)
    cards = (replace(small, memory=24 * GIB, name="A10"), replace(large, name="H100"))
    table = Table(gpus=cards)
    assert table.submit(learner("a", card="A10", learned=60 * GIB)) == ["acquire 0"]
    assert table.granted(0, free=24 * GIB) == ["launch a.1 on 0"]
