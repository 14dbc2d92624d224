"""The life of a job, an attempt and a card: the documents' pictures are the code's tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.cards import NAMES, AskedFor, Card
from gpulaunch.core.jobs import Node, Settled
from gpulaunch.core.model import AttemptState
from tests.core.histories import play, play_in_a_queue
from tests.core.transitions import TABLES

LIFE = Path(__file__).parents[2] / "docs" / "design" / "life.md"
HEADINGS = {Node: "A job", ActiveAttempt: "An attempt", Card: "A card"}


@pytest.mark.parametrize("cls", [Node, ActiveAttempt, Card])
def test_the_arrows_of_the_document_are_the_legal_transitions(cls: type[Any]) -> None:
    drawn = _arrows(HEADINGS[cls])
    legal = {
        (_name(old), _name(new))
        for old, after in TABLES[cls].items()
        for new in after
        if old is not new
    }
    assert drawn == legal


def test_histories_go_through_nearly_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that allows what never happens would hold nothing."""
    seen: Counter[tuple[type[Any], str, str]] = Counter()
    for cls in TABLES:

        def become(self: Any, state: Any, cls: type[Any] = cls) -> None:
            seen[cls, type(self.state).__name__, type(state).__name__] += 1
            self.state = state

        monkeypatch.setattr(cls, "become", become)
    for seed in range(300):
        play(seed, 1 + seed % 2)
        play_in_a_queue(seed)
    for cls, table in TABLES.items():
        pairs = [(cls, old.__name__, new.__name__) for old, after in table.items() for new in after]
        reached = [pair for pair in pairs if seen[pair]]
        assert len(reached) >= 0.7 * len(pairs), set(pairs) - set(reached)


@pytest.mark.parametrize("state", [Settled()])
def test_an_illegal_transition_is_found(state: Settled) -> None:
    node: Any = Node(None, 0, None, state)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="became"):
        node.become(Settled())


def test_the_document_has_every_recorded_state_of_an_attempt() -> None:
    section = LIFE.read_text().split("\n## An attempt\n", 1)[1].split("\n## ", 1)[0]
    assert [name for name in get_args(AttemptState) if name not in section] == []


def _name(state: type[Any]) -> str:
    """As it is recorded, where it is."""
    names: dict[type[Any], str] = {**NAMES, AskedFor: "asking"}
    return names.get(state, state.__name__.lower())


def _arrows(heading: str) -> set[tuple[str, str]]:
    """The pairs of `a ──▶ b, c` in the first block of that heading's section."""
    section = LIFE.read_text().split(f"\n## {heading}\n", 1)[1]
    block = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert block is not None
    found = set()
    for line in block[1].splitlines():
        old, arrow, rest = line.partition("──▶")
        if arrow:
            (new, *_) = re.split(r"\s{2,}", rest.strip())
            found |= {(old.strip(), each.strip()) for each in new.split(",")}
    return found
