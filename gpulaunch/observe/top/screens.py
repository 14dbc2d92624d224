"""A list of which only the visible lines are drawn, and the screens above the dashboard.

The screens: a job's log, a question, a command to add, the keys.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from os import PathLike
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import var
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from gpulaunch.base.files import regular
from gpulaunch.base.text import clock
from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import AttemptId
from gpulaunch.diagnose.failure.classes import advice
from gpulaunch.observe.present import words
from gpulaunch.observe.present.status import STYLES
from gpulaunch.observe.present.tail import Folder
from gpulaunch.observe.present.usage import use_of_one
from gpulaunch.observe.top.board import Board
from gpulaunch.observe.top.rows import LineRows, Rows

LOOKED = 64
"""Rows that are searched for a first job to put the cursor on."""


class RowList(ScrollView, can_focus=True):
    """Shows `Rows`; owns the scrolling. The cursor stays with its job when the list changes."""

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


READ_BYTES = 1 << 16
BEGIN = 1 << 20
"""Bytes before its end from which a long log is read."""
MAX_LINES = 20_000
"""Lines of a log that are kept."""
MAX_READS_PER_LOOK = 64
"""Chunks per look: a log that grows faster than it is read must not freeze the screen."""


class LogTail:
    """A log's newest lines: folded, without colours and with progress bars' last states."""

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self._path = path
        self._fd = -1
        self._at = 0
        self._folder = Folder()
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.cut = False
        self.absent = False
        """It cannot be read (yet)."""
        self.rest = ""
        """An unfinished last line, as it stands."""

    def look(self) -> bool:
        """Read what is new; return True if there is any."""
        if self._fd < 0 and not self._open():
            return False
        new = False
        for _ in range(MAX_READS_PER_LOOK):
            data = self._read()
            if not data:
                break
            new = True
            self._at += len(data)
            text = self._folder.feed(data)
            self.cut = self.cut or len(self.lines) == MAX_LINES
            self.lines.extend(text.splitlines())
        if new:
            self.rest = self._folder.rest
        return new

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            self._fd = regular(self._path, os.O_RDONLY)
        except OSError:
            self.absent = True
            return False
        self.absent = False
        size = os.fstat(self._fd).st_size
        if size > BEGIN:
            self._at, self.cut = size - BEGIN, True
        return True

    def _read(self) -> bytes:
        try:
            return os.pread(self._fd, READ_BYTES, self._at)
        except OSError:
            return b""


# ── The screens ───────────────────────────────────────────────────────────────────────────────────

KEYS = """\
 ↑ ↓ PgUp PgDn Home End   move            Tab Shift+Tab   next list
 Enter                    the job's log; new lines as they come
 /                        filter: type to narrow; Esc: all again
 e                        what failed, or all that ended

 c   cancel the job       r   retry the job       p   pause, or go on
 a   add a command to the list, in the directory from which top was begun

 ← →   one moment back, on       [ ]   a twentieth of the run
 n     back to now

 ?   these keys           q   quit; the run goes on"""


class LogScreen(Screen[None]):
    """The log of a job's attempt, followed while its end is in sight.

    `board` returns the state that is shown now; `log_of` an attempt's log, and raises ValueError
    where a forged journal names another path.
    """

    DEFAULT_CSS = """
    LogScreen #about { height: auto; max-height: 40%; }
    LogScreen #hint { height: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "dismiss", show=False),
        Binding("left", "attempt(-1)", show=False),
        Binding("right", "attempt(1)", show=False),
        Binding("f", "follow", show=False),
    ]

    def __init__(
        self,
        job: str,
        board: Callable[[], Board],
        log_of: Callable[[AttemptId], PathLike[str] | str],
    ) -> None:
        super().__init__()
        self.job = job
        self._board = board
        self._log_of = log_of
        self._number: int | None = None
        self._tail: LogTail | None = None
        self._shown: AttemptId | None = None
        self._follows = True
        self._heading, self._log = Static(id="about", markup=False), RowList("log", "")

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._log
        yield Static(Text(" Esc back  ← → attempts  f follow  Home End", "dim"), id="hint")

    def on_mount(self) -> None:
        self._log.focus()
        self.look()

    def on_unmount(self) -> None:
        self._close()

    def look(self) -> None:
        """Read and show what is new."""
        if not self.is_attached:
            return
        board = self._board()
        attempt = self._attempt(board)
        self._heading.update(self._about(board, attempt))
        if attempt is None:
            self._log.put(LineRows("Log", ["it has not been started yet"]))
            return
        if attempt.id != self._shown:
            self._close()
            try:
                path = self._log_of(attempt.id)
            except ValueError as error:
                self._log.put(LineRows("Log", [words.visible(str(error))]))
                return
            self._shown, self._tail = attempt.id, LogTail(path)
            self._log.put(LineRows("Log", []))
        self._take_in(attempt)

    def _take_in(self, attempt: AttemptRecord) -> None:
        log, tail = self._log, self._tail
        assert tail is not None
        if before := len(log.rows):
            self._follows = log.cursor >= before - 1
        if not tail.look() and log.rows.title == self._title(attempt):
            return
        lines = ["… its beginning is in the file"] if tail.cut else []
        lines += [*tail.lines, *([tail.rest] if tail.rest else [])]
        if tail.absent:
            lines = ["there is no log (any more)" if attempt.ended else "there is no log yet"]
        follows = self._follows
        log.put(LineRows(self._title(attempt), lines))
        if follows:
            # Only after the list knows its new length.
            log.call_after_refresh(log.action_edge, 1)
            log.action_edge(1)

    def _title(self, attempt: AttemptRecord) -> str:
        follows = ", followed" if self._follows and attempt.ended is None else ""
        return f"Log of attempt {attempt.id.number}{follows}"

    def _attempt(self, board: Board) -> AttemptRecord | None:
        job = board.ledger.jobs.get(self.job)
        if job is None or not job.attempts:
            return None
        number = self._number or len(job.attempts)
        return job.attempts[min(number, len(job.attempts)) - 1]

    def _about(self, board: Board, attempt: AttemptRecord | None) -> Text:
        job = board.ledger.jobs.get(self.job)
        text = Text(f" {words.visible(self.job)}", "bold")
        if job is None:
            return text
        text.append(f"  {job.state}", STYLES[job.state])
        if attempt is not None:
            cards = words.attempt_cards(attempt, board.ledger)
            of = f"attempt {attempt.id.number} of {len(job.attempts)}"
            how = words.ending(attempt) if attempt.ended else board.ahead(attempt)
            took = clock(board.elapsed(attempt))
            step = words.step(attempt.step)
            text.append("  " + " · ".join(filter(None, [of, cards, step, took, how])), "dim")
            use = use_of_one(board.samples.use(attempt.id) if board.samples else None)
            for said in (use, *attempt.reports, attempt.evidence):
                text.append(f"\n {words.visible(said)}" if said else "")
            if attempt.advice:
                text.append(f"\n {words.visible(advice(attempt.advice))}", "italic")
        reason = board.reason(job)
        if reason and (attempt is None or not attempt.evidence):
            text.append(f"\n {words.visible(reason)}")
        return text

    def _close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        self._shown = None

    def action_follow(self) -> None:
        self._follows = True
        self._log.action_edge(1)

    def action_attempt(self, by: int) -> None:
        job = self._board().ledger.jobs.get(self.job)
        if job is not None and job.attempts:
            now = self._number or len(job.attempts)
            self._number = max(1, min(now + by, len(job.attempts)))
            if self._number == len(job.attempts):
                self._number = None  # the newest, also when another one follows
            self.look()


class Box(ModalScreen[bool]):
    """A text in a box above the dashboard."""

    DEFAULT_CSS = """
    Box { align: center middle; }
    Box > VerticalScroll {
        width: auto; max-width: 100%; height: auto; max-height: 100%;
        border: round ansi_cyan; background: ansi_default; padding: 0 1;
    }
    Box Static { width: auto; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)


class Question(Box):
    """Asks before something is done to the run. Only `y` does it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", show=False),
        Binding("n,escape,q,enter", "dismiss(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}\n\ny  yes      n  no")


class AddScreen(ModalScreen[str]):
    """Asks for a command to add to the list. Enter adds it; an empty one, or Esc, adds nothing."""

    DEFAULT_CSS = """
    AddScreen { align: center middle; }
    AddScreen > Vertical {
        width: 90%; height: auto;
        border: round ansi_cyan; background: ansi_default; padding: 0 1;
    }
    AddScreen Input { border: none; height: 1; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", show=False)]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("A shell command, on one card of its own:", markup=False)
            yield Input(id="command", placeholder="python train.py --lr 3e-4")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip())


class Help(Box):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", show=False)
    ]

    def __init__(self) -> None:
        super().__init__(KEYS)
