"""The screen itself: looks at the run twice a second, shows it, and passes on what is asked.

It polls instead of being woken: the clocks on the screen move on anyway, and no event reports what
another machine writes to a shared directory. Slow work happens in a thread.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import ClassVar, TypeVar

from msgspec import Struct
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Input, Static

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.base.wording import pause
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Cancel, GoOn, Pause, Request, Retry
from gpulaunch.core.ledger import JobRecord, Ledger
from gpulaunch.core.model import SETTLED_STATES, RunState
from gpulaunch.core.reasons import RunReason
from gpulaunch.observe.present import words
from gpulaunch.observe.terminal.terminal import is_gone
from gpulaunch.observe.top.board import Board, Intake, Playback, RunLink, Why, words_of
from gpulaunch.observe.top.draw import laid_out
from gpulaunch.observe.top.head import cut, first_lines, hints, moment
from gpulaunch.observe.top.rows import CardRows, EndedRows, FailedRows, Filter, QueueRows
from gpulaunch.observe.top.screens import AddScreen, Help, LogScreen, Question, RowList

# ── What a person can ask ─────────────────────────────────────────────────────────────────────────


class Proposal(Struct, frozen=True):
    """Requests with a `question` to confirm them; `done` is shown once they were sent."""

    question: str
    done: str
    requests: tuple[Request, ...]


def unable(state: RunState, past: bool, root: str, instead: str) -> str:
    """Return why nothing can be asked (only a live run can be, in the present); else "".

    `instead` is the command that serves on a run that is over.
    """
    if past:
        return "this is the past: n goes back to now"
    if state == "running":
        return ""
    over = "was interrupted" if state == "interrupted" else "is over"
    return f"the run {over}: gpulaunch {instead} {root}"


def to_cancel(job: JobRecord) -> Proposal | str:
    """Return the proposal, or why there is none."""
    if job.state in SETTLED_STATES:
        return f"{job.name} is over already ({job.state})"
    what = "It is running, and is stopped." if job.state == "running" else "It waits."
    question = f"Cancel {words.visible(job.name)}?\n{what} It will not be run again in this run."
    return Proposal(question, f"cancelled {job.name}", (Cancel((job.name,)),))


def to_retry(job: JobRecord) -> Proposal | str:
    """Return the proposal, or why there is none."""
    if job.state not in ("failed", "cancelled", "skipped") and job.not_before is None:
        return f"{job.name} has not failed ({job.state})"
    question = (
        f"Run {words.visible(job.name)} again?\n"
        "As the job file has it now, with what keeps it from running, and what was skipped"
        " because of it."
    )
    return Proposal(question, f"requeued {job.name}", (Retry((job.name,), as_filed=True),))


def pause_to_end(ledger: Ledger) -> RunReason | None:
    """Return the pause that a person can end: theirs, or one after many failures alike."""
    return ledger.pauses.get("breaker") or ledger.pauses.get("asked")


def to_pause(paused: RunReason | None) -> Proposal:
    """Return the proposal to pause, or to end the pause `paused`."""
    if paused is None:
        question = "Start no new jobs?\nThose that run go on."
        return Proposal(question, "paused", (Pause(Quoted("asked for in gpulaunch top")),))
    # One request ends a pause after many failures alike, the other a person's pause.
    question = f"Start jobs again?\nPaused: {words.visible(pause(paused))}"
    return Proposal(question, "goes on", (GoOn(), Pause(None)))


# ── The screen ────────────────────────────────────────────────────────────────────────────────────

LOOK = 0.5
"""Seconds between two looks at the run."""
CLOCK = 1.0
"""Seconds between two redraws in which only clocks move on."""
EASE = 10
"""Redraws take at most 1/EASE of the time."""
ASK = (3.0, 15.0)
"""Seconds between two questions why jobs wait: at least, and if nothing changed."""
SAID = 8.0
"""Seconds that a message stays."""

T = TypeVar("T")


class Top(App[None]):
    """One run on the screen. `zone` is for times of day; None: the machine's.

    `hung_up` is called when the terminal was closed, and nothing can be drawn or read any more.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("question_mark,f1", "help", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "unfilter", show=False),
        Binding("tab", "pane(1)", show=False, priority=True),
        Binding("shift+tab", "pane(-1)", show=False, priority=True),
        Binding("e", "ended", show=False),
        Binding("l", "log", show=False),
        Binding("c", "cancel", show=False),
        Binding("r", "retry", show=False),
        Binding("p", "pause", show=False),
        Binding("a", "add", show=False),
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
        Binding("left_square_bracket", "leap(-1)", show=False),
        Binding("right_square_bracket", "leap(1)", show=False),
        Binding("n", "now", show=False),
    ]

    def __init__(
        self, link: RunLink, zone: tzinfo | None = None, hung_up: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.link = link
        self._zone, self._hung_up = zone, hung_up
        self._present = Board(zone, link.earlier())
        self._history: Playback | None = None
        self._rewinding = False
        self._intake = Intake(link, self._present)
        self._all_ended, self._state_shown = False, ""
        self.refused = ""
        """Why nothing could be shown at all."""
        self._chosen = Filter()
        self._pane = "cards"
        self._said, self._said_until = "", 0.0
        self._changed, self._drawn_at, self._not_before = True, 0.0, 0.0
        self._asking, self._asked_at, self._news = False, 0.0, True
        self._lists: dict[str, RowList] = {}
        self._below = Container(id="below")
        self._head, self._foot = Static(id="head", markup=False), Static(id="foot", markup=False)

    @property
    def board(self) -> Board:
        """The board that is shown: of the run now, or at a moment of its past."""
        return self._history.board if self._history else self._present

    def compose(self) -> ComposeResult:
        self._lists = {
            "cards": RowList("cards", "nothing runs"),
            "waiting": RowList("waiting", "nothing waits"),
            "ended": RowList("ended", "none"),
        }
        yield self._head
        yield self._lists["cards"]
        with self._below:
            yield self._lists["waiting"]
            yield self._lists["ended"]
        yield self._foot
        yield Input(placeholder="filter", id="filter", compact=True)

    def on_mount(self) -> None:
        if not self.is_headless:
            # Without this handler a SIGTERM leaves the terminal without echo.
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: self.exit(return_code=143))
        self._lists["cards"].focus()
        self.set_interval(LOOK, self.look)
        self.look()

    # ── Looking at the run ──────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Read new facts, and redraw if it is time to."""
        if not self.is_headless and is_gone(sys.stdin):
            self._hung_up()
        if self._take_in():
            self.call_after_refresh(self.look)  # a long journal comes in pieces, keys in between
        board = self._present
        if self._intake.complete:
            board.state = self.link.state(board.ledger)
            self._changed |= board.state != self._state_shown
            if board.state == "running":
                board.at(self.link.now(board.ledger))
            elif board.state == "interrupted" and (samples := self.link.samples()):
                board.seen(samples.last_seen() or 0.0)
            self._wonder()
        now = time.monotonic()
        if now < self._not_before:
            return
        if self._changed or now - self._drawn_at >= CLOCK:
            self._show()

    def _take_in(self) -> bool:
        """Read new facts; return True if there may be more at once."""
        came = self._intake.take()
        if self._intake.refused:
            self.refused = self._intake.refused
            self.exit()
        if came:
            self._changed = self._news = True
        return came

    def _wonder(self) -> None:
        """Ask the live run why jobs wait, now and then."""
        passed = time.monotonic() - self._asked_at
        due = self._asked_at == 0 or passed >= (ASK[0] if self._news else ASK[1])
        if self._asking or not due or self._present.state != "running":
            return
        self._asking, self._news, self._asked_at = True, False, time.monotonic()
        self._aside(self.link.reasons, self._told)

    def _told(self, reasons: Why | GpulaunchError) -> None:
        self._asking = False
        if isinstance(reasons, GpulaunchError):
            if self._present.state == "running":
                self._say(words_of(reasons))
        else:
            self._present.reasons = reasons
            self._changed = True
            self._show()

    def _aside(self, work: Callable[[], T], then: Callable[[T | GpulaunchError], None]) -> None:
        """Call `work` in a thread, then `then` here with its result or error."""

        def whole() -> None:
            came: T | GpulaunchError
            try:
                came = work()
            except (GpulaunchError, OSError) as error:
                came = GpulaunchError(words_of(error))
            with suppress(RuntimeError):  # the screen was closed meanwhile
                self.call_from_thread(then, came)

        self.run_worker(whole, thread=True)

    # ── Showing ─────────────────────────────────────────────────────────────────────────────────

    def _show(self) -> None:
        began = time.monotonic()
        board, chosen = self.board, self._chosen
        self._state_shown = self._present.state
        self._present.samples = self.link.samples() if self._intake.complete else None
        if self._intake.complete or self._history:
            self._lists["cards"].put(CardRows(board, chosen))
            if self._changed or not self._drawn_at:
                ended = EndedRows if self._all_ended else FailedRows
                self._lists["waiting"].put(QueueRows(board, chosen))
                self._lists["ended"].put(ended(board, chosen))
                self._changed = False
            for each in self._lists.values():
                each.refresh()
        self._show_edges()
        self._arrange()
        for screen in self.screen_stack[-1:]:  # none any more while the application closes
            if isinstance(screen, LogScreen):
                screen.look()
        self._drawn_at = time.monotonic()
        self._not_before = self._drawn_at + EASE * (self._drawn_at - began) - LOOK

    def _show_edges(self) -> None:
        width, height = self.size.width, self.size.height
        above = first_lines(self.board, self.link.root, self._notes(), width, height)
        self._head.update(above)
        self._foot.update(cut(self._hints(), width))

    def _notes(self) -> list[Text]:
        notes: list[Text] = []
        if self._intake.trouble:
            notes.append(Text(f" ! {words.visible(self._intake.trouble)}", "bold red"))
        elif self.link.gone():
            notes.append(Text(" ! the run's directory is gone; this is the last of it", "bold red"))
        if not self._intake.complete:
            done = f"{100 * self.link.share():.0f}"
            notes.append(Text(f" reading the journal: {done} % …", "yellow"))
        elif self._rewinding:
            notes.append(Text(" reading the run's past …", "yellow"))
        if self._history:
            notes.append(moment(self.board, self._history.step, self._history.steps))
        return notes

    def _hints(self) -> Text:
        if self._said and time.monotonic() < self._said_until:
            return Text(f" {self._said}", "bold yellow")
        paused = pause_to_end(self._present.ledger) is not None
        return hints(self._all_ended, paused, self._chosen)

    def _say(self, text: str) -> None:
        self._said, self._said_until = words.visible(text), time.monotonic() + SAID
        self._show_edges()

    def _arrange(self) -> None:
        """Give each list its rows."""
        cards, waiting, ended = self._lists.values()
        some_ended = self._all_ended or len(ended.rows) > 0
        if self._pane == "ended" and not some_ended:
            self._pane = "cards"
            if ended.has_focus:  # do not take the focus from the filter while a person types
                cards.focus()
        needed = ended.needed if some_ended else None
        wanted = cards.needed, waiting.needed, needed
        found = laid_out(self.size.width, self.size.height, self._pane, wanted)
        self._below.set_class(found.wide, "wide")
        cards.display, self._below.display = found.cards, found.below
        waiting.display, ended.display = found.waiting, found.ended
        cards.styles.height = "1fr" if found.cards_height is None else found.cards_height
        waiting.styles.height = "1fr" if found.waiting_height is None else found.waiting_height

    def on_resize(self, _: events.Resize) -> None:
        if self._lists:
            self._show_edges()
            self._arrange()

    # ── Lists ───────────────────────────────────────────────────────────────────────────────────

    def _focus(self, pane: str) -> None:
        self._pane = pane
        self._lists[pane].focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if event.widget.id in self._lists:
            self._pane = event.widget.id

    def action_pane(self, by: int) -> None:
        if len(self.screen_stack) > 1 or self.query_one("#filter", Input).display:
            return
        shows_ended = self._all_ended or len(self._lists["ended"].rows) > 0
        open_ = [name for name in self._lists if name != "ended" or shows_ended]
        here = open_.index(self._pane) if self._pane in open_ else 0
        self._pane = open_[(here + by) % len(open_)]
        self._arrange()
        self._focus(self._pane)

    def action_ended(self) -> None:
        self._all_ended, self._changed = not self._all_ended, True
        self._show()

    def on_row_list_chosen(self, event: RowList.Chosen) -> None:
        self._show_log(event.job)

    def action_log(self) -> None:
        job = self._chosen_job()
        if job is not None and not isinstance(self.screen, LogScreen):
            self._show_log(job)

    def _show_log(self, job: str) -> None:
        self.push_screen(LogScreen(job, lambda: self.board, self.link.log))

    def action_help(self) -> None:
        if not isinstance(self.screen, Help):
            self.push_screen(Help())

    def _chosen_job(self) -> str | None:
        """Return the job whose log is open, or under the focused list's cursor; else None."""
        if isinstance(self.screen, LogScreen):
            return self.screen.job
        job = self._lists[self._pane].job
        if job is None:
            self._say("no job is chosen: ↑ ↓ and Tab move")
        return job

    # ── The filter ──────────────────────────────────────────────────────────────────────────────

    def action_filter(self) -> None:
        if len(self.screen_stack) > 1:
            return
        field = self.query_one("#filter", Input)
        self._foot.display, field.display = False, True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._narrow(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._leave_filter()

    def action_unfilter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._narrow("")
        self._leave_filter()

    def _narrow(self, text: str) -> None:
        self._chosen, self._changed = Filter(text), True
        self._show()
        for each in self._lists.values():
            each.seek()

    def _leave_filter(self) -> None:
        self._foot.display, self.query_one("#filter", Input).display = True, False
        with_jobs = [name for name, each in self._lists.items() if each.job is not None]
        if self._pane not in with_jobs and with_jobs:
            self._pane = with_jobs[0]
        self._arrange()
        self._focus(self._pane)
        self._show_edges()

    # ── Asking something of the run ─────────────────────────────────────────────────────────────

    def _may_ask(self, instead: str) -> bool:
        past = self._history is not None
        why = unable(self._present.state, past, self.link.root, instead)
        if why:
            self._say(why)
        return not why

    def action_cancel(self) -> None:
        job = self._chosen_job()
        if job and self._may_ask("resume goes on with what has not succeeded:"):
            self._propose(to_cancel(self.board.ledger.jobs[job]))

    def action_retry(self) -> None:
        job = self._chosen_job()
        if job and self._may_ask("retry"):
            self._propose(to_retry(self.board.ledger.jobs[job]))

    def action_pause(self) -> None:
        if self._may_ask("resume"):
            self._propose(to_pause(pause_to_end(self._present.ledger)))

    def action_add(self) -> None:
        def typed(command: str | None) -> None:
            if command:
                self._aside(lambda: self.link.add(command), added)

        def added(came: str | GpulaunchError) -> None:
            self._say(f"added {came}" if isinstance(came, str) else words_of(came))

        if self._may_ask("run"):
            self.push_screen(AddScreen(), typed)

    def _propose(self, proposal: Proposal | str) -> None:
        if isinstance(proposal, str):
            self._say(proposal)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._aside(lambda: self._ask(proposal.requests), asked)

        def asked(came: GpulaunchError | None) -> None:
            self._say(proposal.done if came is None else words_of(came))

        self.push_screen(Question(proposal.question), answered)

    def _ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.link.ask(request)

    # ── The past ────────────────────────────────────────────────────────────────────────────────

    def action_step(self, by: int) -> None:
        self._walk(by, lambda history: history.go(by))

    def action_leap(self, by: int) -> None:
        self._walk(by, lambda history: history.leap(by))

    def action_now(self) -> None:
        if self._history:
            self._history, self._changed = None, True
            self._show()

    def _walk(self, by: int, move: Callable[[Playback], object]) -> None:
        if self._history:
            move(self._history)
            if by > 0 and self._history.step == self._history.steps:
                self._history = None
            self._changed = True
            self._show()
        elif by > 0:
            self._say("this is now")
        elif self._intake.complete and not self._rewinding:
            self._rewinding = True
            self._show_edges()
            self._aside(self._read_past, lambda came: self._rewound(came, move))

    def _read_past(self) -> Playback:
        try:
            now = self._present
            return Playback(self.link.past(), now.samples, self._zone, now.earlier)
        except (KeyError, IndexError) as error:
            raise GpulaunchError(words_of(error)) from None

    def _rewound(self, came: Playback | GpulaunchError, move: Callable[[Playback], object]) -> None:
        self._rewinding = False
        if isinstance(came, GpulaunchError):
            self._say(words_of(came))
            return
        self._history, self._changed = came, True
        move(came)
        self._show()
