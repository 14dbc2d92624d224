"""Jobs that are not to start before a moment, as the clock on the wall shows it."""

from __future__ import annotations

import pytest

from gpulaunch.core.causes import Because
from gpulaunch.core.events import Asked, Cancel, Pause, Retry
from gpulaunch.core.facts import AttemptLaunched, ServiceReady
from gpulaunch.core.model import DueTime, Exited, Interrupted, RetryPolicy
from gpulaunch.core.reasons import OutsideHours
from tests.core.table import Table, attempt, job, service


def at(utc: float, words: str = "19:00") -> DueTime:
    return DueTime(words, utc)


def test_a_job_starts_when_the_clock_shows_its_moment() -> None:
    table = Table(1)
    assert table.submit(job("night", not_before=at(1030.0))) == ["at 30 due"]
    assert "not before" in table.state("night")
    assert table.state("night").endswith("(in 30 s)")
    assert not table.run.finished
    assert table.timer("due", 30.0) == ["acquire 0"]


def test_no_card_is_asked_for_or_kept_while_a_job_is_not_due() -> None:
    table = Table(2)
    lines = table.submit(job("now"), job("night", not_before=at(5000.0)))
    assert lines == ["acquire 0", "at 60 due"]
    table.granted(0)
    table.ended("now.1")
    assert table.drained(0) == ["release 0"]


def test_the_clock_is_looked_at_again_every_minute_as_it_may_be_set() -> None:
    table = Table(0)
    assert table.submit(job("night", gpus=0, not_before=at(4000.0))) == ["at 60 due"]
    assert table.timer("due", 60.0) == ["at 60 due"]
    table.ahead = 3000.0  # the machine slept, or the clock was put forward
    assert table.timer("due", 60.0) == ["launch night.1 on none"]


def test_a_clock_that_is_put_back_makes_a_job_wait_longer() -> None:
    table = Table(0)
    table.submit(job("night", gpus=0, not_before=at(1030.0)))
    table.ahead = -20.0
    assert table.timer("due", 30.0) == ["at 20 due"]
    assert table.timer("due", 20.0) == ["launch night.1 on none"]


def test_many_jobs_have_one_timer_for_the_first_of_them() -> None:
    table = Table(0)
    later = [job(f"l{n}", gpus=0, not_before=at(1040.0)) for n in range(50)]
    assert table.submit(*later, job("first", gpus=0, not_before=at(1010.0))) == ["at 10 due"]
    assert table.timer("due", 10.0) == ["at 30 due", "launch first.1 on none"]


def test_needs_count_beside_the_moment_whichever_comes_later() -> None:
    table = Table(0)
    after = job("after", gpus=0, needs=("first",), not_before=at(1010.0))
    assert table.submit(job("first", gpus=0), after) == ["launch first.1 on none"]
    assert "needs first" in table.state("after")
    assert table.ended("first.1") == ["at 10 due"]
    assert table.timer("due", 10.0) == ["launch after.1 on none"]


@pytest.mark.parametrize(("delay", "moment"), [(30.0, 1010.0), (10.0, 1030.0)])
def test_of_a_retrys_delay_and_the_moment_the_later_counts(delay: float, moment: float) -> None:
    table = Table(0)
    table.submit(job("x", gpus=0, retry=RetryPolicy(1, delay=delay), not_before=at(moment)))
    table.ahead = 30.0
    table.timer("due", 0.0)
    table.ahead = 0.0  # set back after its start
    table.ended("x.1", Exited(1))
    first, other = ("job/x", "due") if delay > 20 else ("due", "job/x")
    assert not any("launch" in line for line in table.timer(other, 10.0))
    assert table.timer(first, 20.0) == ["launch x.2 on none"]


def test_a_service_starts_only_once_a_job_that_needs_it_is_due() -> None:
    table = Table(2)
    night = job("night", needs=("msa",), not_before=at(1030.0))
    assert table.submit(service("msa", gpus=0), night) == ["at 30 due"]
    assert table.timer("due", 30.0) == ["launch msa.1 on none"]


def test_a_service_gives_its_card_back_while_what_needs_it_is_not_due() -> None:
    table = Table(2)
    jobs = [job("now", needs=("msa",)), job("night", needs=("msa",), not_before=at(9000.0))]
    chained = job("chained", needs=("night", "msa"))
    table.submit(service("msa"), *jobs, chained, job("other", gpus=0))
    table.granted(0, 1)
    table.started("msa.1")
    table.on(ServiceReady(attempt("msa.1")))
    table.granted(0, 1)
    assert "stop msa.1 interrupted" in table.ended("now.1")
    table.ended("msa.1", Interrupted(Because("not_due")))
    assert table.states()["msa"] == "waiting"
    table.ahead = 9000.0
    assert "acquire 0" in [*table.drained(0), *table.drained(1), *table.timer("due", 60.0)]


def test_an_idle_worker_is_not_kept_for_jobs_that_are_not_due() -> None:
    table = Table(1)
    table.submit(job("a", worker="fold"), job("b", worker="fold", not_before=at(1030.0)))
    table.granted(0)
    assert table.ended("a.1", kept=True) == ["end worker a.1"]


def test_a_job_that_waits_for_its_moment_is_cancelled_at_once() -> None:
    table = Table(0)
    table.submit(job("night", gpus=0, not_before=at(5000.0)))
    table.on(Asked(Cancel(("night",))))
    assert table.run.finished


def test_a_retry_of_all_that_failed_starts_nothing_before_its_moment() -> None:
    table = Table(0)
    table.submit(job("night", gpus=0, not_before=at(5000.0)))
    assert table.on(Asked(Retry(("night",)))) == []


def test_the_same_words_mean_the_moment_that_they_meant_first() -> None:
    first = Table(0)
    first.submit(job("night", gpus=0, not_before=at(1030.0)))
    again = Table(0, ledger=first.run.ledger)
    again.now = 2000.0
    assert again.submit(job("night", gpus=0, not_before=at(87430.0))) == ["launch night.1 on none"]


def test_other_words_move_a_job() -> None:
    first = Table(0)
    first.submit(job("night", gpus=0, not_before=at(1030.0)))
    again = Table(0, ledger=first.run.ledger)
    again.now = 2000.0
    assert again.submit(job("night", gpus=0, not_before=at(2030.0, "20:00"))) == ["at 30 due"]


def test_an_engine_that_queues_is_handed_no_job_that_is_not_due() -> None:
    table = Table(0, queue=100, ahead=True)
    lines = table.submit(
        job("first"),
        job("night", not_before=at(1030.0)),
        job("ahead", needs=("first",), not_before=at(1030.0)),
    )
    assert lines == ["launch first.1 on none", "at 30 due"]
    table.ended("first.1")
    launched = [fact.attempt.job for fact in table.facts if isinstance(fact, AttemptLaunched)]
    assert launched == ["first"]
    assert table.timer("due", 30.0) == ["launch night.1 on none", "launch ahead.1 on none"]


def test_a_job_says_what_keeps_it_longer_the_hours_of_the_run_or_its_own_moment() -> None:
    table = Table(0)
    table.on(Asked(Pause(OutsideHours(3000.0), "hours")))
    table.submit(
        job("sooner", gpus=0, not_before=at(2000.0)),
        job("later", gpus=0, not_before=at(1000.0 + 7200.0)),
    )
    assert "the run starts no job before" in table.state("sooner")
    assert table.state("later").endswith("(in 2 h)")
