"""Prints the end of a run on one screen: what failed, why, and how to go on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from gpulaunch.digest import words
from gpulaunch.digest.events import ENDS_FIRST
from gpulaunch.digest.groups import BEGINNING
from gpulaunch.digest.status import STYLES
from gpulaunch.digest.summary import MAX_FAILURES_TOLD, Failed, Summary
from gpulaunch.digest.usage import never_touched, processes_left, stands_for_other
from gpulaunch.text import clock, listing, several
from gpulaunch.views.overview import code_changes, counted, height_of, put
from gpulaunch.wording import run_reason

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
