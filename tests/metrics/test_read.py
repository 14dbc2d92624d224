"""What attempts came to, against numbers reckoned by hand."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.metrics.model import NOTHING, AttemptSample, AttemptUse, CardSample
from gpulaunch.observe.metrics.read import MetricsReader, measured, open_metrics
from gpulaunch.observe.metrics.store import Store, attempt_steps, card_steps, end_steps, pin_step

A, B = AttemptId("a", 1), AttemptId("b", 2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "metrics.db")
    yield store
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.db"


def opened(path: Path) -> MetricsReader:
    reader = open_metrics(path)
    assert reader is not None
    return reader


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["metrics.db-wal", "metrics.db-shm", "metrics.db-journal"])
def test_nothing_is_made_in_the_directory_of_another_user(tmp_path: Path, name: str) -> None:
    """Not even through a link that waits there for what SQLite makes beside a database."""
    home, made = tmp_path / "run", tmp_path / "made"
    home.mkdir()
    with closing(sqlite3.connect(home / "metrics.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE a (b)")
    for file in home.iterdir():
        os.chown(file, 65534, 65534)
    (home / name).unlink(missing_ok=True)
    (home / name).symlink_to(made)
    os.chown(home, 65534, 65534)
    assert open_metrics(home / "metrics.db") is None
    assert not made.exists()
    assert {file.name for file in home.iterdir()} == {"metrics.db", name}


def test_an_attempts_use_is_what_its_samples_come_to(store: Store, path: Path) -> None:
    # (at, GPU memory, CPU seconds, resident, span, utilisation, memory of its two cards)
    samples = [
        (10.0, 100, 1.0, 7, 1.0, 10.0, 110),
        (11.0, 300, 2.5, 9, 1.0, 50.0, 310),
        (14.0, 200, 6.0, 8, 3.0, 90.0, 260),
    ]
    for at, gpu, cpu, resident, span, busy, card in samples:
        sample = AttemptSample(A, at, gpu, cpu, resident, 2, at - 9.0, span, busy, card)
        store.write(attempt_steps(sample), at)
    assert opened_use(path) == AttemptUse(
        A,
        peak_gpu_memory=300,
        mean_gpu_memory=200,  # (100 * 1 + 300 * 1 + 200 * 3) / 5
        peak_gpu_utilization=90.0,
        mean_gpu_utilization=66.0,  # (10 + 50 + 90 * 3) / 5
        gpu_seconds=10.0,  # 5 seconds of two cards
        cpu_seconds=6.0,
        peak_resident=9,
        peak_card_memory=310,
        seconds=5.0,
        told=5.0,
    )
    store.write(end_steps(A, 2, 5.5, 7.25), 15.0)
    use = opened_use(path)
    assert use is not None
    assert (use.gpu_seconds, use.cpu_seconds) == (11.0, 7.25)


def opened_use(path: Path) -> AttemptUse | None:
    with opened(path) as reader:
        assert reader.uses() == {A: reader.use(A)}
        return reader.use(A)


def test_on_pretend_cards_all_that_is_of_a_card_is_none(store: Store, path: Path) -> None:
    store.write(attempt_steps(AttemptSample(A, 1.0, None, 2.0, 3, None, 1.0, 1.0)), 1.0)
    store.write(end_steps(A, None, 2.0, 2.5), 2.0)
    assert opened_use(path) == AttemptUse(A, cpu_seconds=2.5, peak_resident=3, seconds=2.0)


def test_what_was_not_known_at_one_moment_does_not_count_as_zero(store: Store, path: Path) -> None:
    for at, memory, busy in ((1.0, None, None), (2.0, 40, 80.0), (3.0, None, None)):
        steps = attempt_steps(AttemptSample(A, at, memory, None, None, 1, at, 1.0, busy))
        store.write(steps, at)
    use = opened_use(path)
    assert use is not None
    assert (use.mean_gpu_memory, use.mean_gpu_utilization) == (40, 80.0)
    assert (use.cpu_seconds, use.peak_resident) == (None, None)


def test_cpu_seconds_never_go_back(store: Store, path: Path) -> None:
    store.write(attempt_steps(AttemptSample(A, 1.0, None, 9.0, 1, 1, 1.0, 1.0)), 1.0)
    store.write(end_steps(A, 1, 2.0, 8.0), 2.0)
    use = opened_use(path)
    assert use is not None
    assert use.cpu_seconds == 9.0


def test_a_curve_is_thinned_to_as_many_points_as_are_wanted(store: Store, path: Path) -> None:
    for at in range(1000):
        store.write(card_steps(CardSample("GPU-0", float(at), at % 2 * 100, at)), 0.0)
    with opened(path) as reader:
        assert len(reader.cards("GPU-0", most=2000)) == 1000
        few = reader.cards("GPU-0", since=100.0, most=9)
        assert len(few) == 9
        assert [sample.utilization for sample in few] == [50] * 9
        assert few[-1].memory == 999
        assert [s.at for s in few] == sorted(s.at for s in few)
        assert reader.cards("GPU-1") == []
        assert reader.cards("GPU-0", since=2000.0) == []


def test_a_pin_is_what_was_said_last_and_none_where_nothing_was(store: Store, path: Path) -> None:
    for attempt in (A, B):
        store.write(end_steps(attempt, 1, 1.0, None), 1.0)
    store.write([pin_step(A, "unverified", "a container"), pin_step(A, "verified", "")], 1.0)
    with opened(path) as reader:
        assert reader.pins() == {A: ("verified", "")}
        assert reader.use(AttemptId("c", 1)) is None
    assert measured(path).pins == {A: ("verified", "")}


def test_only_the_newest_attempts_are_read_where_that_is_asked(store: Store, path: Path) -> None:
    for number in range(30):
        store.write(end_steps(AttemptId(f"j{number}", 1), 1, 1.0, 1.0), 1.7e9)
    with opened(path) as reader:
        assert len(reader.uses()) == 30
        assert {who.job for who in reader.uses(5)} == {f"j{number}" for number in range(25, 30)}


def test_a_run_was_last_seen_with_its_newest_sample_of_all(store: Store, path: Path) -> None:
    store.write(card_steps(CardSample("GPU-0", 5.0, 1, 1)), 0.0)
    with opened(path) as reader:
        assert reader.last_seen() == 5.0
    store.write(attempt_steps(AttemptSample(A, 9.0, 1, 1.0, 1, 1, 1.0, 1.0)), 0.0)
    with opened(path) as reader:
        assert reader.last_seen() == 9.0


def test_without_a_file_nothing_was_measured(tmp_path: Path) -> None:
    assert measured(tmp_path / "metrics.db") == NOTHING
    assert not (tmp_path / "metrics.db").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE attempt SET gpu_memory_sum = 'much', gpu_memory_time = 'long'",
        "UPDATE attempt SET seconds = 9e999",
        "UPDATE attempt SET last = 1e300",
        "UPDATE attempt SET resident_peak = x'00'",
        "UPDATE attempt SET job = x'ff'",
        "UPDATE attempt_sample SET at = 'now'",
        "UPDATE card_now SET memory = 'all of it'",
        "UPDATE card_sample SET throttled = x'00'",
        "UPDATE gpu SET uuid = x'00'",
        "DROP TABLE attempt; CREATE VIEW attempt AS WITH RECURSIVE c(job, number) AS"
        " (SELECT 'a', 1 UNION ALL SELECT job, number + 1 FROM c) SELECT *, '' AS pin FROM c",
    ],
)
def test_what_no_sampler_writes_is_not_read(store: Store, path: Path, statement: str) -> None:
    store.write(attempt_steps(AttemptSample(A, 1.0, 5, 2.0, 3, None, 1.0, 1.0)), 1.0)
    store.write(card_steps(CardSample("G", 1.0, 1.0, 5, 1.0, 40)), 1.0)
    store.close()
    assert measured(path).uses
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
        connection.commit()
    assert measured(path) == NOTHING
