"""A list on the screen, of which only the visible lines are drawn.

Owns the cursor and the scrolling; what a line says comes from `rows`.
"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpulaunch.views.top.rows import LineRows, Rows

LOOKED = 64
"""Rows that are searched for a first job to put the cursor on."""


class RowList(ScrollView, can_focus=True):
    """Shows `Rows`. The cursor stays with its job when the list changes under it."""

    DEFAULT_CSS = """
    RowList {
        height: 1fr;
        border-top: solid ansi_bright_black;
        border-title-color: ansi_default;
        scrollbar-size-vertical: 1;
        scrollbar-color: ansi_bright_black;
        scrollbar-color-hover: ansi_bright_black;
        scrollbar-color-active: ansi_default;
        scrollbar-background: ansi_default;
        scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
        overflow-x: hidden;
    }
    RowList:focus { border-top: heavy ansi_cyan; border-title-style: bold; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home", "edge(-1)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    cursor: var[int] = var(0)

    class Chosen(Message):
        """Enter, or a click, on a job's row."""

        def __init__(self, job: str) -> None:
            super().__init__()
            self.job = job

    def __init__(self, id: str, nothing: str) -> None:
        super().__init__(id=id)
        self.rows: Rows = LineRows()
        self._nothing = nothing

    @property
    def job(self) -> str | None:
        """The job under the cursor."""
        return self.rows.job(self.cursor) if len(self.rows) else None

    @property
    def needed(self) -> int:
        """The lines that would show everything, with the title's."""
        return 1 + max(1, self._lines)

    @property
    def _lines(self) -> int:
        return len(self.rows) * self.rows.height

    def put(self, rows: Rows) -> None:
        """Show these rows, with the cursor on the same job."""
        job, top, before = self.job, self._from_top(), self.rows
        self.rows = rows
        self.border_title = Text(rows.title)
        found = rows.find(job) if job is not None else None
        kind = type(before) is type(rows)
        if found is not None or kind:
            self.cursor = self._within(self.cursor if found is None else found)
        else:
            self.cursor = 0
            self.seek()
        self.virtual_size = Size(self.size.width, self._lines)
        if found is not None and kind and top is not None and found:
            # New failures above must not move the line that a person reads.
            self.scroll_to(y=self.cursor * rows.height - top, animate=False, force=True)
        elif not kind:
            self.scroll_to(y=0, animate=False, force=True)
        self.refresh()

    def seek(self) -> None:
        """Put the cursor on the first job, unless it is on one."""
        rows = self.rows
        if self.job is None:
            self.cursor = next((n for n in range(min(LOOKED, len(rows))) if rows.job(n)), 0)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        text, here = self._line(self.scroll_offset.y + y, width)
        text.no_wrap = True
        text.truncate(width, overflow="ellipsis", pad=True)
        if here and self.has_focus:
            text.stylize("reverse")
        return Strip(text.render(self.app.console), width)

    def _line(self, line: int, width: int) -> tuple[Text, bool]:
        rows = self.rows
        if not len(rows):
            return Text(self._nothing if line == 0 else "", "dim"), False
        item, part = divmod(line, rows.height)
        if item >= len(rows):
            return Text(), False
        return rows.lines(item, width)[part], item == self.cursor and part == 0

    # ── Moving ──────────────────────────────────────────────────────────────────────────────────

    def action_move(self, by: int) -> None:
        self._go(self.cursor + by)

    def action_page(self, pages: int) -> None:
        self._go(self.cursor + pages * max(1, self.size.height // self.rows.height - 1))

    def action_edge(self, end: int) -> None:
        self._go(self._lines if end > 0 else 0)

    def action_choose(self) -> None:
        if self.job is not None:
            self.post_message(self.Chosen(self.job))

    def on_click(self, event: events.Click) -> None:
        item = (self.scroll_offset.y + event.y - 1) // self.rows.height
        if event.y < 1 or item >= len(self.rows):
            return
        again = item == self.cursor and self.has_focus and event.chain > 1
        self._go(item)
        if again:
            self.action_choose()

    def _go(self, item: int) -> None:
        self.cursor = self._within(item)
        height = self.rows.height
        region = Region(0, self.cursor * height, 1, height)
        self.scroll_to_region(region, animate=False, force=True)
        self.refresh()

    def _within(self, item: int) -> int:
        return max(0, min(item, len(self.rows) - 1))

    def _from_top(self) -> int | None:
        """Return the lines from the visible top to the cursor's row; None if it is out of sight."""
        distance = self.cursor * self.rows.height - self.scroll_offset.y
        return distance if 0 <= distance < max(1, self.size.height) else None
