"""Spans, bytes, counts and lists: what is written is read back, and each has one spelling."""

from __future__ import annotations

import os
import subprocess

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpulaunch.base import text
from gpulaunch.cli.options import Duration
from gpulaunch.jobfile.values import positive_duration

SPANS = {
    "90": 90,
    "0.5": 0.5,
    "250ms": 0.25,
    "30s": 30,
    "2h": 7200,
    "1h30m": 5400,
    "1 h 30 min": 5400,
    "30 min": 1800,
    "1d": 86400,
    "1w": 604800,
    " 2 d 3h ": 183600,
}
NO_SPANS = ("1h30", "h", "", "30 minutes", "-3", "1h 30", "1,5h", "90 90", "٣s", "1e3")
SIZES = {
    "16GB": 16 * 10**9,
    "16G": 16 * 10**9,
    "20GiB": 20 << 30,
    "20 gib": 20 << 30,
    "512 MiB": 512 << 20,
    "1.5GiB": 3 << 29,
    "100 B": 100,
    "2TiB": 2 << 40,
}


@pytest.mark.parametrize(("typed", "seconds"), SPANS.items(), ids=SPANS)
def test_a_span_is_the_same_on_the_command_line_and_in_a_job_file(
    typed: str, seconds: float
) -> None:
    assert text.parse_span(typed) == pytest.approx(seconds)
    assert positive_duration(typed) == pytest.approx(seconds)
    assert Duration().convert(typed, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("typed", NO_SPANS)
def test_what_could_be_read_two_ways_is_no_span_anywhere(typed: str) -> None:
    expected = "expected a duration like 90, 30s, 2h or 1h30m, found "
    with pytest.raises(ValueError, match=expected):
        positive_duration(typed)
    with pytest.raises(click.BadParameter, match=expected):
        Duration().convert(typed, None, None)


@given(st.floats(0, text.MAX_SPAN) | st.integers(0, int(text.MAX_SPAN)))
def test_a_span_that_is_written_is_read_back(seconds: float) -> None:
    assert text.parse_span(text.span(seconds)) == seconds


@pytest.mark.parametrize(("typed", "amount"), SIZES.items(), ids=SIZES)
def test_a_size_with_its_unit_is_bytes(typed: str, amount: int) -> None:
    assert text.parse_size(typed) == amount


@given(st.integers(1, 1 << 59))
def test_a_size_that_is_written_is_read_back_to_half_of_its_last_digit(amount: int) -> None:
    written = text.size(amount)
    read = text.parse_size(written)
    assert text.size(read) == written
    unit = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": (1 << 30) / 10}[written.split()[1]]
    assert abs(read - amount) <= unit / 2 + 1


@given(st.integers(1, 1023), st.sampled_from([0, 10, 20, 30]))
def test_a_whole_number_of_a_unit_is_read_back_exactly(number: int, power: int) -> None:
    assert text.parse_size(text.size(number << power)) == number << power


def test_spans_counts_and_lists_have_one_spelling() -> None:
    assert [text.span(s) for s in (0.5, 90, 150, 3600, 5400, 86400, 90061)] == [
        "0.5 s", "90 s", "2 min 30 s", "1 h", "1 h 30 min", "1 d", "1 d 1 h 1 min 1 s",
    ]  # fmt: skip
    assert [text.clock(s) for s in (-3, 42, 3723, 183600)] == ["0:00", "0:42", "1:02:03", "2 d 3 h"]
    sizes = (100, 512 << 20, 20 << 30, 85520809984, 1023.99 * 2**20)
    assert [text.size(s) for s in sizes] == ["100 B", "512 MiB", "20 GiB", "79.6 GiB", "1 GiB"]
    assert (text.several(1, "job"), text.several(2988, "job")) == ("1 job", "2,988 jobs")
    assert text.listing("abcdefg") == "a, b, c and 4 more"


@pytest.mark.parametrize(
    ("joules", "said"),
    [
        (0.0, "0.00 Wh"),
        (1512.0, "0.42 Wh"),
        (36_000.0, "10.0 Wh"),
        (1_123_200.0, "312 Wh"),
        (3_598_199.0, "999 Wh"),
        (3_598_200.0, "1.00 kWh"),
        (4_464_000.0, "1.24 kWh"),
        (4.32e9, "1200 kWh"),
    ],
)
def test_energy_is_told_as_people_pay_for_it(joules: float, said: str) -> None:
    assert text.energy(joules) == said


@given(st.lists(st.binary(max_size=20), max_size=20))
@example([b"r\xff\n", b"it's", b'"$`\\!', b"", b"\x1b[31m", "\u2028~ä".encode()])
def test_a_word_is_one_line_and_bash_reads_it_back(words: list[bytes]) -> None:
    words = [word.replace(b"\0", b"") for word in words]
    typed = text.shell_words(map(os.fsdecode, words))
    assert len(typed.splitlines()) <= 1
    argv = ["bash", "-c", f"printf '%s\\0' {typed}"]
    said = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout
    assert said.split(b"\0")[: len(words)] == words
