"""Who is owed a message and when: histories as lists of facts."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId
from gpulaunch.core.reasons import OutsideHours
from gpulaunch.jobfile.notify_spec import OCCASIONS, Target
from gpulaunch.observe.notify.message import GAP, Occasions

FAILED = f.JobSettled("a", "failed", Quoted("x"))


def occasions(*targets: tuple[str, int | None]) -> Occasions:
    """Each (names of `on:`, every)."""
    return Occasions(
        [Target(("notify", i), "env:A", None, frozenset(on.split()), every)
         for i, (on, every) in enumerate(targets)]
    )  # fmt: skip


ALL = " ".join(OCCASIONS)


def test_nothing_is_owed_before_something_happens() -> None:
    one = occasions((ALL, 1))
    one.see(f.JobSettled("a", "succeeded"))
    one.see(f.JobSettled("b", "skipped", Quoted("x")))
    one.see(f.JobSettled("c", "cancelled", Quoted("x")))
    assert one.next_at() is None
    assert one.due(100.0) == []


def test_the_first_failure_is_told_at_once_and_once() -> None:
    one = occasions((ALL, None))
    one.see(FAILED)
    assert one.next_at() == 0.0
    assert one.due(5.0) == [(0, ("first_failure",))]
    one.see(FAILED)
    assert one.next_at() is None


def test_every_n_failures() -> None:
    one = occasions(("", 3))
    told = []
    for second in range(9):
        one.see(FAILED)
        told.append(one.due(1000.0 * second))
    assert [bool(due) for due in told] == [False, False, True] * 3
    assert told[2] == [(0, ("failures",))]


def test_a_burst_is_folded_into_one_message_each_half_minute() -> None:
    one = occasions((ALL, 1))
    sent = []
    for tenths in range(1000):  # ten failures a second for a hundred seconds
        one.see(FAILED)
        sent += [(tenths / 10, events) for _, events in one.due(tenths / 10)]
    assert sent[0] == (0.0, ("first_failure", "failures"))
    assert [at for at, _ in sent] == [0.0, GAP, 2 * GAP, 3 * GAP]


def test_a_pause_that_is_over_is_no_news() -> None:
    one = occasions((ALL, None))
    one.see(FAILED)
    one.due(0.0)
    one.see(f.AdmissionPaused(Quoted("ten in a row")))
    assert one.next_at() == GAP
    one.see(f.AdmissionContinued())
    assert one.next_at() is None
    one.see(f.AdmissionPaused(Quoted("ten in a row")))
    assert one.due(GAP) == [(0, ("paused",))]


def test_only_what_on_names_is_told_to_whom() -> None:
    three = occasions(("finish", None), ("first_failure", None), ("paused", 2))
    three.see(FAILED)
    assert three.due(0.0) == [(1, ("first_failure",))]
    three.see(f.AdmissionPaused(Quoted("x")))
    assert three.due(0.0) == [(2, ("paused",))]
    three.see(FAILED)
    assert three.finish(1.0) == [(0, ("finish",)), (2, ("failures",))]
    assert three.next_at() is None


def test_who_is_being_told_waits_for_the_next_message() -> None:
    one = occasions((ALL, 1))
    one.see(FAILED)
    assert one.next_at(busy={0}) is None
    assert one.due(0.0, busy={0}) == []
    assert one.due(0.0) == [(0, ("first_failure", "failures"))]


def test_the_end_waits_for_no_gap_and_brings_what_is_owed_along() -> None:
    one = occasions((ALL, 1))
    one.see(FAILED)
    one.due(0.0)
    one.see(FAILED)
    assert one.due(1.0) == []
    assert one.finish(1.0) == [(0, ("finish", "failures"))]


def test_that_the_hours_of_a_run_begin_or_end_is_told_to_nobody() -> None:
    one = occasions(("paused", None))
    one.see(f.AdmissionPaused(OutsideHours(5.0), "hours"))
    assert one.due(0.0) == []
    one.see(f.AdmissionPaused(Quoted("ten in a row"), "breaker"))
    one.see(f.AdmissionContinued("hours"))
    assert one.due(0.0) == [(0, ("paused",))]


def test_a_card_that_is_held_and_not_used_is_told_of() -> None:
    one = occasions(("gpu_idle", None), ("finish", None))
    one.see(f.AttemptIdle(AttemptId("a", 1), 3660.0, 38 << 30))
    assert one.due(5.0) == [(0, ("gpu_idle",))]
