"""The file may be gone, torn, another's, locked, full: samples are lost, once it is said."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.metrics.model import CardSample
from gpulaunch.observe.metrics.read import MetricsReader, open_metrics
from gpulaunch.observe.metrics.store import (
    BACKLOG,
    VERSION,
    Step,
    Store,
    card_steps,
    end_steps,
    energy_step,
)

A = AttemptId("a", 1)


class Bench:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self.store = Store(path, self.said.append, patience=0.0)

    def sample(self, at: float) -> bool:
        return self.store.write(card(at), at)

    def seen(self) -> list[float]:
        reader = open_metrics(self.path)
        if reader is None:
            return []
        with reader:
            return [sample.at for sample in reader.cards("GPU-0")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "metrics.db")


def card(at: float) -> list[Step]:
    return card_steps(CardSample("GPU-0", at, 50, 1 << 30, 100.0, 40, ("power cap",)))


def test_what_is_written_is_read_back_by_another_connection_at_once(bench: Bench) -> None:
    assert bench.sample(1.0)
    assert bench.seen() == [1.0]
    assert bench.sample(2.0)
    with opened(bench.path) as reader:
        assert reader.latest() == {
            "GPU-0": CardSample("GPU-0", 2.0, 50, 1 << 30, 100.0, 40, ("power cap",))
        }
    assert not bench.said
    bench.store.close()
    assert [entry.name for entry in bench.path.parent.iterdir()] == ["metrics.db"]


def opened(path: Path) -> MetricsReader:
    reader = open_metrics(path)
    assert reader is not None
    return reader


def test_a_second_start_appends_to_the_same_file(bench: Bench) -> None:
    bench.sample(100.0)
    bench.store.close()
    later = Bench(bench.path)
    later.sample(50.0)  # the clock was set back in between
    later.store.close()
    assert later.seen() == [50.0, 100.0]
    with opened(bench.path) as reader:
        assert reader.latest()["GPU-0"].at == 50.0  # the newest, not the one with the highest time


def test_a_file_of_somebody_elses_is_set_aside_and_said_once(bench: Bench) -> None:
    bench.path.write_text("my own notes about metrics, much longer than a header of SQLite's\n" * 9)
    assert open_metrics(bench.path) is None
    assert not bench.sample(1.0)
    assert bench.sample(2.0)
    assert bench.seen() == [1.0, 2.0]
    assert bench.path.with_name("metrics.db.aside").read_text().startswith("my own notes")
    (said,) = bench.said
    assert "not a database" in said
    assert "metrics.db.aside" in said
    bench.store.close()


def test_another_database_is_not_written_into(bench: Bench) -> None:
    with sqlite3.connect(bench.path) as other:
        other.execute("CREATE TABLE results (score REAL)")
    other.close()
    assert open_metrics(bench.path) is None
    bench.sample(1.0)
    assert bench.sample(2.0)
    with sqlite3.connect(bench.path.with_name("metrics.db.aside")) as other:
        assert other.execute("SELECT * FROM results").fetchall() == []
    other.close()
    bench.store.close()


@pytest.mark.parametrize("kept", [0, 1, 50, 3000, 4096, 9000])
def test_a_torn_file_is_never_an_error(bench: Bench, kept: int) -> None:
    for at in range(200):
        bench.sample(float(at))
    bench.store.close()
    whole = bench.path.read_bytes()
    bench.path.write_bytes(whole[:kept])
    reader = open_metrics(bench.path)
    if reader is not None:
        with reader:
            reader.latest(), reader.cards("GPU-0"), reader.uses(), reader.use(A), reader.pins()
    again = Bench(bench.path)
    again.sample(1.0)
    again.sample(2.0)
    assert {1.0, 2.0} <= set(again.seen())
    again.store.close()


def test_what_cannot_be_written_now_is_written_later(bench: Bench) -> None:
    bench.sample(0.0)
    other = sqlite3.connect(bench.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert not bench.sample(1.0)
    assert not bench.sample(2.0)
    other.execute("ROLLBACK")
    other.close()
    assert bench.sample(3.0)
    assert bench.seen() == [0.0, 1.0, 2.0, 3.0]
    assert len(bench.said) == 1
    assert "locked" in bench.said[0]
    bench.store.close()


def test_a_writer_that_is_held_up_for_long_loses_the_oldest_samples_alone(bench: Bench) -> None:
    bench.sample(0.0)
    other = sqlite3.connect(bench.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for at in range(1, BACKLOG + 6):
        bench.store.write(card(float(at)), float(at))
    other.execute("ROLLBACK")
    other.close()
    bench.store.write([], 200.0)
    assert bench.seen() == [0.0, *map(float, range(6, BACKLOG + 6))]
    bench.store.close()


def test_a_full_disk_costs_samples_and_one_line(bench: Bench) -> None:
    bench.sample(1.0)
    connection = bench.store._connection
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    at = 2.0
    while bench.sample(at):
        at += 1.0
    assert not bench.sample(at + 1)
    assert "full" in bench.said[0]
    connection.execute("PRAGMA max_page_count = 10000")
    assert bench.sample(at + 2)
    assert len(bench.seen()) == at + 2
    assert len(bench.said) == 1
    bench.store.close()


def test_a_directory_that_is_gone_is_said_and_no_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "gone" / "metrics.db")
    assert not bench.sample(1.0)
    assert "No such file" in bench.said[0]
    assert open_metrics(bench.path) is None


def test_a_file_without_samples_is_as_good_as_none(bench: Bench) -> None:
    bench.store.write([("thinned", {"step": 10.0})], 0.0)
    assert bench.path.exists()
    assert open_metrics(bench.path) is None
    bench.store.write(end_steps(A, None, 1.0, None), 0.0)
    opened(bench.path).close()
    bench.store.close()


KILLED = """
import sys, itertools
from pathlib import Path
from gpulaunch.observe.metrics.store import Store, card_steps
from gpulaunch.observe.metrics.model import CardSample
store = Store(Path(sys.argv[1]))
for n in itertools.count():
    steps = []
    for gpu in range(40):
        steps += card_steps(CardSample(f"GPU-{gpu}", float(n), 50, n))
    assert store.write(steps, 0.0)
    print(n, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        while int(process.stdout.readline()) < 20:
            continue
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with opened(path) as reader:
            newest = {sample.memory for sample in reader.latest().values()}
            assert len(newest) == 1  # all of a moment, or nothing of it
        check = sqlite3.connect(path)
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        check.close()
        path.unlink()


# ── Databases of an earlier version ─────────────────────────────────────────────────────────────


def older(path: Path) -> None:
    """Make of a database one of the first version, as its first gpulaunch wrote it."""
    with sqlite3.connect(path, isolation_level=None) as database:
        for table in ("attempt", "card_now"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN energy")
        database.execute("PRAGMA user_version = 1")
    database.close()


def test_a_database_of_the_first_version_is_read_as_it_is_and_goes_on_as_a_new_one(
    bench: Bench,
) -> None:
    bench.sample(1.0)
    bench.store.write(end_steps(A, 1, 5.0, 2.0), 1.0)
    bench.store.close()
    older(bench.path)
    before = bench.path.read_bytes()
    with opened(bench.path) as reader:
        use = reader.use(A)
        assert use is not None
        assert (use.cpu_seconds, use.energy) == (2.0, None)
        assert reader.totals() == (None, False)
        assert reader.counters() == {}
        assert set(reader.latest()) == {"GPU-0"}
    assert bench.path.read_bytes() == before  # a reader changes nothing
    again = Bench(bench.path)
    assert again.store.write([energy_step(A, 40.0), energy_step(A, 2.0)], 2.0)
    again.store.close()
    with opened(bench.path) as reader:
        use = reader.use(A)
        assert use is not None
        assert use.energy == 42.0
        assert reader.totals() == (42.0, False)
    assert not again.said
    assert [entry.name for entry in bench.path.parent.iterdir()] == ["metrics.db"]


def test_a_database_of_a_version_to_come_is_not_read_and_is_set_aside(bench: Bench) -> None:
    bench.sample(1.0)
    bench.store.close()
    with sqlite3.connect(bench.path, isolation_level=None) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    assert open_metrics(bench.path) is None
    again = Bench(bench.path)
    assert not again.sample(2.0)
    assert "metrics.db.aside" in again.said[0]
