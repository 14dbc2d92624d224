"""Groups of jobs, how many fit on a card, curves, and what sharing gained."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.metrics.model import AttemptUse, CardSample
from gpulaunch.observe.report.cards import curve_of, fits, groups_of, label, sharing
from tests.report.support import folded, many
from tests.views.history import History

GIB = 1 << 30


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["summary"], "summary"),
        (["fold-a", "fold-b"], "fold-*"),
        (["fold-07", "fold-08"], "fold-*"),
        (["lr=1-seed", "lr=2-seed"], "lr=*-seed"),
        (["aa", "aaa"], "aa*"),
        (["x", "y"], "*"),
    ],
)
def test_a_group_is_called_what_its_jobs_have_in_common(names: list[str], expected: str) -> None:
    assert label(names) == expected


def measured(
    run: History, peaks: Sequence[int | None], busy: float = 40.0
) -> dict[AttemptId, AttemptUse]:
    return {
        AttemptId(f"j{n}", 1): AttemptUse(AttemptId(f"j{n}", 1), peak, mean_gpu_utilization=busy)
        for n, peak in enumerate(peaks)
    }


def test_how_many_fit_comes_from_the_largest_with_something_to_spare() -> None:
    run = many(4)
    history, _ = folded(run)
    uses = measured(run, [10 * GIB, 19 * GIB, 12 * GIB, None])
    (fit,) = fits(history.ledger, history.cards, uses)
    assert (fit.label, fit.fits, fit.peak, fit.of) == ("j*", 4, 19 * GIB, 3)
    assert fit.advised == 3, "4 x 19 of 76 GiB, and three at 40 % are as much as the card can do"
    (fit,) = fits(history.ledger, history.cards, measured(run, [20 * GIB] * 4, busy=95.0))
    assert (fit.fits, fit.advised) == (3, 1)
    (fit,) = fits(history.ledger, history.cards, measured(run, [90 * GIB] * 4))
    assert (fit.fits, fit.advised) == (1, 1)


def test_nothing_is_said_of_fewer_than_three_or_of_what_was_not_measured() -> None:
    history, _ = folded(many(2))
    assert fits(history.ledger, history.cards, measured(many(2), [GIB, GIB])) == []
    history, _ = folded(many(5))
    assert fits(history.ledger, history.cards, {}) == []
    assert [one.label for one in groups_of(history.ledger)] == ["j*"]


def test_a_curve_has_a_hole_where_nothing_was_measured() -> None:
    at = [0.0, 10.0, 20.0, 30.0, 500.0, 510.0]
    curve = curve_of([CardSample("GPU-0", t, 80 if t < 100 else 20, GIB) for t in at])
    assert curve.utilization == (80, 80, 80, 80, None, 20, 20)
    assert curve.at[4] == 40.0
    assert curve.peak == GIB
    assert curve.mean is not None
    assert 40 < curve.mean < 62, "the hole counts for four usual steps at most"
    assert curve_of([CardSample("GPU-0", 1.0)]).at == ()


def test_what_sharing_gained_is_the_time_of_the_jobs_over_that_of_the_cards() -> None:
    run = History(1).open().jobs("j0", "j1", "j2").start("j0", 0).pass_(30).succeed("j0")
    run.start("j1", 0).start("j2", 0).pass_(10).succeed("j1").pass_(20).succeed("j2")
    history, when = folded(run)
    assert sharing(history.ledger, history.cards, {}, when) == []
    for name in ("j1", "j2"):
        history.ledger.jobs[name].attempts[0].promised = 12 * GIB
    uses = measured(run, [9 * GIB] * 3)
    (one,) = sharing(history.ledger, history.cards, uses, when)
    assert (one.label, one.promised, one.peak, one.failures) == ("j*", 12 * GIB, 9 * GIB, 0)
    assert (one.job_seconds, one.card_seconds) == (70, 60)
    assert one.together == pytest.approx(7 / 6)
    assert one.fits == next(iter(history.cards.values())).memory // (12 * GIB)
    assert fits(history.ledger, history.cards, uses) == [], "they share already"
