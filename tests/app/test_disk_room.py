"""A disk that is nearly full is told at a run's end, with what would make room."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulaunch.core import facts as f
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Failure, Instant
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run import clean
from gpulaunch.run.clean import DiskRoom, find_lack_of_room, short_room, short_room_told
from tests.journal.made import made

AT = Instant(0.0, 0.0)


def disk(free: int, of: int = 1000) -> Callable[[str], os.statvfs_result]:
    """A disk of so many GiB."""
    blocks = 4096, 4096, of << 18, free << 18, free << 18, 9, 9, 9, 0, 255
    return lambda path: os.statvfs_result(blocks)


def tried_twice() -> Ledger:
    ledger = Ledger()
    ledger.apply(f.JobAdded("a", 0, 0, "v1"), AT)
    for number in (1, 2):
        attempt = AttemptId("a", number)
        ledger.apply(f.AttemptLaunched(attempt, ()), AT)
        ledger.apply(f.AttemptStarted(attempt, 7), AT)
        ledger.apply(f.AttemptEnded(attempt, End(Exited(1), Failure("exit"))), AT)
    return ledger


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(clean, "LARGE", 1 << 20)
    monkeypatch.chdir(tmp_path)
    one = made(tmp_path)
    for number in (1, 2):
        out = one.out(AttemptId("a", number))
        out.mkdir()
        (out / "big").write_bytes(b"x" * (2 << 20))
    return one


def test_what_is_little_room(tmp_path: Path) -> None:
    assert short_room(tmp_path, disk(40)) == DiskRoom(40 << 30, 0.04)
    assert short_room(tmp_path, disk(100)) is None
    assert short_room(tmp_path, disk(0, 0)) is None, "a file system without blocks"
    assert short_room(tmp_path / "none") is None


def test_the_line_says_what_the_run_takes_and_what_clean_would_free(run: RunDir) -> None:
    line = short_room_told(run, tried_twice(), disk(40))
    assert line.startswith("the disk is nearly full, 40 GiB (4 %) are left: this run takes 4 MiB;")
    assert line.endswith(f"gpulaunch clean {run.path.relative_to(Path.cwd())} would free 2 MiB")
    nothing = short_room_told(run, Ledger(), disk(40))
    assert nothing.endswith("old runs go with gpulaunch clean --runs --older 30d")


def test_nothing_is_said_of_a_small_run_or_a_disk_with_room(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert short_room_told(run, tried_twice(), disk(500)) == ""
    monkeypatch.setattr(clean, "LARGE", 1 << 30)
    assert short_room_told(run, tried_twice(), disk(40)) == ""


def test_no_more_is_measured_than_its_bound(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "LOOK_ENTRIES", 2)
    monkeypatch.setattr(clean, "LARGE", 0)
    assert "takes at least " in short_room_told(run, tried_twice(), disk(40))
    monkeypatch.setattr(clean, "LOOK_SECONDS", -1.0)
    assert "takes at least " in short_room_told(run, tried_twice(), disk(40))


def test_doctor_names_the_disk_of_the_runs_here(run: RunDir) -> None:
    found = find_lack_of_room({}, disk(40))
    assert found is not None
    assert found.level == "warning"
    assert found.what == "the disk with gpulaunch-runs is nearly full: 40 GiB (4 %) are left"
    assert find_lack_of_room({}, disk(500)) is None
    os.chdir("/")
    assert find_lack_of_room({}, disk(40)) is None, "no run was begun here"
