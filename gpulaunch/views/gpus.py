"""Prints what `gpulaunch gpus` shows: the cards, who is on them, who holds them, their health."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpulaunch.digest import words
from gpulaunch.digest.gpus import GpuRow, GpuUser
from gpulaunch.text import size

if TYPE_CHECKING:
    from rich.console import Console


def print_gpus(console: Console, rows: Sequence[GpuRow]) -> None:
    """Print a line per card, below it its users and its UUID. Nothing is cut: all can be copied."""
    from rich.text import Text

    labels = [f"{'simulated ' if row.simulated else ''}GPU {row.index}" for row in rows]
    names = [words.visible(row.name) for row in rows]
    memories = [_memory(row) for row in rows]
    wide = [max(map(len, column), default=0) for column in (labels, names, memories)]
    for row, label, name, memory in zip(rows, labels, names, memories, strict=True):
        head = f"  {name:<{wide[1]}}  {memory:>{wide[2]}}  "
        state, style = _state(row)
        line = Text.assemble((f"{label:<{wide[0]}}", "bold"), head, (state, style))
        console.print(line, soft_wrap=True)
        for text, tone in _below(row):
            console.print(Text(" " * (wide[0] + 2) + text, tone), soft_wrap=True)


def _state(row: GpuRow) -> tuple[str, str]:
    if row.health != "ok":
        return words.visible(row.health), "bold red"
    if row.lease:
        return "leased", "cyan"
    return ("in use", "yellow") if row.users or row.state else ("free", "green")


def _below(row: GpuRow) -> Iterator[tuple[str, str]]:
    if row.outside:
        yield f"not used from here: {words.visible(row.outside)}", "yellow"
    if row.lease:
        yield f"leased by {words.visible(row.lease)}", ""
    elif row.state and not row.users:
        yield words.visible(row.state), ""
    for user in row.users:
        yield _user(user), ""
    yield words.visible(row.uuid), "dim"


def _memory(row: GpuRow) -> str:
    total = "?" if row.memory is None else size(row.memory)
    return total if row.used is None else f"{size(row.used)} of {total}"


def _user(user: GpuUser) -> str:
    """`python (pid 4211) of ann, 41 GiB`; inside a container a process may be a number only."""
    text = f"{user.command} (pid {user.pid})" if user.command else f"pid {user.pid}"
    if user.user:
        text += f" of {user.user}"
    if user.memory is not None:
        text += f", {size(user.memory)}"
    return words.visible(text)
