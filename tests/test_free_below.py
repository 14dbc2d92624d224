from __future__ import annotations

import pytest

from gpulaunch.base.free_below import FreeBelow, parse_free_below

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2GB", FreeBelow(2 * 10**9)),
        ("512 MiB", FreeBelow(512 * 2**20)),
        ("5%", FreeBelow(percent=5.0)),
        ("0.5 %", FreeBelow(percent=0.5)),
        ("100%", FreeBelow(percent=100.0)),
        ("2GB,5%", FreeBelow(2 * 10**9, 5.0)),
        ("1%, 512MiB", FreeBelow(512 * 2**20, 1.0)),
    ],
)
def test_memory_is_an_amount_or_a_part_of_the_card_or_both(text: str, read: FreeBelow) -> None:
    assert parse_free_below(text) == read


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("150%", "expected a part of the card above 0% and at most 100%, found 150%"),
        ("0%", "expected a part of the card above 0% and at most 100%, found 0%"),
        ("-1", "expected memory like 2GB, a part of the card like 5%, or both"),
        ("-5%", "expected memory like 2GB"),
        ("lots", "found 'lots'"),
        ("2", "expected memory like 2GB"),
        ("0GB", "expected memory like 2GB"),
        ("", "expected memory like 2GB"),
        ("1GB,2GB", "expected memory like 2GB"),
        ("1%,2%", "expected memory like 2GB"),
        ("1GB,", "expected memory like 2GB"),
        ("5%%", "expected memory like 2GB"),
        ("\u0665%", "expected memory like 2GB"),
        ("9" * 5000 + "%", "expected memory like 2GB"),
    ],
)
def test_anything_else_is_refused_and_told(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_free_below(text)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_larger_of_both_counts() -> None:
    line = FreeBelow(1 * GIB, 5.0)
    assert line.of(10 * GIB) == 1 * GIB
    assert line.of(80 * GIB) == 4 * GIB
