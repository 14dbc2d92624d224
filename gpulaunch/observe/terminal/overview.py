"""Shows many jobs on one screen: groups, a few names, how many are left out; and the end of a run.

Owns the choice of lines; the words come from `present.summary` and `present.words`. On a terminal
lines are cut to its width, elsewhere none is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpulaunch.base.text import clock, listing, several
from gpulaunch.base.wording import run_reason
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import JobState
from gpulaunch.observe.present import words
from gpulaunch.observe.present.events import ENDS_FIRST
from gpulaunch.observe.present.status import STYLES
from gpulaunch.observe.present.summary import BEGINNING, MAX_FAILURES_TOLD, Alike, Failed, Summary
from gpulaunch.observe.present.usage import never_touched, processes_left, stands_for_other

# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────

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


# ── The end of a run ──────────────────────────────────────────────────────────────────────────────

LINES = 40
"""Lines of the summary where standard error is no terminal."""
EACH = 4
"""Cards whose use is shown one by one; with more, only the least and the most busy."""
_LABEL = 10
_STYLES = {state: STYLES[state] for state in ENDS_FIRST} | {"waiting": "cyan"}


def print_summary(console: Console, summary: Summary) -> None:
    """Print failures first and totals last: people see the end of a long output."""
    foot = [*_skipped(summary), *_totals(summary)]
    room = (console.height if console.is_terminal else LINES) - 2  # the report, the shell's prompt
    told = _told(summary, room - _height(console, foot), console)
    left = sum(len(one.alike.names) for one in summary.failed[len(told) :]) + summary.failed_more
    more = [EndLine("", f"and {several(left, 'failed job')} more"), EndLine()] if left else []
    for line in (*chain(*told), *more, *foot):
        _say(console, line)


class EndLine(Struct, frozen=True):
    """A line: `text` after a right-aligned label. `whole`: never cut, so that it can be copied."""

    label: str = ""
    text: str | Text = ""
    style: str = ""
    whole: bool = False

    @property
    def blank(self) -> bool:
        return not self.label and not self.text


def _told(summary: Summary, room: int, console: Console) -> list[list[EndLine]]:
    """Return the lines of each kind of failure that fit into `room` lines.

    As many kinds as possible get short lines; then the first ones get their details.
    """
    told: list[list[EndLine]] = []
    if len(summary.failed) > 1:
        room -= 2  # for the lines that count the rest
    for detail in range(3):
        advised: set[str] = set()
        for at, failed in enumerate(summary.failed):
            lines = _lines_of(failed, detail, failed.advice not in advised)
            advised.add(failed.advice)
            before = _height(console, told[at]) if at < len(told) else 0
            more = _height(console, lines) - before
            if more > room and (detail or told):
                break
            told[at : at + 1] = [lines]
            room -= more
    return told


def _height(console: Console, lines: Iterable[EndLine]) -> int:
    return sum(height_of(console, _text(line)) if line.whole else 1 for line in lines)


def print_report(console: Console, path: str) -> None:
    """Print where the run's report is, once it is written."""
    _say(console, EndLine("report", Text(words.visible(path)), "dim", whole=True))


def _lines_of(failed: Failed, detail: int, advise: bool) -> list[EndLine]:
    """Return the lines of one kind of failure.

    `detail`: 0 how it ended and the evidence, 1 also its log and advice, 2 everything. `advise`:
    its advice has not been shown yet.
    """
    alike, last = failed.alike, failed.last
    names, how = listing(map(words.visible, alike.names)), words.visible(alike.text)
    if len(alike.names) > 1:
        head = Text.assemble(f"{several(len(alike.names), 'job')}: {how}: ", (names, "bold"))
    else:
        attempts = f"{last.id.number} attempts" if last and last.id.number > 1 else ""
        rest = ", ".join(filter(None, [how, attempts, failed.card]))
        head = Text.assemble((names, "bold"), f"  {rest}")
    lines = [EndLine("failed", head, "bold red")]
    if failed.log and detail:
        lines.append(EndLine("", Text(words.visible(failed.log), "dim"), whole=True))
    shown = failed.tail if detail > 1 else failed.tail[-1:]
    if alike.evidence and not any(alike.evidence[:BEGINNING] in line for line in shown):
        shown = (alike.evidence, *(shown if detail > 1 else ()))
    lines += [EndLine("", Text.assemble(("│ ", "red"), words.visible(line))) for line in shown]
    if detail > 1:
        reports = last.reports if last else ()
        lines += [EndLine("driver", words.visible(report), "yellow") for report in reports]
        lines += [EndLine("used", failed.use, "dim")] if failed.use else []
    if detail and failed.advice and advise:
        for number, line in enumerate(failed.advice.splitlines()):
            lines.append(
                EndLine("" if number else "advice", words.visible(line), "cyan", whole=True)
            )
    return [*lines, EndLine()]


def _skipped(summary: Summary) -> list[EndLine]:
    shown, rest = summary.skipped[:MAX_FAILURES_TOLD], summary.skipped[MAX_FAILURES_TOLD:]
    told = [f"{several(len(one.names), 'job')}: {words.visible(one.text)}" for one in shown]
    if rest:
        told.append(f"{several(sum(len(one.names) for one in rest), 'job')} more")
    return [*(EndLine("skipped", line, "yellow") for line in told), EndLine()] if told else []


def _totals(summary: Summary) -> list[EndLine]:
    ledger = summary.ledger
    counts = counted(ledger.counts, ledger.vanished, _STYLES)
    head = Text.assemble(several(len(ledger.jobs), "job"), ": ") + (counts or Text("none"))
    style = "bold green" if ledger.state == "succeeded" else "bold red"
    if ledger.state in ("stopped", "interrupted"):
        style = "bold yellow"
    name = Text(words.visible(ledger.opening.name), "bold")
    since = " since it was taken up again" if ledger.opening.epoch > 1 else ""
    lines = [EndLine(ledger.state, name + Text("  ") + head, style, whole=True)]
    if reason := run_reason(ledger.reason):
        lines.append(EndLine("", words.visible(reason), whole=True))
    lines.append(EndLine("time", f"{clock(summary.elapsed)}{since}", "dim", whole=True))
    if summary.cards:
        lines.append(EndLine("cards", _cards_line(summary), "dim", whole=True))
    if summary.used:
        lines.append(EndLine("used", summary.used, "dim", whole=True))
    if summary.untouched:
        lines.append(EndLine("no card", never_touched(summary.untouched), "yellow", whole=True))
    if summary.left:
        lines.append(EndLine("left", processes_left(summary.left), "yellow", whole=True))
    if summary.noted:
        lines.append(EndLine("noted", summary.noted, "yellow", whole=True))
    if summary.outdated:
        text = stands_for_other(summary.outdated, summary.directory)
        lines.append(EndLine("changed", text, "yellow", whole=True))
    now = ledger.closed.utc if ledger.closed else (ledger.last.utc if ledger.last else 0.0)
    for number, line in enumerate(code_changes(ledger, now)):
        lines.append(EndLine("" if number else "code", line, "yellow", whole=True))
    lines.append(EndLine("run", Text(words.visible(summary.directory)), "dim", whole=True))
    if summary.next_command:
        command = Text(words.visible(summary.next_command), "bold")
        lines.append(EndLine("go on with", command, "dim", whole=True))
    return lines


def _cards_line(summary: Summary) -> str:
    kind = "simulated card" if summary.ledger.opening.simulated else "card"
    hours = f"{summary.gpu_hours:,.2f}" if summary.gpu_hours < 10 else f"{summary.gpu_hours:,.0f}"
    if nodes := {card.gpu.node for card in summary.ledger.gpus.values()} - {""}:
        # Other users' jobs may use a cluster's cards too: how busy they were is not known.
        on = several(len(nodes), "node")
        return f"{several(len(summary.cards), kind)} on {on}, {hours} GPU-hours"
    busy = _percent(summary.busy or 0.0)
    line = f"{several(len(summary.cards), kind)} {busy} busy, {hours} GPU-hours"
    if len(summary.cards) > 1:
        line += f" ({_each(summary)})"
    return line


def _each(summary: Summary) -> str:
    """Return each card's use: `GPU 0: 90 %, GPU 1: 97 %`; of many, the least and most busy."""
    named = [(name.removeprefix("simulated "), use.share) for name, use in summary.cards]
    if len(named) > EACH:
        least, most = min(named, key=lambda n: n[1]), max(named, key=lambda n: n[1])
        return f"from {least[0]}: {_percent(least[1])} to {most[0]}: {_percent(most[1])}"
    return ", ".join(f"{name}: {_percent(share)}" for name, share in named)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _text(line: EndLine) -> Text:
    body = line.text if isinstance(line.text, Text) else Text(line.text)
    return Text.assemble((f"{line.label:>{_LABEL}}  ", line.style)) + body


def _say(console: Console, line: EndLine) -> None:
    if line.blank:
        console.print()
    elif line.whole:
        console.print(_text(line), soft_wrap=True)
    else:
        put(console, _text(line))
