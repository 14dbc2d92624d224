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

from gpulaunch.core.events import HoldQueue
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm import (
    cancellation,
    engine,
    following,
    outcome,
    script,
    standstill,
    step,
    submission,
    withdrawals,
)
from gpulaunch.engines.slurm.attempt import QueueSnapshot, SlurmAttempt
from gpulaunch.engines.slurm.records import DiskRecords
from gpulaunch.engines.slurm.state import SlurmState
from tests.slurm.histories import ROUGH, History, lived

COUNT = int(os.environ.get("GPULAUNCH_TEST_HISTORIES", "60"))
GROUPS = 10


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where histories keep their files: in memory where there is such a place, never synced."""
    memory = Path("/dev/shm")
    place = memory / f"gpulaunch-{os.getpid()}-{tmp_path.name}" if memory.is_dir() else tmp_path
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(script, "archived", lambda before: b"")  # no node runs it
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
        seen.update(type(ended.end.outcome).__name__ for ended in history.told)
        seen.update(call[1] for call in history.programs.calls)
        seen["useless"] += len(history.cluster.truth.useless)
    outcomes = {"Exited", "Interrupted", "Cancelled", "Lost", "TimedOut"}
    expected = {*ROUGH, *outcomes, "useless", "scontrol"}
    assert not expected - {name for name, count in seen.items() if count}


# ── Deliberately broken versions: each must be found ────────────────────────────────────────────

Breakage: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def _hand_over_again_without_asking(patch: pytest.MonkeyPatch) -> None:
    def broken(state: SlurmState, rows: object, whole: bool) -> None:
        batch = state.outbox.sending
        if batch is not None and state.outbox.in_doubt:
            submission._not_there(state, batch, batch.state)  # type: ignore[arg-type]

    patch.setattr(submission, "look_up", broken)


def _forget_batches_without_a_number(patch: pytest.MonkeyPatch) -> None:
    read_all = engine.batches.read_all
    patch.setattr(engine.batches, "read_all", lambda run: [b for b in read_all(run) if b.id])


def _take_a_number_for_a_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueSnapshot, "row_of", QueueSnapshot._numbered)


def _wait_for_no_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcome, "NFS_VISIBILITY_TIMEOUT", 0.0)


def _withdraw_what_runs(patch: pytest.MonkeyPatch) -> None:
    def broken(self: DiskRecords, groups: dict[object, list[AttemptId]]) -> object:
        return frozenset(a for some in groups.values() for a in some), frozenset()

    patch.setattr(DiskRecords, "claim", broken)


def _leave_in_the_queue_what_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    def broken(state: SlurmState, some: list[SlurmAttempt]) -> None:
        withdrawals.answered(state, [held.attempt for held in some])

    patch.setattr(withdrawals, "cancel", broken)


def _never_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(standstill, "_release", lambda state, some: None)


def _never_hold(patch: pytest.MonkeyPatch) -> None:
    want = standstill.want

    def broken(state: SlurmState, on: bool) -> None:
        if not on:
            want(state, on)

    patch.setattr(standstill, "want", broken)


def _hand_over_while_paused(patch: pytest.MonkeyPatch) -> None:
    observe = step._observe

    def broken(state: SlurmState, seen: object) -> None:
        observe(state, seen)  # type: ignore[arg-type]
        if isinstance(seen, HoldQueue) and seen.on:
            state.hold.on = False

    patch.setattr(step, "_observe", broken)


def _forget_what_came_with_no_number(patch: pytest.MonkeyPatch) -> None:
    ask = cancellation.ask

    def broken(state: SlurmState, attempt: AttemptId) -> None:
        if state.attempts[attempt].id:
            ask(state, attempt)

    patch.setattr(cancellation, "ask", broken)
    patch.setattr(submission, "numbered", _numbered_and_no_more)


def _numbered_and_no_more(state: SlurmState, batch: object) -> None:
    stops = {held.attempt: held.stop for held in state.attempts.values()}
    for attempt in stops:
        state.change(attempt, stop=None)
    _NUMBERED(state, batch)  # type: ignore[arg-type]
    for attempt, stop in stops.items():
        state.change(attempt, stop=stop)


_NUMBERED = submission.numbered


def _post_ends_twice(patch: pytest.MonkeyPatch) -> None:
    over = withdrawals.over

    def broken(state: SlurmState, held: SlurmAttempt, *how: object) -> None:
        over(state, held, *how)  # type: ignore[arg-type]
        state.post(next(a.event for a in state.out if hasattr(a, "event")))

    patch.setattr(withdrawals, "over", broken)


def _cancel_no_strays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following, "recall", lambda state: None)
    patch.setattr(following, "cancel_strays", lambda state, rows: None)
    patch.setattr(withdrawals, "look", lambda state, rows, asked_at, whole: None)


@pytest.mark.parametrize(
    ("breakage", "first"),
    [
        (_hand_over_again_without_asking, 3),
        (_forget_batches_without_a_number, 3),
        (_take_a_number_for_a_name, 10),
        (_wait_for_no_record, 0),
        (_withdraw_what_runs, 33),
        (_leave_in_the_queue_what_was_withdrawn, 7),
        (_never_release, 20),
        (_never_hold, 70),
        (_hand_over_while_paused, 70),
        (_forget_what_came_with_no_number, 10),
        (_post_ends_twice, 0),
        (_cancel_no_strays, 147),
    ],
)
def test_a_broken_version_is_found(
    at: Path, breakage: Breakage, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`first` is a history that found it when this was written."""
    breakage(monkeypatch)
    for seed in (first, *range(400)):
        try:
            play(at, seed)
        except (AssertionError, LookupError, ValueError):
            return
        finally:
            shutil.rmtree(at, ignore_errors=True)
    pytest.fail("400 histories passed with a broken version")
