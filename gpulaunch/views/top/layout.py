"""Divides the screen among the lists. Pure: sizes in, sizes out."""

from __future__ import annotations

from dataclasses import dataclass

SMALL = 13
"""Rows of a screen below which one list gets all."""
WIDE = 110


@dataclass(frozen=True, slots=True)
class Wants:
    """The screen's size, the list that has the keys, and how many rows each list could fill.

    `ended`: None where that list is not shown at all.
    """

    width: int
    height: int
    pane: str
    cards: int
    waiting: int
    ended: int | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Which lists are seen. A height of None: what the others leave.

    `wide`: those below the cards stand side by side.
    """

    wide: bool
    cards: bool
    below: bool
    waiting: bool
    ended: bool
    cards_height: int | None
    waiting_height: int | None


def head_lines(height: int) -> int:
    """Return how many lines the head may take."""
    return 1 if height < 8 else 2 if height < SMALL else 4


def laid_out(wants: Wants) -> Layout:
    small, side_by_side = wants.height < SMALL, wants.width >= WIDE
    body = wants.height - 1 - head_lines(wants.height)
    cards = min(wants.cards, max(3, body // 2))
    shows_ended = wants.ended is not None and (not small or wants.pane == "ended")
    rest = body - cards
    fits = max(rest // 2, rest - (wants.ended or 0))
    alone = small or side_by_side or not shows_ended
    return Layout(
        wide=side_by_side and not small,
        cards=not small or wants.pane == "cards",
        below=not small or wants.pane != "cards",
        waiting=not small or wants.pane == "waiting",
        ended=shows_ended,
        cards_height=None if small else cards,
        waiting_height=None if alone else max(2, min(wants.waiting, fits)),
    )
