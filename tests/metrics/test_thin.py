"""The bound that `thin` states, on a clock of the test's own."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.metrics.model import AttemptSample, CardSample
from gpulaunch.observe.metrics.read import open_metrics
from gpulaunch.observe.metrics.store import (
    TIERS,
    Step,
    Store,
    attempt_steps,
    card_steps,
    merge_attempts,
    merge_cards,
)

WEEK, HOUR, MINUTE = 7 * 86400, 3600, 60
START = 1_800_000_000.0
CARDS = 2


def rows(path: Path, table: str) -> list[float]:
    connection = sqlite3.connect(path)
    found = [at for (at,) in connection.execute(f"SELECT at FROM {table} ORDER BY at")]
    connection.close()
    return found


def test_a_week_of_cards_and_their_jobs_stays_within_the_bound(tmp_path: Path) -> None:
    store = Store(tmp_path / "metrics.db")
    step, batch = 30, []
    for second in range(0, WEEK - 10 * MINUTE, step):
        batch += moment(START + second)
        if second % (10 * MINUTE) == 0:
            assert store.write(batch, START + second)
            batch = []
    for second in range(WEEK - 10 * MINUTE, WEEK):
        assert store.write([*batch, *moment(START + second)], START + second)
        batch = []
    store._thin_at = 0.0
    assert store.write([], START + WEEK)
    store.close()
    for table in ("card_sample", "attempt_sample"):
        kept = rows(tmp_path / "metrics.db", table)
        age = [START + WEEK - at for at in kept]
        assert len(kept) <= CARDS * 11_520
        assert sum(a <= 600 for a in age) == CARDS * 600
        assert sum(a > 3 * HOUR + 60 for a in age) <= CARDS * 9_900
        assert len(kept) > CARDS * 9_900  # and no more than that is lost
    assert (tmp_path / "metrics.db").stat().st_size < CARDS * (7 << 18)


def moment(at: float) -> list[Step]:
    steps: list[Step] = []
    for n in range(CARDS):
        uuid = f"GPU-{n:08x}-1111-2222-3333-444444444444"
        steps += card_steps(CardSample(uuid, at, 63, 40 << 30, 311.5, 61, ("power cap",)))
        who, since = AttemptId(f"fold-{n}", 1), at - START
        sample = AttemptSample(who, at, 39 << 30, since, 12 << 30, 1, since, 1.0, 63.0, 40 << 30)
        steps += attempt_steps(sample)
    return steps


def test_what_has_come_of_age_is_merged_and_the_rest_is_untouched(tmp_path: Path) -> None:
    store = Store(tmp_path / "metrics.db")
    now = START
    for second in range(4 * HOUR):
        now = START + second
        store.write(card_steps(CardSample("GPU-0", now, second % 10 * 10, second)), now)
    store._thin_at = 0.0
    store.write([], now)
    store.close()
    kept = rows(tmp_path / "metrics.db", "card_sample")
    gaps = {round(b - a, 3) for a, b in pairwise(kept)}
    assert {1.0, 10.0, 60.0} <= gaps
    assert max(gaps) <= 60.0
    reader = open_metrics(tmp_path / "metrics.db")
    assert reader is not None
    with reader:
        old = reader.cards("GPU-0", most=10**6)[0]
        assert old.utilization == 45  # the mean of 0, 10 ... 90
        assert old.memory == 59  # the highest of the first minute
        assert old.at == START + 29.5
        assert reader.latest()["GPU-0"].memory == 4 * HOUR - 1


def test_a_clock_that_was_set_back_does_not_end_the_thinning(tmp_path: Path) -> None:
    store = Store(tmp_path / "metrics.db")
    for start in (START + 10 * WEEK, START):
        for second in range(HOUR):
            at = start + second
            store.write(card_steps(CardSample("GPU-0", at, 1, 1)), at)
    store.close()
    kept = [at for at in rows(tmp_path / "metrics.db", "card_sample") if at < START + WEEK]
    assert len(kept) < 600 + MINUTE + HOUR / 10 + 10


def test_each_age_is_kept_coarser_than_the_one_before() -> None:
    assert [age for age, _ in TIERS] == sorted(age for age, _ in TIERS)
    assert [step for _, step in TIERS] == sorted(step for _, step in TIERS)


def test_merged_samples_keep_peaks_means_and_all_reasons() -> None:
    first = (10.0, 20, 5, 100.0, 40, "power cap")
    second = (11.0, None, 9, None, 41, "hardware slowdown,power cap")
    assert merge_cards([first, second]) == (
        10.5, 20.0, 9, 100.0, 41, "power cap,hardware slowdown"
    )  # fmt: skip
    assert merge_attempts([(1.0, None, 3.0, 7), (2.0, None, 4.0, 6)]) == (1.5, None, 4.0, 7)
    assert merge_attempts([(1.0, None, None, None)]) == (1.0, None, None, None)
