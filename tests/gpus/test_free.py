from __future__ import annotations

import pytest

from gpulaunch.core.events import Occupied, Sick
from gpulaunch.gpus.machine import CardReading, Process, drained, is_free

MIB, GIB = 2**20, 2**30
ALICE = Process(4242, "C", 41 * GIB, "alice", "python train.py")


def card(*processes: Process, used: int = 4 * MIB, total: int = 80 * GIB) -> CardReading:
    return CardReading("GPU-0", total=total, free=total - used, used=used, processes=processes)


def test_an_idle_card_is_free() -> None:
    assert is_free(card()) is None


def test_a_strangers_process_is_named_with_user_memory_and_command() -> None:
    busy = is_free(card(ALICE, used=41 * GIB))
    assert busy == Occupied("alice (pid 4242, 41 GiB): python train.py")


def test_a_process_nobody_can_name_here_makes_the_card_busy_all_the_same() -> None:
    busy = is_free(card(Process(4242, "C")))
    assert busy == Occupied("somebody outside this container (pid 4242): command unknown")


@pytest.mark.parametrize("kind", ["C", "M"])
def test_computing_through_mps_counts_as_computing(kind: str) -> None:
    assert isinstance(is_free(card(Process(1, kind))), Occupied)  # type: ignore[arg-type]


def test_a_desktop_does_not_make_a_card_busy() -> None:
    assert is_free(card(Process(1, "G", 700 * MIB), used=710 * MIB)) is None
    assert is_free(card(Process(1, "G"), used=710 * MIB)) is None


@pytest.mark.parametrize(
    ("total", "used", "free"),
    [
        (80 * GIB, 818 * MIB, True),
        (80 * GIB, 820 * MIB, False),
        (24 * GIB, 511 * MIB, True),
        (24 * GIB, 512 * MIB, False),
    ],
)
def test_memory_that_no_process_accounts_for(total: int, used: int, free: bool) -> None:
    assert (is_free(card(used=used, total=total)) is None) is free


def test_share_busy_accepts_strangers_and_never_a_sick_card() -> None:
    assert is_free(card(ALICE, used=41 * GIB), share_busy=True) is None
    assert is_free(CardReading("GPU-0", sick="GPU is lost"), share_busy=True) == Sick("GPU is lost")


def test_what_the_driver_does_not_say_is_no_ground_for_refusal() -> None:
    assert is_free(CardReading("GPU-0")) is None


def test_a_card_is_drained_when_its_memory_is_what_it_was() -> None:
    before = card(used=4 * MIB)
    assert not drained(before, card(used=30 * GIB))
    assert not drained(before, card(used=100 * MIB))
    assert drained(before, card(used=20 * MIB))


def test_memory_of_a_stranger_who_came_meanwhile_is_not_the_attempts() -> None:
    before = card()
    assert drained(before, card(ALICE, used=41 * GIB + 4 * MIB))
    assert not drained(before, card(ALICE, used=70 * GIB))
    assert drained(before, card(Process(7, "C", None, "bob", "python"), used=70 * GIB))


def test_a_dead_process_that_the_driver_still_lists_keeps_the_card_draining() -> None:
    dead = Process(7, "C", 30 * GIB)
    assert not drained(card(), card(dead, used=30 * GIB))


def test_on_a_shared_card_what_was_there_before_does_not_count() -> None:
    before = card(ALICE, used=41 * GIB)
    assert drained(before, card(ALICE, used=41 * GIB))
    assert not drained(before, card(ALICE, used=60 * GIB))


def test_where_memory_is_not_told_the_processes_decide() -> None:
    before = CardReading("GPU-0")
    assert drained(before, CardReading("GPU-0"))
    assert not drained(before, CardReading("GPU-0", processes=(Process(7, "C"),)))
