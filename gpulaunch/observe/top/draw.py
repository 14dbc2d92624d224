"""Draws bars, sparklines and cut text for rows, and divides the screen among the lists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """Return a bar of `share` (0 to 1) of `width` columns, to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, part = divmod(eighths, 8)
    text = EIGHTHS[8] * whole + (EIGHTHS[part] if part else "")
    return text.ljust(width)


def sparkline(
    samples: Iterable[tuple[float, float | None]], since: float, until: float, width: int
) -> str:
    """Return a column per span of time with its mean share (0 to 1) as height, or blank."""
    sums, counts = [0.0] * width, [0] * width
    span = max(1e-9, until - since)
    for at, share in samples:
        column = int((at - since) / span * width)
        if share is not None and since <= at <= until:
            sums[min(column, width - 1)] += share
            counts[min(column, width - 1)] += 1
    return "".join(
        LEVELS[min(7, int(max(0.0, total / count) * 8))] if count else " "
        for total, count in zip(sums, counts, strict=True)
    )


def fit(text: str, width: int) -> str:
    """Return the text in exactly `width` columns: cut, with a mark, or padded."""
    if cell_len(text) <= width:
        return text + " " * (width - cell_len(text))
    if width <= 0:
        return ""
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis", pad=True)
    return cut.plain


def columns(names: Sequence[str], width: int, share: float = 0.4, most: int = 48) -> int:
    """Return the width of a column of `names`: that of the widest, within `share` of `width`."""
    widest = max(map(cell_len, names), default=0)
    return max(1, min(widest, most, int(width * share)))


SMALL = 13
"""Rows of a screen below which one list gets all."""
WIDE = 110


class Layout(Struct, frozen=True):
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


def laid_out(width: int, height: int, pane: str, wanted: tuple[int, int, int | None]) -> Layout:
    """Divide a screen of that size, of which the list `pane` has the keys.

    `wanted`: how many rows the lists of cards, of what waits and of what ended could fill; None
    where the last one is not shown at all.
    """
    cards_wanted, waiting_wanted, ended_wanted = wanted
    small, side_by_side = height < SMALL, width >= WIDE
    body = height - 1 - head_lines(height)
    cards = min(cards_wanted, max(3, body // 2))
    shows_ended = ended_wanted is not None and (not small or pane == "ended")
    rest = body - cards
    fits = max(rest // 2, rest - (ended_wanted or 0))
    alone = small or side_by_side or not shows_ended
    return Layout(
        wide=side_by_side and not small,
        cards=not small or pane == "cards",
        below=not small or pane != "cards",
        waiting=not small or pane == "waiting",
        ended=shows_ended,
        cards_height=None if small else cards,
        waiting_height=None if alone else max(2, min(waiting_wanted, fits)),
    )
