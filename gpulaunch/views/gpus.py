"""Prints what `gpulaunch gpus` shows: the cards, who is on them, who holds them, their health."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from gpulaunch.contracts import CardUser, MachineCard
from gpulaunch.digest import words
from gpulaunch.text import size


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
        return "leased", "cyan"
    return ("in use", "yellow") if card["users"] or card["state"] else ("free", "green")


def _below(card: MachineCard) -> Iterator[tuple[str, str]]:
    if card["outside"]:
        yield f"not used from here: {words.visible(card['outside'])}", "yellow"
    if card["lease"]:
        yield f"leased by {words.visible(card['lease'])}", ""
    elif card["state"] and not card["users"]:
        yield words.visible(card["state"]), ""
    for user in card["users"]:
        yield _user(user), ""
    yield words.visible(card["uuid"]), "dim"


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
