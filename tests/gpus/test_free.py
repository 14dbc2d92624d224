from __future__ import annotations

import pytest

from gpulaunch.base.free_below import FreeBelow
from gpulaunch.core.events import Occupied, Sick
from gpulaunch.gpus.machine import CardReading, Process, drained, is_free, not_drained

MIB, GIB = 2**20, 2**30
GB = 10**9
ALICE = Process(4242, "C", 41 * GIB, "alice", "python train.py")


def card(*processes: Process, used: int = 4 * MIB, total: int = 80 * GIB) -> CardReading:
    return CardReading("GPU-0", total=total, free=total - used, used=used, processes=processes)


def test_an_idle_card_is_free() -> None:
    assert is_free(card()) is None


def test_a_strangers_process_is_named_with_user_memory_and_command() -> None:
    busy = is_free(card(ALICE, used=41 * GIB))
    assert busy == Occupied("alice (pid 4242, 41 GiB): python train.py", 0)


def test_a_process_nobody_can_name_here_makes_the_card_busy_all_the_same() -> None:
    busy = is_free(card(Process(4242, "C")))
    assert busy == Occupied("somebody outside this container (pid 4242): command unknown", 0)


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


# ── A desktop on the card ───────────────────────────────────────────────────────────────────────


def firefox(memory: int | None) -> Process:
    return Process(77, "C+G", memory, "ann", "firefox")


def small(*processes: Process, used: int, windows: bool = False) -> CardReading:
    """A card of 24 GiB, whose line is 512 MiB."""
    total = 24 * GIB
    return CardReading(
        "GPU-0",
        total=total,
        free=total - used,
        used=used,
        processes=processes,
        windows=windows,
    )


def test_a_desktop_program_that_computes_as_well_counts_from_the_line_on() -> None:
    assert is_free(small(firefox(400 * MIB), used=410 * MIB)) is None
    busy = is_free(small(firefox(900 * MIB), used=910 * MIB))
    assert busy == Occupied("ann (pid 77, 900 MiB): firefox", 2 * GB)
    assert is_free(small(firefox(900 * MIB), used=910 * MIB), free_below=FreeBelow(2 * GB)) is None


def test_the_line_is_of_each_desktop_program_and_of_nobodys_memory() -> None:
    two = (firefox(400 * MIB), Process(78, "C+G", 400 * MIB, "ann", "gnome-shell"))
    assert is_free(small(*two, used=810 * MIB)) is None
    assert isinstance(is_free(small(*two, used=1600 * MIB)), Occupied)


def test_a_desktop_program_of_unknown_memory_is_judged_by_nobodys_memory() -> None:
    assert is_free(small(firefox(None), used=400 * MIB)) is None
    busy = is_free(small(firefox(None), used=3 * GIB))
    assert isinstance(busy, Occupied)
    assert busy.by.startswith("ann (pid 77): firefox; 3 GiB are in use there")
    assert busy.free_below == 4 * GB
    assert isinstance(is_free(CardReading("GPU-0", processes=(firefox(None),))), Occupied)


def test_a_program_that_only_computes_occupies_a_card_however_little_it_has() -> None:
    a_out = Process(7, "C", 1 * MIB, "bob", "a.out")
    busy = is_free(small(a_out, used=2 * MIB), free_below=FreeBelow(1 * GIB))
    assert busy == Occupied("bob (pid 7, 1 MiB): a.out", 0)
    both = small(firefox(900 * MIB), a_out, used=1 * GIB)
    busy = is_free(both)
    assert isinstance(busy, Occupied)
    assert busy.free_below == 0
    assert "firefox" in busy.by
    assert "a.out" in busy.by


@pytest.mark.parametrize(
    ("line", "free"),
    [
        (FreeBelow(1 * GB), False),
        (FreeBelow(2 * GB), True),
        (FreeBelow(percent=5.0), False),
        (FreeBelow(percent=10.0), True),
        (FreeBelow(1 * GB, 10.0), True),
    ],
)
def test_nobodys_memory_counts_from_the_line_on(line: FreeBelow, free: bool) -> None:
    assert (is_free(small(used=1400 * MIB), free_below=line) is None) is free


@pytest.mark.parametrize("used", [513 * MIB, 700 * MIB, 1 * GIB, 1400 * MIB, 5 * GIB, 9 * GIB])
def test_the_line_that_is_named_would_have_the_card_taken(used: int) -> None:
    busy = is_free(small(used=used))
    assert isinstance(busy, Occupied)
    assert busy.free_below
    assert is_free(small(used=used), free_below=FreeBelow(busy.free_below)) is None


def test_a_card_that_is_much_in_use_is_not_called_free_by_any_line() -> None:
    busy = is_free(small(used=20 * GIB))
    assert busy == Occupied("20 GiB are in use there by nobody that the driver names", 0)


def test_windows_own_desktop_is_no_ground_to_wait_and_a_full_card_is() -> None:
    assert is_free(small(used=1900 * MIB)) is not None
    assert is_free(small(used=1900 * MIB, windows=True)) is None
    busy = is_free(small(used=2200 * MIB, windows=True))
    assert isinstance(busy, Occupied)
    assert busy.by == "2.1 GiB are in use there by Windows or others: the driver names nobody"
    assert busy.free_below == 3 * GB
    assert isinstance(is_free(small(used=18 * GIB, windows=True)), Occupied)
    little = CardReading("GPU-0", total=4 * GIB, used=1100 * MIB, windows=True)
    assert isinstance(is_free(little), Occupied), "a quarter of a little card at most"
    set_lower = is_free(small(used=1 * GIB, windows=True), free_below=FreeBelow(1 * GB))
    assert isinstance(set_lower, Occupied)


def test_a_desktop_that_grows_while_a_job_runs_does_not_keep_its_card_draining() -> None:
    xorg, grown = (Process(5, "G", m, "root", "Xorg") for m in (200 * MIB, 900 * MIB))
    before = small(xorg, used=210 * MIB)
    assert drained(before, small(grown, used=915 * MIB))
    assert not drained(before, small(grown, used=2 * GIB)), "the job's own memory is still there"
    assert drained(small(grown, used=915 * MIB), small(xorg, used=215 * MIB))
    assert not drained(small(grown, used=915 * MIB), small(xorg, used=915 * MIB))
    assert drained(small(used=4 * MIB), small(firefox(900 * MIB), used=910 * MIB))


def test_a_desktop_whose_memory_is_not_told_has_drained_once_the_card_counts_as_free() -> None:
    before = small(used=300 * MIB, windows=True)
    assert drained(before, small(used=1800 * MIB, windows=True))
    assert not drained(before, small(used=3 * GIB, windows=True))
    assert drained(before, small(used=3 * GIB, windows=True), FreeBelow(4 * GB))
    untold = Process(5, "G", None, "root", "Xorg")
    assert drained(small(untold, used=100 * MIB), small(untold, used=500 * MIB))
    assert not drained(small(used=100 * MIB), small(used=500 * MIB)), "no desktop is there"


def test_memory_that_a_desktop_may_have_makes_no_card_unfit() -> None:
    assert not_drained(small(used=9 * GIB), 30.0) == Sick(
        "its memory was not given back within 30 s of its last job"
    )
    busy = not_drained(small(used=9 * GIB, windows=True), 30.0)
    assert isinstance(busy, Occupied)
    assert busy.free_below == 11 * GB
