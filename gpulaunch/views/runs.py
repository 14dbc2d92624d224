"""Prints what `gpulaunch ps` shows: the runs alive on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpulaunch.core.model import Instant
from gpulaunch.digest import words
from gpulaunch.digest.runs import RunRow
from gpulaunch.text import clock
from gpulaunch.views.terminal import fits


def print_runs(console: Console, rows: Sequence[RunRow], now: Instant) -> None:
    """Print a line per run, several if it is too long; one plain sentence if there is none."""
    if not rows:
        console.print(Text("no run is alive on this machine"))
        return
    table = _table(rows, now)
    if fits(console, table):
        console.print(table)
        return
    for row in rows:
        name = Text(words.visible(row.name or row.run), "bold")
        head = Text.assemble(name, f"  {words.visible(row.user)}  pid {row.pid}  {_time(row, now)}")
        head.rstrip()
        console.print(head, soft_wrap=True)
        told = _jobs(row) if row.counts is not None or row.silent else ""
        for text in filter(None, (told, _cards(row), row.directory)):
            console.print(Text(f"  {words.visible(text)}"), soft_wrap=True)


def _table(rows: Sequence[RunRow], now: Instant) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("run", no_wrap=True, overflow="ellipsis")
    table.add_column("user", no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("jobs", overflow="fold")
    table.add_column("cards", overflow="fold")
    table.add_column("directory", overflow="fold", style="dim")
    for row in rows:
        table.add_row(
            Text(words.visible(row.name or row.run), "bold"),
            Text(words.visible(row.user)),
            str(row.pid),
            _time(row, now),
            Text(_jobs(row)),
            Text(words.visible(_cards(row))),
            Text(words.visible(row.directory)),
        )
    return table


def _time(row: RunRow, now: Instant) -> str:
    return "" if row.started is None else clock(now.utc - row.started)


def _cards(row: RunRow) -> str:
    if row.simulated and "simulated" not in row.cards:
        return f"{row.cards} (simulated)" if row.cards else "simulated"
    return row.cards


def _jobs(row: RunRow) -> str:
    """Return a run's counts of jobs, `312 of 1,000, 2 failed`, or why they are unknown."""
    counts = row.counts
    if counts is None:
        return "does not answer: stopped?" if row.silent else "?"
    total = sum(counts.values())
    settled = total - counts.get("waiting", 0) - counts.get("running", 0)
    failed = counts.get("failed", 0)
    text = f"{words.count(settled)} of {words.count(total)}"
    text = f"{text}, {words.count(failed)} failed" if failed else text
    return text if row.state == "running" else f"{text}; writes its report"
