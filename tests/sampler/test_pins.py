"""Verdicts on where an attempt's processes are."""

from __future__ import annotations

from collections.abc import Iterable

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.sampler.driver import DriverSample
from gpulaunch.observe.sampler.tree import FOREIGN, Pin, Pins

A, B = AttemptId("a", 1), AttemptId("b", 1)
OWN = frozenset({"GPU-0"})
TREE = {10: 100.0, 11: 101.0}


def on_host() -> Pins:
    return Pins(host=True, same=lambda pid: True)


def in_container(same: Iterable[int] = ()) -> Pins:
    ours = set(same)
    return Pins(host=False, same=lambda pid: pid in ours)


def seen(*pids: Iterable[int], whole: bool = True, silent: str = "") -> DriverSample:
    by_card = {f"GPU-{n}": dict.fromkeys(some, 1) for n, some in enumerate(pids)}
    return DriverSample(
        pids=by_card, whole=whole, silent={silent: f"{silent} is mute"} if silent else {}
    )


def test_a_tree_on_its_own_card_and_no_other_is_verified() -> None:
    assert on_host().judge(A, OWN, TREE, seen([11], [99])) == Pin("verified")


def test_no_process_seen_is_no_verdict() -> None:
    assert on_host().judge(A, OWN, TREE, seen([99], [98])) is None


def test_where_not_all_cards_were_looked_at_nothing_is_verified() -> None:
    assert on_host().judge(A, OWN, TREE, seen([11], whole=False)) is None
    assert on_host().judge(A, OWN, TREE, seen([11], silent="GPU-1")) == Pin(
        "unverified", "GPU-1 is mute"
    )
    assert on_host().judge(A, OWN, TREE, seen([], silent="GPU-1")) is None


def test_what_two_looks_see_on_another_card_is_misplaced() -> None:
    pins = on_host()
    assert pins.judge(A, OWN, TREE, seen([10], [11])) is None
    assert pins.suspects
    assert pins.judge(A, OWN, TREE, seen([10], [11])) == Pin("misplaced", gpu="GPU-1", pid=11)


def test_one_look_alone_proves_nothing() -> None:
    pins = on_host()
    assert pins.judge(A, OWN, TREE, seen([10], [11])) is None
    assert pins.judge(A, OWN, TREE, seen([10], [])) == Pin("verified")
    assert pins.judge(A, OWN, TREE, seen([10], [11])) is None


def test_a_number_that_passed_to_another_process_is_not_the_same_one() -> None:
    pins = on_host()
    assert pins.judge(A, OWN, {11: 101.0}, seen([], [11])) is None
    assert pins.judge(A, OWN, {11: 222.0}, seen([], [11])) is None


def test_two_jobs_that_share_a_card_are_both_at_home() -> None:
    pins, both = on_host(), seen([10, 20], [])
    assert pins.judge(A, OWN, {10: 1.0}, both) == Pin("verified")
    assert pins.judge(B, OWN, {20: 1.0}, both) == Pin("verified")


def test_a_job_of_several_cards_is_at_home_on_each() -> None:
    own = frozenset({"GPU-0", "GPU-1"})
    assert on_host().judge(A, own, TREE, seen([10], [11], [])) == Pin("verified")


def test_a_job_without_cards_may_be_on_none() -> None:
    pins = on_host()
    assert pins.judge(A, frozenset(), TREE, seen([99])) is None
    pins.judge(A, frozenset(), TREE, seen([10]))
    assert pins.judge(A, frozenset(), TREE, seen([10])) == Pin("misplaced", gpu="GPU-0", pid=10)


def test_in_a_container_the_same_numbers_say_nothing() -> None:
    pins = in_container()
    for _ in range(3):
        assert pins.judge(A, OWN, TREE, seen([], [10])) == Pin("unverified", FOREIGN)
    assert pins.judge(A, OWN, TREE, seen([10], [])) == Pin("unverified", FOREIGN)
    assert pins.judge(A, frozenset(), TREE, seen([10], [])) is None


def test_in_a_container_what_is_seen_to_be_the_same_is_believed_but_never_blamed() -> None:
    pins = in_container(same=[10, 11])
    assert pins.judge(A, OWN, TREE, seen([10], [])) == Pin("verified")
    for _ in range(3):
        assert pins.judge(A, OWN, TREE, seen([10], [11])) == Pin("unverified", FOREIGN)
    assert pins.known({10: 1.0, 12: 1.0}) == {10: 1.0}


def test_a_process_may_open_its_card_later() -> None:
    ours: set[int] = set()
    pins = Pins(host=False, same=lambda pid: pid in ours)
    assert pins.judge(A, OWN, TREE, seen([10])) == Pin("unverified", FOREIGN)
    ours.add(10)
    assert pins.judge(A, OWN, TREE, seen([10])) == Pin("verified")
