from __future__ import annotations

import pytest

from gpulaunch.gpus import xid


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_what_applications_cause_sets_no_card_aside(code: int) -> None:
    meaning = xid.xid(code)
    assert (meaning.verdict, meaning.stops) == ("app", False)
    assert meaning.text.startswith(f"Xid {code} (")


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120])
def test_a_card_that_needs_a_reset_or_a_reboot_is_lost(code: int) -> None:
    assert xid.xid(code).verdict == "lost"


@pytest.mark.parametrize("code", [62, 79, 95, 119, 120])
def test_what_runs_on_a_dead_card_is_not_waited_for(code: int) -> None:
    assert xid.xid(code).stops


@pytest.mark.parametrize("code", [48, 64, 74])
def test_what_runs_on_a_card_that_still_answers_may_come_to_its_end(code: int) -> None:
    assert not xid.xid(code).stops


@pytest.mark.parametrize("code", [63, 94, 154, 8, 70, 83, 104, 149])
def test_a_card_that_goes_on_is_only_annotated(code: int) -> None:
    assert (xid.xid(code).verdict, xid.xid(code).stops) == ("note", False)


@pytest.mark.parametrize("code", [0, 1, 14, 999, 2**40])
def test_an_unknown_number_is_named_and_nothing_more(code: int) -> None:
    meaning = xid.xid(code)
    assert meaning.verdict == "note"
    assert meaning.title == f"Xid {code}"
    assert "catalogue" in meaning.text


def test_every_meaning_is_one_line_and_only_lost_cards_stop_what_runs() -> None:
    meanings = [xid.xid(code) for code in range(200)]
    meanings += [xid.recovery(action) for action in range(9)]
    meanings += [xid.event(kind) for kind in xid.EVENT_TYPES]
    for meaning in meanings:
        assert "\n" not in meaning.text
        assert len(meaning.text) < 160
        assert meaning.verdict == "lost" or not meaning.stops


def test_a_wish_for_a_reset_or_a_reboot_makes_a_card_lost() -> None:
    assert [n for n in range(9) if xid.recovery(n).verdict == "lost"] == [1, 2, 4, 6, 7]
    assert not xid.recovery(4).stops
    assert "reboot" in xid.recovery(2).text


def test_a_recovery_action_and_a_look_agree_on_which_cards_are_unfit() -> None:
    from gpulaunch.gpus import parse

    for action in range(9):
        look = parse.look({"uuid": "GPU-1", "recovery": action})
        assert (look.sick is not None) == (xid.recovery(action).verdict == "lost")


def test_event_types_are_single_bits_and_none_of_those_that_come_all_the_time() -> None:
    bits = list(xid.EVENT_TYPES.values())
    assert all(bit & (bit - 1) == 0 for bit in bits)
    assert not sum(bits) & 0x195  # corrected error, power state, clock, power source, MIG change
