from __future__ import annotations

import pytest

from gpulaunch.core import facts as f
from gpulaunch.core.model import Exited
from gpulaunch.views.estimate import Estimate
from tests.views.history import History


def left(run: History) -> float | None:
    estimate = Estimate()
    ledger = History().ledger
    for fact, at in run.facts:
        ledger.apply(fact, at)
        estimate.see(fact, at, ledger)
    return estimate.seconds_left(run.now)


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
    assert left(run.add(f.JobDelayed("w0", "retry"))) == pytest.approx(10)
    assert left(run.add(f.JobSettled("w0", "failed"))) is None
    assert left(run.add(f.JobRequeued("w0", "asked"))) == pytest.approx(10)
    assert left(run.add(f.JobVanished("w0"))) is None
