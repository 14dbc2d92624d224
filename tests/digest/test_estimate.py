from __future__ import annotations

import math
import random

import pytest

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import DueTime, Exited
from gpulaunch.core.reasons import OutsideHours
from gpulaunch.observe.present.usage import Ahead, Estimate
from tests.views.history import History


def left(run: History) -> float | None:
    estimate = Estimate()
    ledger = History().ledger
    for fact, at in run.facts:
        ledger.apply(fact, at)
        estimate.see(fact, at, ledger)
    ahead = estimate.ahead(run.now)
    return None if ahead is None else ahead.seconds


def after(seconds: list[float], waiting: int, cards: int = 1) -> History:
    """Jobs that took so long, `cards` at once, and some that wait."""
    done = [f"d{n}" for n in range(len(seconds))]
    run = History(cards).open().jobs(*done, *(f"w{n}" for n in range(waiting)))
    for at in range(0, len(done), cards):
        together = list(zip(done[at : at + cards], seconds[at : at + cards], strict=True))
        for card, (name, _) in enumerate(together):
            run.start(name, card)
        for name, took in sorted(together, key=lambda pair: pair[1])[-1:]:
            run.pass_(took)
            for other, _ in together:
                run.succeed(other)
            del name
    return run


def test_left_is_the_mean_times_what_waits() -> None:
    assert left(after([10, 20, 30], 5)) == pytest.approx(100)


def test_two_cards_halve_it() -> None:
    assert left(after([10] * 4, 6, cards=2)) == pytest.approx(30)


def test_two_finished_jobs_are_too_few() -> None:
    assert left(after([10, 20], 5)) is None


def test_nothing_left_needs_no_estimate() -> None:
    assert left(after([10, 20, 30], 0)) is None


def test_failed_jobs_say_nothing_about_how_long_jobs_take() -> None:
    run = after([10, 10], 5)
    assert left(run.start("w0", 0).pass_(1).fail("w0")) is None


def test_what_runs_is_partly_done_but_never_overdue() -> None:
    run = after([10, 10, 10], 1).start("w0", 0)
    assert left(run.pass_(4)) == pytest.approx(6)
    assert left(run.pass_(60)) == 0


def test_costs_tell_long_jobs_from_short_ones() -> None:
    run = History(1).open()
    for name, cost in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("big", 100.0)):
        run.add(f.JobAdded(name, 0, 1, "d", cost=cost))
    for name, took in (("a", 10), ("b", 20), ("c", 30)):
        run.start(name, 0).pass_(took).succeed(name)
    assert left(run) == pytest.approx(1000)


def test_a_group_that_nothing_is_known_of_keeps_it_silent_unless_it_is_small() -> None:
    run = after([10, 10, 10], 4)
    assert left(run.jobs("summary", group=1)) == pytest.approx(50)
    assert left(run.jobs("x", "y", group=2)) is None


def test_services_do_not_count() -> None:
    run = after([10, 10, 10], 2).jobs("server", group=1, service=True).start("server")
    assert left(run) == pytest.approx(20)


def test_a_retry_and_a_requeue_are_counted_again() -> None:
    run = after([10, 10, 10], 1).start("w0", 0).end("w0", Exited(1), "exit")
    assert left(run.add(f.JobDelayed("w0", Quoted("retry")))) == pytest.approx(10)
    assert left(run.add(f.JobSettled("w0", "failed"))) is None
    assert left(run.add(f.JobRequeued("w0", Quoted("asked")))) == pytest.approx(10)
    assert left(run.add(f.JobVanished("w0"))) is None


def ahead(run: History, earlier: dict[str, float] | None = None) -> Ahead | None:
    estimate = Estimate(earlier)
    ledger = History().ledger
    for fact, at in run.facts:
        ledger.apply(fact, at)
        estimate.see(fact, at, ledger)
    return estimate.ahead(run.now)


def test_equal_jobs_leave_no_doubt() -> None:
    assert ahead(after([10, 10, 10], 5)) == Ahead(
        pytest.approx(50), pytest.approx(50), pytest.approx(50)
    )


def test_the_range_is_as_wide_as_jobs_differed() -> None:
    little, much = ahead(after([19, 20, 21], 5)), ahead(after([10, 20, 30], 5))
    assert little is not None
    assert much is not None
    assert little.seconds == much.seconds == pytest.approx(100)
    # Five jobs of a standard deviation of 10, and a mean known from three.
    assert much.high - 100 == pytest.approx(1.28 * math.sqrt(100 * 5 * (1 + 5 / 3)))
    assert 100 - much.low == pytest.approx(much.high - 100)
    assert little.high - 100 == pytest.approx((much.high - 100) / 10)


def test_the_range_holds_four_times_of_five() -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(400):
        times = [rng.gauss(100, 20) for _ in range(30)]
        found = ahead(after(times[:10], 20))
        assert found is not None
        held += found.low <= sum(times[10:]) <= found.high
    assert 0.7 < held / 400 < 0.9


def test_cost_explains_what_differs() -> None:
    run = History(1).open()
    for n, cost in enumerate((1.0, 2.0, 4.0, 8.0)):
        run.add(f.JobAdded(f"j{n}", 0, 1, "d", cost=cost))
    for n, cost in enumerate((1.0, 2.0, 4.0)):
        run.start(f"j{n}", 0).pass_(10 * cost).succeed(f"j{n}")
    assert ahead(run) == Ahead(pytest.approx(80), pytest.approx(80), pytest.approx(80))


def test_an_earlier_run_of_the_file_is_a_first_guess() -> None:
    run = History(1).open().jobs("a", "b", "c", "d").start("a", 0)
    earlier = {"a": 10.0, "b": 20.0, "c": 30.0, "gone": 9999.0}
    found = ahead(run.pass_(5), earlier)
    assert found is not None
    assert found.seconds == pytest.approx(4 * 20 - 5)
    assert ahead(run, {"a": 10.0, "b": 20.0}) is None, "never from fewer than three"


def test_an_unfinished_job_is_expected_to_take_what_its_group_did() -> None:
    def expected(run: History, name: str) -> float | None:
        estimate = Estimate()
        estimate.seed(run.ledger)
        return estimate.expected(name)

    run = History(1).open().jobs("a", "b", "c", "d", "e")
    for name, seconds in (("a", 10), ("b", 20), ("c", 30)):
        assert expected(run, "d") is None
        run.start(name, 0).pass_(seconds).succeed(name)
    assert expected(run, "d") == pytest.approx(20)
    assert expected(run, "a") is None


def test_a_run_lasts_at_least_until_its_last_job_is_due() -> None:
    run = after([60.0] * 4, 1)
    due = DueTime("19:00", run.now.utc + 7200.0)
    run.add(f.JobAdded("night", 0, 1, "d", due=due))
    assert left(run) == 7200.0


def test_outside_its_hours_it_is_unknown_how_long_a_run_takes() -> None:
    run = after([60.0] * 4, 4)
    assert left(run) is not None
    assert left(run.add(f.AdmissionPaused(OutsideHours(run.now.utc + 60.0), "hours"))) is None
    assert left(run.add(f.AdmissionContinued("hours"))) is not None
