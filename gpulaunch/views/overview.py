"""Shows any number of jobs on one screen: groups, a few names, how many are left out.

Owns the choice of lines; the words come from `groups` and `words`. On a terminal lines are cut to
its width, elsewhere none is cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import JobState
from gpulaunch.digest import words
from gpulaunch.digest.groups import Alike
from gpulaunch.text import listing, several

CHANGES = 3
"""Scripts that have changed which are told one by one."""
NAMES = 3
"""Jobs of a group that are named."""
MIN_LINES = 6
"""Lines for the jobs at least, on however small a screen."""
_BEGINNING = re.compile(r"(?<![\w…./~-])(?:/[^\s/'\"]+)+(?=/[^\s/'\"]+/[^\s/'\"])")
"""The part of an absolute path before its last directory."""


class OverviewItem(Struct, frozen=True):
    """Lines that belong together, about `jobs` jobs; the first line follows `label`.

    `names` of the jobs end the first line, or are the second where that one is too narrow.
    """

    label: str
    jobs: int
    lines: tuple[str, ...]
    names: str = ""


class Section(Struct, frozen=True):
    """The jobs of one state. `more`, as in `more failed`, counts those that are left out."""

    state: str
    style: str
    items: tuple[OverviewItem, ...]


def grouped(state: str, style: str, groups: Sequence[Alike]) -> Section:
    """Return a section of groups, each with its number of jobs."""
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
    """Return a section with a line for each of its jobs."""
    first = f"{words.count(len(lines))} {state}"
    items = tuple(OverviewItem("" if n else first, 1, (line,)) for n, line in enumerate(lines))
    return Section(state, style, items)


def fitted(item: OverviewItem, columns: int) -> OverviewItem:
    """Return the item with its names in its lines, so that a long reason hides none of them."""
    if not item.names:
        return item
    first, rest = item.lines[:1], item.lines[1:]
    ended = ": ".join([*first, item.names])
    lines = (ended, *rest) if cell_len(ended) <= columns else (*first, item.names, *rest)
    return replace(item, lines=lines, names="")


def chosen(sections: Sequence[Section], room: int) -> list[int]:
    """Return how many items of each section fit into `room` lines: each one's first, then more.

    The sections take turns, in their order.
    """
    shown = [0] * len(sections)
    free = max(room, MIN_LINES)
    going = True
    while going:
        going = False
        for at, section in enumerate(sections):
            if shown[at] == len(section.items):
                continue
            rest = len(section.items) - shown[at] - 1
            before = shown[at] and 1  # the line that counts the rest is there already
            cost = len(section.items[shown[at]].lines) + (1 if rest else 0) - before
            if cost <= free:
                shown[at] += 1
                free -= cost
                going = True
    return shown


def print_sections(console: Console, sections: Sequence[Section], room: int) -> None:
    """Print as much of the sections as `room` lines hold, and how many jobs are left out."""
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
    """Print one line, cut at a terminal's width; elsewhere at none.

    Paths lose their beginnings first: their ends, and what follows them, say more.
    """
    while text.cell_len > console.width and (found := _BEGINNING.search(text.plain)):
        text = text[: found.start()] + Text("…") + text[found.end() :]
    text.truncate(console.width, overflow="ellipsis")
    console.print(text, soft_wrap=True)


def counted(counts: Mapping[JobState, int], vanished: int, styles: Mapping[JobState, str]) -> Text:
    """Return how many jobs are in which state, in the order of `styles`; states without any not."""
    parts = [
        Text(f"{words.count(counts[state])} {state}", style)
        for state, style in styles.items()
        if counts.get(state, 0) > 0
    ]
    if vanished:
        parts.append(Text(f"{words.count(vanished)} {words.GONE}", "yellow"))
    return Text(", ").join(parts)


def code_changes(ledger: Ledger, now: float) -> list[str]:
    """Return a line for each script that changed last, and one for the others."""
    every = list(ledger.code_changes.values())
    lines = [words.code_changed(change, now) for change in every[-CHANGES:]]
    more = len(every) - len(lines)
    return [*lines, f"and {several(more, 'more file')} of the jobs' code"] if more else lines


def height_of(console: Console, text: Text) -> int:
    """Return how many rows of the screen an uncut line takes."""
    return max(1, -(-text.cell_len // console.width))
