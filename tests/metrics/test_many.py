from __future__ import annotations

import sqlite3
from pathlib import Path

from gpulaunch.core.model import AttemptId
from gpulaunch.metrics.read import measured
from gpulaunch.metrics.store import Store, end_steps
from gpulaunch.metrics.thin import forget_old


def kept(path: Path, count: int = 30) -> Path:
    """The samples of so many attempts, one after another."""
    store = Store(path)
    for number in range(count):
        assert store.write(end_steps(AttemptId(f"j{number}", 1), 1, 1.0, 1.0), 1.7e9)
    store.close()
    return path


def test_only_the_newest_attempts_are_read_and_those_that_are_asked_for(tmp_path: Path) -> None:
    path = kept(tmp_path / "metrics.db")
    assert len(measured(path).uses) == 30
    named = AttemptId("j3", 1)
    found = measured(path, 5, [named, AttemptId("nobody", 1)]).uses
    assert {who.job for who in found} == {"j3", *(f"j{number}" for number in range(25, 30))}


def test_what_the_oldest_of_too_many_attempts_used_is_dropped(tmp_path: Path) -> None:
    path = kept(tmp_path / "metrics.db")
    with sqlite3.connect(path) as connection:
        forget_old(connection, 10)
    connection.close()
    assert {who.job for who in measured(path).uses} == {f"j{n}" for n in range(20, 30)}
