"""Random histories of a run on a strict pretend cluster: every invariant after each step.

GPULAUNCH_TEST_HISTORIES=2000 plays so many instead of the usual number.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from gpulaunch.core.events import StopAttempt
from gpulaunch.engines.slurm import engine
from gpulaunch.engines.slurm.engine import SlurmEngine
from gpulaunch.engines.slurm.outbox import Outbox
from gpulaunch.engines.slurm.queue_hold import QueueHold
from gpulaunch.engines.slurm.withdrawals import Withdrawals
from tests.slurm.histories import ROUGH, History, lived

COUNT = int(os.environ.get("GPULAUNCH_TEST_HISTORIES", "60"))
GROUPS = 10


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where histories keep their files: in memory where there is such a place, never synced."""
    memory = Path("/dev/shm")
    place = memory / f"gpulaunch-{os.getpid()}-{tmp_path.name}" if memory.is_dir() else tmp_path
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    yield place
    if place != tmp_path:
        shutil.rmtree(place, ignore_errors=True)


def play(at: Path, seed: int) -> History:
    try:
        history = lived(at / str(seed), seed)
    except AssertionError as error:
        raise AssertionError(f"history {seed}: {error}") from error
    history.engine.close()
    shutil.rmtree(at / str(seed))
    return history


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_history_keeps_every_invariant_and_ends(at: Path, group: int) -> None:
    for seed in range(group, COUNT, GROUPS):
        play(at, seed)


def test_the_histories_reach_what_they_are_meant_to_reach(at: Path) -> None:
    """A suite of histories in which nothing happens would pass as well."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        history = play(at, seed)
        seen.update(history.seen)
        seen.update(type(ended.outcome).__name__ for ended in history.told)
        seen.update(call[1] for call in history.programs.calls)
        seen["useless"] += len(history.cluster.truth.useless)
    expected = {*ROUGH, "Exited", "Interrupted", "Cancelled", "Lost", "useless", "scontrol"}
    assert not expected - {name for name, count in seen.items() if count}


# ── Deliberately broken versions: each must be found ────────────────────────────────────────────

Breakage: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def _hand_over_again_without_asking(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Outbox, rows: object, whole: bool = True) -> None:
        if self._sending is not None and self.in_doubt:
            self._not_there(self._sending, self._sending.state)  # type: ignore[arg-type]

    patch.setattr(Outbox, "look_up", broken)


def _forget_batches_without_a_number(patch: pytest.MonkeyPatch) -> None:
    read_all = engine.batches.read_all
    patch.setattr(engine.batches, "read_all", lambda run: [b for b in read_all(run) if b.id])


def _wait_for_no_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "NFS_VISIBILITY_TIMEOUT", 0.0)


def _withdraw_what_runs(patch: pytest.MonkeyPatch) -> None:
    for module in ("engine", "ending"):
        patch.setattr(
            f"gpulaunch.engines.slurm.{module}.withdraw", lambda paths, *why: [True] * len(paths)
        )


def _withdraw_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "gpulaunch.engines.slurm.ending.withdraw", lambda paths, *why: [True] * len(paths)
    )


def _leave_in_the_queue_what_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Withdrawals, some: object) -> None:
        self._answered(some)  # type: ignore[arg-type]

    patch.setattr(Withdrawals, "_tell", broken)


def _never_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueHold, "_release", lambda self, some: None)


def _hold_what_a_person_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gpulaunch.engines.slurm.queue_hold._is_held", lambda held: False)


def _forget_the_stops_that_came_early(patch: pytest.MonkeyPatch) -> None:
    stop = SlurmEngine._stop

    def broken(self: SlurmEngine, asked: StopAttempt) -> None:
        held = self._held.get(asked.attempt)
        if held is None or held.id:
            stop(self, asked)

    patch.setattr(SlurmEngine, "_stop", broken)


def _tell_ends_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlurmEngine, "_gone", lambda self, held: None)


@pytest.mark.parametrize(
    "breakage",
    [
        _hand_over_again_without_asking,
        _forget_batches_without_a_number,
        _wait_for_no_record,
        _withdraw_what_runs,
        _withdraw_nothing,
        _leave_in_the_queue_what_was_withdrawn,
        _never_release,
        _hold_what_a_person_holds,
        _forget_the_stops_that_came_early,
        _tell_ends_twice,
    ],
)
def test_a_broken_version_is_found(
    at: Path, breakage: Breakage, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage(monkeypatch)
    for seed in range(400):
        try:
            play(at, seed)
        except (AssertionError, LookupError, ValueError):
            return
    pytest.fail("400 histories passed with a broken version")
