"""The corpus against what is found in it. GPULAUNCH_TEST_WRITE=1 writes the table anew."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from gpulaunch.core.retry import POLICIES
from gpulaunch.diagnose.failure.evidence import diagnose, hint
from tests.failure.corpus import Case, cases

TABLE = Path(__file__).parent / "confusion.txt"
CASES = cases()
NONE = "-"


def found(case: Case) -> str:
    failure = diagnose(case.evidence)
    return failure.kind if failure else NONE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_has_its_class_and_its_line(case: Case) -> None:
    failure = diagnose(case.evidence)
    assert found(case) == (NONE if case.head.get("still") == "missed" else case.expected)
    if failure is not None:
        assert failure.advice
        assert failure.evidence
        assert "\n" not in failure.evidence
    if "foreign" in case.head:
        assert failure is not None
        assert failure.foreign == (case.head["foreign"] == "yes")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_only_a_success_whose_log_ends_badly_gets_a_hint(case: Case) -> None:
    words = hint(case.evidence)
    assert bool(words) == (case.head.get("hint") == "yes")
    assert not words or words.startswith("exited 0, though its log says: ")


def test_every_log_says_where_it_comes_from_and_lies_where_its_class_does() -> None:
    for case in CASES:
        assert case.head["source"].strip(), case.name
        assert case.expected == NONE or case.expected in POLICIES, case.name
        assert case.name.split("/")[0] == ("none" if case.expected == NONE else case.expected)


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    positive = [case for case in CASES if case.expected != NONE]
    assert len(positive) >= 100
    assert len(CASES) - len(positive) >= 40


def test_no_class_is_ever_given_wrongly_and_the_table_is_the_one_in_the_tree() -> None:
    pairs = Counter((case.expected, found(case)) for case in CASES)
    assert {pair for pair in pairs if pair[0] != pair[1] and pair[1] != NONE} == set()
    table = _table(pairs)
    if os.environ.get("GPULAUNCH_TEST_WRITE") == "1":
        TABLE.write_text(table)
    assert TABLE.read_text() == table


def _table(pairs: Counter[tuple[str, str]]) -> str:
    """Expected by found, a row a class; `other` is a wrong one, `-` none."""
    rows = [
        f"{'class':<16}{'logs':>5}{'right':>6}{'none':>6}{'other':>6}{'precision':>11}{'recall':>8}"
    ]
    kinds = [kind for kind in [*POLICIES, NONE] if any(kind in pair for pair in pairs)]
    for kind in kinds:
        logs = sum(n for (expected, _), n in pairs.items() if expected == kind)
        right = pairs[(kind, kind)]
        none = pairs[(kind, NONE)] if kind != NONE else 0
        given = sum(n for (_, got), n in pairs.items() if got == kind)
        if not logs:
            continue
        precision = right / given if given else 1.0
        rows.append(
            f"{kind:<16}{logs:>5}{right:>6}{none:>6}{logs - right - none:>6}"
            f"{precision:>11.2f}{right / logs:>8.2f}"
        )
    return "\n".join([*rows, "", *_unseen()]) + "\n"


def _unseen() -> list[str]:
    """What was said of the logs that came after the patterns; history, which no change betters."""
    rows = []
    for what, known in (("with a class", True), ("without one", False)):
        said = Counter(
            case.head["unseen"]
            for case in CASES
            if "unseen" in case.head and (case.expected != NONE) == known
        )
        counts = ", ".join(f"{said[word]} {word}" for word in ("right", "missed", "wrong"))
        rows.append(f"{said.total()} logs {what} came after the patterns; at first sight: {counts}")
    return rows
