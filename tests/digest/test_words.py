from __future__ import annotations

import re
from datetime import timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.core.facts import CodeChanged
from gpulaunch.core.model import Gpu
from gpulaunch.observe.present import words
from tests import zones
from tests.views.history import START, gpus


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (20, "under a minute"),
        (290, "5 min"),
        (12000, "3 h 20 min"),
        (7140, "2 h"),
        (183600, "2 d 3 h"),
    ],
)
def test_estimates_pretend_no_precision(seconds: float, text: str) -> None:
    assert words.rough(seconds) == text


def test_simulated_cards_always_say_so() -> None:
    assert words.cards(gpus(1)) == "GPU 0"
    assert words.cards(gpus(2, simulated=True)) == "simulated GPUs 0, 1"
    assert words.cards([]) == ""


def test_mig_instances_of_one_card_can_be_told_apart() -> None:
    one = Gpu("MIG-5f3c9a12-0000", 0, "k", "A100", 1, mig=True)
    assert words.card(one) == "GPU 0 MIG-5f3c9a12"


def test_json_times_are_utc_with_fractions() -> None:
    assert words.iso(START) == "2026-11-20T07:42:15.250000Z"
    assert words.iso(None) is None


def test_escape_sequences_and_reordering_are_written_out() -> None:
    assert words.visible("a\x1b[31mb\nc\td\x9b2J") == "a\\x1b[31mb\\nc d\\x9b2J"
    assert words.visible("pdf.\u202etxt") == "pdf.\\u202etxt"
    assert words.visible("naïve 蛋白質 👩‍🔬 [bold]") == "naïve 蛋白質 👩‍🔬 [bold]"
    assert words.visible("half \ud800") == "half \\ud800"


@given(st.text())
def test_visible_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    shown = words.visible(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (290, 310, "about 5 min"),
        (290, 500, "5 to 8 min"),
        (5, 20, "under a minute"),
        (5, 200, "up to 3 min"),
        (3000, 4800, "50 min to 1 h 20 min"),
        (7200, 7300, "about 2 h"),
    ],
)
def test_a_range_is_as_wide_as_it_is_worth(low: float, high: float, text: str) -> None:
    assert words.rough_range(low, high) == text


def test_jobs_that_are_not_due_are_counted_with_the_first_moment() -> None:
    now = 1_795_600_000.0
    berlin = zones.BERLIN
    assert words.not_due({}, now) == words.not_due({now - 1: 3, now + 9: 0}, now) == ""
    one = words.not_due({now + 7200.0: 1200, now - 5.0: 1}, now, berlin)
    assert one == "1,200 not before 12:46:40 (in 2 h)"
    several = words.not_due({now + 7200.0: 2, now + 9000.0: 3}, now, berlin)
    assert several == "5 not due, the first at 12:46:40 (in 2 h)"


def test_a_changed_script_is_told_with_its_minute_and_the_jobs_before_it() -> None:
    change = CodeChanged("train.py", START + 43, 12, 40)
    said = words.code_changed(change, START + 900, timezone.utc)
    assert said == "train.py changed at 07:42, after 12 of 40 jobs had started"
    alone = CodeChanged("a\x1b.py", START, 1, 1)
    said = words.code_changed(alone, None, timezone.utc)
    assert said.endswith("2026-11-20 07:42, after all of its 1 job had started")
    assert "\x1b" not in said
