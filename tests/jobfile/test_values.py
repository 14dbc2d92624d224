"""Scalars to durations, sizes and numbers; placeholders in plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.base.text import parse_size, parse_span
from gpulaunch.core.template import Slot, Template, render
from gpulaunch.jobfile import values as v
from gpulaunch.jobfile.placeholders import compile_raw


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("30s", 30),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("1w", 604800),
        ("500ms", 0.5),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_span(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "1x", "-1", "1h-30m", "1:30", "inf", "nan", "1e3", "٣"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_span(text)


def test_durations_have_an_end() -> None:
    with pytest.raises(ValueError, match="at most a hundred years"):
        parse_span("9" * 400)
    with pytest.raises(ValueError, match="longer than 0"):
        v.positive_duration("0s")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16 * 10**9),
        ("16G", 16 * 10**9),
        ("20GiB", 20 << 30),
        ("20 gib", 20 << 30),
        ("512MiB", 512 << 20),
        ("1.5TB", 1_500_000_000_000),
        ("1Ki", 1024),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "16", "GB", "-1GB", "0GB", "16XB", "9" * 30 + "GB", "1e3GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "1.0", "0x1", "1_000", "٣", "1e3", "9" * 30, " 1"])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        v.integer(text, 0, "a number")


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e999", "x", ""])
def test_what_is_no_cost(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number, 0 or more"):
        v.number(text)


@given(st.text(max_size=30))
def test_no_text_crashes_a_converter(text: str) -> None:
    for convert in (parse_span, parse_size, v.number, v.boolean, v.shell_words):
        said = ""
        try:
            convert(text)
        except ValueError as error:
            said = str(error)
        assert "\n" not in said


def test_placeholders_and_what_only_looks_like_them() -> None:
    x = Slot("x")
    assert compile_raw("a{{x}}b{{ x }}") == Template(("a", x, "b", x))
    assert compile_raw("{1..{{x}}}") == Template(("{1..", x, "}"))
    assert compile_raw('{"a":{{x}}}') == Template(('{"a":', x, "}"))
    assert compile_raw("{{a-b}}") == Template((Slot("a-b"),))
    for text in ("{{.ID}}", "{{ a b }}", "{{}}", "{{x}", "{{1}}", "{{x|y}}", "{{\nx}}", "{x}"):
        assert compile_raw(text) == text


def test_a_backslash_makes_text_of_a_placeholder() -> None:
    assert compile_raw(r"\{{x}}") == "{{x}}"
    assert compile_raw(r"\\{{x}}") == Template(("\\\\", Slot("x")))
    assert compile_raw(r"\\\{{x}}") == r"\\{{x}}"
    assert compile_raw(r"\{{x}} \n {{x}}") == Template((r"{{x}} \n ", Slot("x")))


@given(st.text("{} x\\", max_size=40), st.text(max_size=5))
def test_filled_text_holds_the_value_where_the_placeholder_stood(text: str, value: str) -> None:
    names = ["x" * length for length in range(1, 41)]  # all that such a text can ask for
    filled = render(compile_raw(text + "|{{x}}"), dict.fromkeys(names, value))
    assert filled.endswith("|" + value)
