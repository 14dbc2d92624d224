"""Bars, curves and cut text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpulaunch.observe.top.draw import bar, fit, sparkline


def test_a_bar_is_drawn_to_an_eighth_of_a_column() -> None:
    assert bar(0.0, 4) == "    "
    assert bar(1 / 32, 4) == "▏   "
    assert bar(0.5, 4) == "██  "
    assert bar(1.0, 4) == "████"
    assert bar(7.5, 4) == "████"
    assert bar(-1.0, 4) == "    "


def test_a_curve_has_a_column_per_span_and_blanks_where_nothing_was_measured() -> None:
    samples = [(0.0, 0.0), (9.0, 0.5), (12.0, 0.9), (19.0, 0.1), (35.0, 1.0), (25.0, None)]
    assert sparkline(samples, 0.0, 40.0, 4) == "▃▅ █"
    assert sparkline([], 0.0, 40.0, 4) == "    "
    assert sparkline([(40.0, 1.0), (41.0, 0.0), (-1.0, 0.0)], 0.0, 40.0, 4) == "   █"


@given(st.text(max_size=30), st.integers(0, 20))
def test_cut_text_is_exactly_as_wide_as_asked(text: str, width: int) -> None:
    from gpulaunch.observe.present.words import visible

    assert cell_len(fit(visible(text), width)) == width
