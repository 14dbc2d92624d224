"""A run's jobs on one screen, whatever their number: groups, a few names, what is left out.

Owns which lines are worth their place; the words come from `groups` and `words`. On a terminal no
line is wider than it is, elsewhere none is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpulaunch.text import listing
from gpulaunch.views import words
from gpulaunch.views.groups import Alike

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NAMES = 3
"""Jobs of a group that are named."""
MIN_LINES = 6
"""Lines for the jobs, however low the screen is."""
_BEGINNING = re.compile(r"(?<![\w…./~-])(?:/[^\s/'\"]+)+(?=/[^\s/'\"]+/[^\s/'\"])")
"""Of a whole path, what stands before its last directory."""


@dataclass(frozen=True, slots=True)
class OverviewItem:
    """Lines that belong together: of `jobs` jobs, the first one behind `label`.

    `names` of the jobs end the first line, or are the second where that one is too narrow.
    """

    label: str
    jobs: int
    lines: tuple[str, ...]
    names: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The jobs of one state. `more` is said of those that find no place: `more failed`."""

    state: str
    style: str
    items: tuple[OverviewItem, ...]


def grouped(state: str, style: str, groups: Sequence[Alike]) -> Section:
    """A section of groups, each with its number."""
    items = []
    for group in groups:
        text = words.visible(group.text)
        names = listing([words.visible(name) for name in group.names], NAMES)
        lines = [text] if text else []
        if group.evidence:
            lines.append(words.visible(group.evidence))
        label = f"{words.count(len(group.names))} {state}"
        items.append(OverviewItem(label, len(group.names), tuple(lines), names))
    return Section(state, style, tuple(items))


def listed(state: str, style: str, lines: Sequence[str]) -> Section:
    """A section with a line for each of its jobs."""
    first = f"{words.count(len(lines))} {state}"
    items = tuple(OverviewItem("" if n else first, 1, (line,)) for n, line in enumerate(lines))
    return Section(state, style, items)


def fitted(item: OverviewItem, columns: int) -> OverviewItem:
    """The item with its names in its lines: a reason however long hides none of them."""
    from rich.cells import cell_len

    if not item.names:
        return item
    first, rest = item.lines[:1], item.lines[1:]
    ended = ": ".join([*first, item.names])
    lines = (ended, *rest) if cell_len(ended) <= columns else (*first, item.names, *rest)
    return replace(item, lines=lines, names="")


def chosen(sections: Sequence[Section], room: int) -> list[int]:
    """How many items of each section are shown in so many lines: of each the first, then of those
    that come first the next, in turns."""
    shown = [0] * len(sections)
    free = max(room, MIN_LINES)
    going = True
    while going:
        going = False
        for at, section in enumerate(sections):
            if shown[at] == len(section.items):
                continue
            rest = len(section.items) - shown[at] - 1
            before = shown[at] and 1  # the line that tells of the rest is there already
            cost = len(section.items[shown[at]].lines) + (1 if rest else 0) - before
            if cost <= free:
                shown[at] += 1
                free -= cost
                going = True
    return shown


def print_sections(console: Console, sections: Sequence[Section], room: int) -> None:
    """As much of them as `room` lines hold, and how many jobs are not named."""
    from rich.text import Text

    width = max((len(item.label) for one in sections for item in one.items), default=0)
    columns = console.width - width - 2
    sections = [
        replace(one, items=tuple(fitted(item, columns) for item in one.items)) for one in sections
    ]
    for section, number in zip(sections, chosen(sections, room), strict=True):
        for item in section.items[:number]:
            for at, line in enumerate(item.lines):
                label = Text(f"{item.label if at == 0 else '':>{width}}  ", section.style)
                put(console, label + Text(line, "" if at == 0 else "dim"))
        if rest := section.items[number:]:
            jobs = words.count(sum(item.jobs for item in rest))
            told = f"{'':>{width}}  and {jobs} more"
            if not number:
                told = f"{f'{jobs} {section.state}':>{width}}"
            put(console, Text(told, "dim" if number else section.style))


def put(console: Console, text: Text) -> None:
    """One line, cut where a terminal ends; its width elsewhere is no limit.

    Paths give up their beginnings first: what a line says is in their ends, and behind them.
    """
    from rich.text import Text

    while text.cell_len > console.width and (found := _BEGINNING.search(text.plain)):
        text = text[: found.start()] + Text("…") + text[found.end() :]
    text.truncate(console.width, overflow="ellipsis")
    console.print(text, soft_wrap=True)


def height_of(console: Console, text: Text) -> int:
    """How many lines of the screen a line takes that is not cut."""
    return max(1, -(-text.cell_len // console.width))
