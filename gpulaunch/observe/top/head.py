"""Makes the screen's first lines (the run, its counts, its warnings) and its last. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gpulaunch.base.text import clock
from gpulaunch.base.wording import run_reason
from gpulaunch.core.model import SETTLED_STATES, JobState
from gpulaunch.observe.present import words
from gpulaunch.observe.present.status import STYLES, held_up
from gpulaunch.observe.top.board import Board
from gpulaunch.observe.top.draw import bar, head_lines
from gpulaunch.observe.top.rows import Filter

BAR = 40


HINTS = (
    " ? help  q quit  Enter log  / filter  {e}  c cancel  r retry  p {p}  ← → past  Tab next list"
)


_STATES = {"succeeded": "green", "running": "cyan", "failed": "bold red"}


_SAID: dict[JobState, str] = {"succeeded": "done"}


_COUNTED: tuple[JobState, ...] = ("succeeded", "failed", "cancelled", "skipped", "running")


def first_lines(board: Board, root: str, notes: Sequence[Text], width: int, height: int) -> Text:
    """Return the run, its counts, the notes and the run's warnings, as far as there is room."""
    lines = [*notes, *warnings(board, root)]
    room = head_lines(height)
    if room >= 2 + len(lines[:1]):  # with little room a warning replaces the counts
        lines.insert(0, counts(board, width))
    lines.insert(0, head(board, root))
    return Text("\n").join(cut(line, width) for line in lines[:room])


def cut(line: Text, width: int) -> Text:
    """Return the line, cut at `width` columns."""
    line.no_wrap = True
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def head(board: Board, root: str) -> Text:
    """Return the line of the run: name, state, time, time left, directory."""
    ledger = board.ledger
    text = Text.assemble(
        (f" {words.visible(ledger.opening.name) or 'run'}", "bold"),
        "  ",
        (board.state, _STATES.get(board.state, "yellow")),
        f"  {clock((ledger.closed or board.now).mono - board.began.mono)}",
        no_wrap=True,
    )
    if ahead := board.to_go():
        text.append(f"  {ahead}")
    if ledger.opening.simulated:
        text.append("  simulated cards", "magenta")
    if board.state == "running" and (waits := words.standing(ledger)):
        text.append(f"  {waits}", "cyan")
    return text.append(f"  {words.visible(root)}", "dim")


def counts(board: Board, width: int) -> Text:
    """Return how many jobs are in which state, after a bar if there is room."""
    known = board.ledger.counts
    cut_off = board.state == "interrupted" and not board.past and not board.ledger.queueing
    said = _SAID | ({"running": "cut off"} if cut_off else {})
    settled = sum(max(0, known[state]) for state in SETTLED_STATES)
    total = settled + known["running"] + known["waiting"]
    text = Text(" ", no_wrap=True)
    parts = [Text(f"{words.count(settled)} of {words.count(total)}", "bold")]
    for state in _COUNTED:
        if known[state] > 0:
            many = f"{words.count(known[state])} {said.get(state, state)}"
            parts.append(Text(many, STYLES[state]))
    if board.ledger.vanished:
        parts.append(Text(f"{words.count(board.ledger.vanished)} {words.GONE}", "yellow"))
    parts.append(Text(f"{words.count(known['waiting'])} left"))
    if board.not_due:
        parts.append(Text(board.not_due, "dim"))
    if board.in_queue:
        parts.append(Text(f"{words.count(board.in_queue)} in the queue", "dim"))
    about = Text.assemble(*(piece for part in parts for piece in (part, (" · ", "dim"))))
    about.right_crop(len(" · "))
    room = min(BAR, width - about.cell_len - 4)
    if room >= 8:
        text.append(bar(settled / max(1, total), room), "green on bright_black").append("  ")
    return text.append_text(about)


def warnings(board: Board, root: str) -> list[Text]:
    """Return what keeps the run from going on, a line each."""
    ledger, said = board.ledger, []
    if board.state == "interrupted" and not board.past and ledger.opening.run:
        said.append(
            "its supervisor is gone without having ended the run:"
            f" gpulaunch resume {words.visible(root)} goes on"
        )
    elif ledger.closed:
        said.append(words.visible(run_reason(ledger.reason)))
    else:
        said.append(held_up(ledger, board.now))
    return [Text(f" ! {text}", "yellow", no_wrap=True) for text in said if text]


def moment(board: Board, step: int, steps: int) -> Text:
    """Return the line about the moment of the run's past that is shown."""
    last = board.ledger.last
    when = words.local_time(last.utc, board.zone) if last else ""
    into = clock(last.mono - board.began.mono) if last else ""
    return Text(
        f" ◀ {when}, {into} into the run, moment {step:,} of {steps:,}: ← → [ ] move, n is now",
        "reverse",
        no_wrap=True,
    )


def hints(all_ended: bool, paused: bool, chosen: Filter) -> Text:
    """Return the line of keys, after the filter if there is one."""
    ended = "e failed" if all_ended else "e all ended"
    text = Text(HINTS.format(e=ended, p="go on" if paused else "pause"), "dim")
    if not chosen:
        return text
    return Text.assemble((f" filter: {words.visible(chosen.text)} (Esc: all) ", "bold"), text)
