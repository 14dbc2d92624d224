"""What `gpus:` and `--gpus` may say, and which cards that is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpulaunch.core.model import (
    ALL,
    Gpu,
    Selection,
    choose,
    describe,
    describe_taken,
    parse_selection,
)

CARDS = [Gpu(f"SIM-{i}", i, f"sim/{i}", "card", 1 << 30, simulated=True) for i in range(12)]


@pytest.mark.parametrize(
    ("value", "selection"),
    [
        ("all", ALL),
        ("2", Selection(count=2)),
        ("[0, 2]", Selection(which=("0", "2"))),
        ("0,2", Selection(which=("0", "2"))),
        ("[0]", Selection(which=("0",))),
        ("2,", Selection(which=("2",))),
        ("0,2,", Selection(which=("0", "2"))),
        ("GPU-5f3c,", Selection(which=("GPU-5f3c",))),
        ("GPU-5f3c", Selection(which=("GPU-5f3c",))),
        ("['SIM-1', \"2\"]", Selection(which=("SIM-1", "2"))),
        (["0", "MIG-a/1/2"], Selection(which=("0", "MIG-a/1/2"))),
    ],
)
def test_all_a_number_or_a_list(value: str | list[str], selection: Selection) -> None:
    assert parse_selection(value) == selection


@pytest.mark.parametrize(
    "text", ["[0", "0]", "[", "]", "[0, 1", "[]", "", "[0,]", "[[0]]", ",", "0,,2", ",0", "2,,"]
)
def test_brackets_come_in_pairs_around_something(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_selection(text)


def test_another_word_is_answered_with_what_is_possible() -> None:
    with pytest.raises(ValueError, match=r"all, a number of cards, indices like 0,2 \(one: 2,\)"):
        parse_selection("none")


def test_a_card_is_named_once() -> None:
    for named in (["SIM-1", "1"], ["1", "sim-1"], ["01", "1"], ["0", "1", "SIM-2", "2"]):
        with pytest.raises(LookupError, match="are the same card"):
            choose(parse_selection(named), CARDS[:4])
    with pytest.raises(ValueError, match="card 1 is named twice"):
        parse_selection("1,1")


def test_a_card_that_is_not_there_is_named() -> None:
    assert choose(parse_selection("[2, 0]"), CARDS[:4]) == (CARDS[2], CARDS[0])
    with pytest.raises(LookupError, match=r"there is no card 7 \(cards here: 0, 1\)"):
        choose(parse_selection("[7]"), CARDS[:2])


def test_a_short_uuid_may_fit_only_one_card() -> None:
    ours = [Gpu(f"GPU-5{i}", n, f"k{n}", "card", 1 << 30) for n, i in enumerate("abc")]
    with pytest.raises(LookupError, match="gpu-5 fits 3 cards: write more of the UUID"):
        choose(parse_selection("gpu-5"), ours)
    assert choose(parse_selection("gpu-5b"), ours) == (ours[1],)
    assert choose(parse_selection("SIM-1"), CARDS) == (CARDS[1],)


@pytest.mark.parametrize(
    ("count", "spec", "text"),
    [
        (1, "all", "1 of 4 simulated cards, any"),
        (3, "3", "3 of 4 simulated cards, any"),
        (1, "3", "1 of 4 simulated cards, any"),
        (4, "all", "all 4 simulated cards"),
        (1, "3,", "GPU 3 of 4 simulated cards"),
        (1, "0,2", "1 of GPUs 0, 2 of 4 simulated cards"),
        (2, "0,2", "GPUs 0, 2 of 4 simulated cards"),
    ],
)
def test_what_a_command_takes_is_said_as_it_was_understood(
    count: int, spec: str, text: str
) -> None:
    assert describe_taken(count, parse_selection(spec), CARDS[:4]) == text


@pytest.mark.parametrize(
    ("here", "spec", "text"),
    [
        (CARDS[2:4], "3,", "GPU 3 of simulated cards 2, 3"),
        (CARDS[2:4], "2,3", "GPUs 2, 3 of simulated cards 2, 3"),
        (CARDS[3:4], "3,", "GPU 3 of simulated card 3"),
        (CARDS[:1], "0,", "GPU 0 of 1 simulated card"),
        (CARDS[2:4], "1", "1 of 2 simulated cards, any"),
    ],
)
def test_of_some_cards_of_a_machine_the_numbers_are_said(
    here: Sequence[Gpu], spec: str, text: str
) -> None:
    assert describe(parse_selection(spec), here) == text
