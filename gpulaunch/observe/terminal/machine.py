"""Prints what `gpulaunch gpus` and `ps` show: this machine's cards, and the runs alive on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpulaunch.base.text import clock, size
from gpulaunch.core.model import Instant
from gpulaunch.gpus.socket_locks import how_to_continue
from gpulaunch.observe.present import plan, words
from gpulaunch.observe.present.plan import RunRow
from gpulaunch.observe.terminal.terminal import fits

if TYPE_CHECKING:
    from gpulaunch.base.documents import CardUser, MachineCard


def print_gpus(console: Console, cards: Sequence[MachineCard]) -> None:
    """Print a line per card, below it who is on it and its UUID. Uncut: all can be copied."""
    labels = [f"{'simulated ' if card['simulated'] else ''}GPU {card['index']}" for card in cards]
    names = [words.visible(card["name"]) for card in cards]
    memories = [_memory(card) for card in cards]
    wide = [max(map(len, column), default=0) for column in (labels, names, memories)]
    for card, label, name, memory in zip(cards, labels, names, memories, strict=True):
        head = f"  {name:<{wide[1]}}  {memory:>{wide[2]}}  "
        line = Text.assemble((f"{label:<{wide[0]}}", "bold"), head, _state(card))
        console.print(line, soft_wrap=True)
        for text, tone in _below(card):
            console.print(Text(" " * (wide[0] + 2) + text, tone), soft_wrap=True)


def _state(card: MachineCard) -> tuple[str, str]:
    if card["health"] != "ok":
        return words.visible(card["health"]), "bold red"
    if card["lease"]:
        return "held" if card["hold"] else "leased", "cyan"
    return ("in use", "yellow") if card["state"] else ("free", "green")


def _below(card: MachineCard) -> Iterator[tuple[str, str]]:
    if card["outside"]:
        yield f"not used from here: {words.visible(card['outside'])}", "yellow"
    if card["last"]:
        yield f"used last: {words.visible(card['last'])}", "dim"
    if card["lease"]:
        yield f"{'held' if card['hold'] else 'leased'} by {words.visible(card['lease'])}", ""
    elif card["state"] and not card["users"]:
        yield words.visible(card["state"]), ""
    for user in card["users"]:
        yield _user(user), ""
    if card["option"] and not card["lease"]:
        yield f"{card['option']} takes it all the same", "dim"
    if told := " · ".join(_place(card)):
        yield told, "dim"
    yield words.visible(card["uuid"]), "dim"


def _place(card: MachineCard) -> Iterator[str]:
    if card["unified"]:
        free = "" if card["free"] is None else f", of which {size(card['free'])} are free"
        yield f"unified memory: it uses the host's{free}"
    if card["compute"]:
        yield f"compute capability {card['compute']}"
    if place := plan.near(card["numa"], card["cpus"]):
        yield f"near {place}"
    if card["linked"]:
        yield f"NVLink to {plan.named(card['linked'])}"


def _memory(card: MachineCard) -> str:
    total = "?" if card["memory"] is None else size(card["memory"])
    return total if card["used"] is None else f"{size(card['used'])} of {total}"


def _user(user: CardUser) -> str:
    """`python (pid 4211) of ann, 41 GiB`; inside a container a process may be a number only."""
    text = f"{user['command']} (pid {user['pid']})" if user["command"] else f"pid {user['pid']}"
    if user["user"]:
        text += f" of {user['user']}"
    if user["memory"] is not None:
        text += f", {size(user['memory'])}"
    return words.visible(text)


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
        told = _jobs(row) if row.counts is not None or row.silent or row.suspended else ""
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
    if row.suspended:
        return f"{row.suspended}: {how_to_continue(row.suspended, row.pid)}"
    if counts is None:
        return "does not answer: stopped?" if row.silent else "?"
    total = sum(counts.values())
    settled = total - counts.get("waiting", 0) - counts.get("running", 0)
    failed = counts.get("failed", 0)
    text = f"{words.count(settled)} of {words.count(total)}"
    text = f"{text}, {words.count(failed)} failed" if failed else text
    return text if row.state == "running" else f"{text}; writes its report"
