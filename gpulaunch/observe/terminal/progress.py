"""Shows a live run: by a view that is redrawn on a terminal, elsewhere by a line per event.

Nothing here has a thread or a clock, and nothing waits for a reader that takes nothing while the
run lives: a blocked write would keep the run from starting jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpulaunch.base.text import clock, listing, several
from gpulaunch.core import facts as f
from gpulaunch.core.ledger import GpuRecord, Ledger
from gpulaunch.core.model import SETTLED_STATES, AttemptId, Instant, JobState
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import EventLine, LineFormatter, Tone, unused
from gpulaunch.observe.present.status import held_up
from gpulaunch.observe.present.usage import Estimate
from gpulaunch.observe.terminal.terminal import (
    SafeStream,
)

GAP = 0.25
"""Seconds between two redraws, at least."""
CLOCK = 1.0
"""Seconds between two redraws in which only clocks move on."""
NARROW = 60
TIME_WIDTH = 8
MAX_LINES_PER_REDRAW = 200
"""Lines printed in one redraw: some 30 ms, during which the run stands still."""
BAR = 80
"""Columns of the bar at most, so that making a wide terminal narrower wraps nothing."""

_MARKS: dict[Tone, tuple[str, str]] = {
    "good": ("✓", "green"),
    "bad": ("✗", "bold red"),
    "warn": ("!", "yellow"),
    "calm": ("·", "cyan"),
    "start": (" ", ""),
}
_VERB_FIRST = frozenset({"paused", "stopping", "note", "goes on", "pulling"})
_VERB_AFTER = frozenset(
    {
        *("skipped", "cancelled", "interrupted", "lost", "requeued", "vanished"),
        *("ready", "waits", "pulled", "found"),
    }
)
_BAD: dict[JobState, str] = {"failed": "bold red", "skipped": "yellow", "cancelled": "yellow"}
_UNSAID = frozenset({"queued", "started", "planned"})
"""Verbs of events without a line, since the lower part shows them."""


class ProgressView:
    """Finished jobs as lines above; below, a bar and a row per card, which rich redraws.

    Owns the lower part of the terminal between the first `tick` and `close`. `see` only takes
    notes: all writing happens in `tick` (at most four times a second) and `close`, and none while
    the terminal takes nothing (Ctrl-S).

    `earlier`: how long jobs took in an earlier run, for the estimate.
    """

    def __init__(self, console: Console, earlier: Mapping[str, float] | None = None) -> None:
        self._console = console
        self._live: Live | None = None
        self._teller, self._estimate = LineFormatter(), Estimate(earlier)
        self._lines: list[EventLine] = []
        self._seeded = self._changed = self._closed = False
        self._doing: Sequence[str] = ()
        self._drawn_at = float("-inf")
        self._size = (0, 0)

    def see(self, fact: f.Fact, at: Instant, ledger: Ledger) -> None:
        if self._seeded:
            self._estimate.see(fact, at, ledger)
        else:
            self._seeded = True
            self._estimate.seed(ledger)
        if not isinstance(fact, f.RunClosed):
            self._say(self._teller.tell(fact, at, ledger))
        self._changed = True

    def tick(self, now: Instant, ledger: Ledger, doing: Sequence[str] = ()) -> None:
        due = self.next_tick(now)
        if due is None or now.mono < due:
            return
        file = self._console.file
        if isinstance(file, SafeStream) and not file.writable_now():
            self._drawn_at = now.mono + CLOCK - GAP  # try again in a second, not at once
            return
        if self._teller.holding and not self._changed:
            self._say(self._teller.flush())
        self._doing = doing
        self._draw(now, ledger)

    def next_tick(self, now: Instant) -> float | None:
        """Return when to redraw: GAP after the last time if something changed, else CLOCK."""
        if self._closed or not self._seeded:
            return None
        pending = self._changed or self._teller.holding or self._console.size != self._size
        return self._drawn_at + (GAP if pending else CLOCK)

    def close(self, ledger: Ledger) -> None:
        if self._closed:
            return
        self._closed = True
        self._say(self._teller.flush())
        if self._live is not None:
            with self._console:
                self._print_lines()
                self._live.update("", refresh=False)
                self._live.stop()
        else:
            self._print_lines()

    def _say(self, lines: Iterable[EventLine]) -> None:
        self._lines += (line for line in lines if line.verb not in _UNSAID)

    def _draw(self, now: Instant, ledger: Ledger) -> None:
        self._drawn_at, self._changed, self._size = now.mono, False, self._console.size
        picture = self._picture(now, ledger)
        if self._live is None:
            self._live = self._start(picture)
        with self._console:  # one write for both: no flicker
            self._live.update(picture, refresh=False)
            self._print_lines(MAX_LINES_PER_REDRAW)
            self._live.refresh()
        self._changed = bool(self._lines)

    def _start(self, picture: RenderableType) -> Live:
        live = Live(
            picture,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        # A killed supervisor could not bring the cursor back.
        self._console.show_cursor(True)
        return live

    def _print_lines(self, limit: int | None = None) -> None:
        lines, self._lines = self._lines[:limit], self._lines[limit:] if limit else []
        if lines:
            self._console.print(Text("\n").join(map(self._line, lines)), soft_wrap=True)

    def _line(self, line: EventLine) -> Text:
        mark, style = _MARKS[line.tone]
        took = "" if line.seconds is None else clock(line.seconds)
        before = f"{line.verb}: " if line.verb in _VERB_FIRST else ""
        after = f"{line.verb}: " if line.verb in _VERB_AFTER and line.detail else ""
        if line.verb in _VERB_AFTER and not line.detail:
            after = line.verb
        about = f"{after}{line.detail}"
        return Text.assemble(
            (f" {mark} ", style),
            (f"{took:>{TIME_WIDTH}}  ", "dim"),
            (before, style),
            line.subject,
            "  " if line.subject and about else "",
            (about, "dim" if line.tone in ("good", "calm") else ""),
        )

    # ── The lower part ──────────────────────────────────────────────────────────────────────────

    def _picture(self, now: Instant, ledger: Ledger) -> RenderableType:
        rows: list[RenderableType] = ["", self._bar(ledger), self._figures(now, ledger)]
        if said := held_up(ledger, now):
            rows.append(Text(f" {said}", "yellow", no_wrap=True, overflow="ellipsis"))
        for text in self._doing:
            rows.append(Text(f" {words.visible(text)}", no_wrap=True, overflow="ellipsis"))
        rows.append("")
        room = max(1, self._console.height - len(rows) - 2)
        rows += self._rows(ledger, room, now)
        return Constrain(Group(*rows), self._width)

    def _bar(self, ledger: Ledger) -> RenderableType:
        settled = sum(max(0, ledger.counts[state]) for state in SETTLED_STATES)
        total = settled + ledger.counts["running"] + ledger.counts["waiting"]
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=min(BAR, self._width) // 3)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        bar = ProgressBar(
            total=max(1, total),
            completed=settled,
            complete_style="green",
            finished_style="green",
            style="bright_black",
        )
        counted = Text(f"{words.count(settled)} of {words.count(total)}", "bold")
        grid.width = min(BAR, self._width)
        grid.add_row(Text(" " + words.visible(ledger.opening.name), "bold"), bar, counted)
        return grid

    @property
    def _width(self) -> int:
        """Columns to use, short of the edge: an echoed `^C` would wrap there and shift the rows."""
        return max(8, self._console.width - 5)

    def _figures(self, now: Instant, ledger: Ledger) -> Text:
        """Return counts and times, on two lines if they do not fit on one."""
        dot = Text(" · ", "dim")
        counts, times = self._counts(now, ledger), self._times(now, ledger)
        line = Text(" ") + dot.join(counts + times)
        if line.cell_len <= self._width:
            return line
        return Text(" ") + dot.join(counts) + "\n " + dot.join(times)

    def _counts(self, now: Instant, ledger: Ledger) -> list[Text]:
        counts = ledger.counts
        parts = [Text(f"{words.count(counts['succeeded'])} done", "green")]
        for state, style in _BAD.items():
            if counts[state] > 0:
                parts.append(Text(f"{words.count(counts[state])} {state}", style))
        parts.append(Text(f"{words.count(counts['running'])} running", "cyan"))
        parts.append(Text(f"{words.count(counts['waiting'])} left"))
        if not_due := words.not_due(self._estimate.moments, now.utc):
            parts.append(Text(not_due, "dim"))
        if self._estimate.in_queue:
            parts.append(Text(f"{words.count(self._estimate.in_queue)} in the queue", "dim"))
        return parts

    def _times(self, now: Instant, ledger: Ledger) -> list[Text]:
        since = ledger.taken or ledger.opened or now
        parts = [Text(clock(now.mono - since.mono))]
        ahead = self._estimate.ahead(now) if ledger.stopping is None else None
        if ahead is not None:
            parts.append(Text(f"{words.rough_range(ahead.low, ahead.high)} to go"))
        if ledger.opening.simulated:
            parts.append(Text("simulated", "magenta"))
        return parts

    def _rows(self, ledger: Ledger, room: int, now: Instant) -> list[RenderableType]:
        """Return a row per card and one for all jobs without a card, `room` rows at most.

        Rows are not padded, so that fewer wrap when the terminal is made narrower.
        """
        cards = self._card_rows(ledger)
        cpu = [a for a in self._estimate.running if not ledger.attempt(a).gpus]
        labels = max((len(label) for label, _, _ in cards), default=3)
        room -= bool(cpu)
        shown = cards if len(cards) <= room else cards[: max(1, room - 1)]
        rows = [self._row(labels, label, text, on, now) for label, text, on in shown]
        if len(shown) < len(cards):
            more = several(len(cards) - len(shown), "more card")
            rows.append(self._row(labels, "", f"and {more}", None, now))
        if cpu:
            jobs = listing(words.visible(attempt.job) for attempt in cpu)
            rows.append(self._row(labels, "CPU", jobs, cpu[0], now))
        return rows

    def _row(
        self, labels: int, label: str, text: str, attempt: AttemptId | None, now: Instant
    ) -> RenderableType:
        since = self._estimate.running.get(attempt) if attempt else None
        took = clock(now.mono - since.mono) if since else ""
        row = Text(f" {label:<{labels}}  {took:>{TIME_WIDTH}}  ", "dim")
        row = Text.assemble(row, (text, "" if attempt else "dim"))
        row.truncate(self._width, overflow="ellipsis")
        return row

    def _card_rows(self, ledger: Ledger) -> list[tuple[str, str, AttemptId | None]]:
        rows = []
        for record in ledger.gpus.values():
            gpu = record.gpu
            if gpu.node and not record.attempts:
                continue  # the card is the cluster's again
            label = words.card(gpu)
            if self._console.width < NARROW:  # the line of figures says "simulated" there
                label = label.removeprefix("simulated ")
            first = min(record.attempts, key=str, default=None)
            rows.append((label, _on_card(record), first))
        return rows


def _on_card(record: GpuRecord) -> str:
    """Return what runs on a card, else why nothing does."""
    drained = "given back" if record.drained else ""
    if record.attempts:
        names = sorted(words.visible(attempt.job) for attempt in record.attempts)
        return listing(names) + (f" ({drained} after this)" if drained else "")
    if why := unused(record):
        return ", ".join(filter(None, [why, drained]))
    if drained:
        return f"{drained}: no new starts here"
    return "its memory is being freed" if record.state == "draining" else "free"


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────
