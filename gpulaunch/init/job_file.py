"""Entries to the text of a job file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from gpulaunch.init.script import Unfit

_PLACEHOLDER = re.compile(r"(\\*)(\{\{[ \t]*[^\W\d][\w-]*[ \t]*\}\})")


class InitEntry(Struct, frozen=True):
    """An entry of `jobs:`, with a job for each file of `pattern` if there is one.

    `cards` are those that the script named, of which a job has `count`. `beside`: how many jobs
    the script ran on one card at once.
    """

    name: str
    run: str
    count: int
    pattern: str = ""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cards: frozenset[str] = frozenset()
    beside: int = 1

    @property
    def group(self) -> str:
        """How other entries name all jobs of this one."""
        return f"{self.name.partition('-')[0]}-*" if self.pattern else self.name


def escaped(text: str) -> str:
    """Return text for a field with placeholders, such that it stands for itself.

    Raises Unfit where the job file has no way to say it.
    """

    def guard(match: re.Match[str]) -> str:
        if len(match.group(1)) % 2:
            raise Unfit(f"{match.group()} would be a placeholder of the job file")
        return f"{match.group(1)}\\{match.group(2)}"

    if re.search(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]", text):
        raise Unfit("a character of it cannot be written into a job file")
    return _PLACEHOLDER.sub(guard, text)


def job_file(title: str, entries: Sequence[InitEntry]) -> str:
    """Return the whole file."""
    title = re.sub(r"[^ -~]", "?", title)
    lines = [
        f"# Made from {title} by `gpulaunch init`. Each job gets a card that is free, and sees it",
        "# as cuda:0. To see the plan: gpulaunch check FILE",
    ]
    cards = sorted({int(card) for entry in entries for card in entry.cards if card.isdigit()})
    if cards and cards != list(range(len(cards))):
        lines.append(f"# gpus: {cards}    # the cards of the script; without this line, any card")
    for number in sorted({entry.beside for entry in entries} - {1}):
        names = ", ".join(entry.name for entry in entries if entry.beside == number)
        lines.append(f"# The script ran {number} commands on a card at once (per_gpu: {number}):")
        lines.append(f"#     {names}")
    return "\n".join([*lines, "jobs:", ""]) + "".join(map(_spelt, entries))


def _spelt(entry: InitEntry) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a text of several lines as it stands, and a list on one line."""

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, "|" if "\n" in data else None)

    def names(dumper: yaml.SafeDumper, data: list[str]) -> yaml.Node:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(str, text)
    Dumper.add_representer(list, names)
    fields: dict[str, Any] = {"name": entry.name, "foreach": entry.pattern, "gpus": entry.count}
    fields |= {"needs": [*entry.needs], "after": [*entry.after], "env": dict(entry.env)}
    fields = {key: value for key, value in fields.items() if value or key == "gpus"}
    if entry.count == 1:
        del fields["gpus"]
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 1 << 30}
    made: str = yaml.dump({**fields, "run": entry.run}, Dumper=Dumper, **options)
    return "\n  - " + made.replace("\n", "\n    ").rstrip(" ")
