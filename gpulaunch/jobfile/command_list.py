"""Reads a plain list of commands, one a line, as the tree that a job file with them would have.

    text ─▶ commands, each with its place ─▶ {jobs: [{name, run}, ...]}

Tells such a list from a job file. Each command is what a `run:` string is, and a job is named after
it (`command_names`); what cannot be meant by a line is `command_mistakes`'s matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from msgspec import Struct

from gpulaunch.errors import JobFileError
from gpulaunch.jobfile import tree
from gpulaunch.jobfile.command_mistakes import NO_JOB_FILE, is_yaml, mistakes_of
from gpulaunch.jobfile.command_names import names_of
from gpulaunch.jobfile.file_keys import TOP
from gpulaunch.jobfile.source import JobFileText
from gpulaunch.jobfile.tree import YamlNode, place_at

YAML = frozenset({".yaml", ".yml", ".json"})
"""Endings of a job file's name. What has another one is looked at."""
_KEYS = "|".join(TOP)
_JOB_FILE = re.compile(rf"^(?:([\"']?)(?:{_KEYS})\1[ \t]*:(?=\s|$)|---(?=\s|$)|%YAML )", re.M)
_IN_BRACES = re.compile(rf"\s*(?:#[^\n]*\n\s*)*\{{\s*([\"']?)(?:{_KEYS})\1\s*:")
_SCRIPTS = {
    ".sh": "a shell script",
    ".bash": "a shell script",
    ".zsh": "a shell script",
    ".py": "a Python program",
    ".ipynb": "a notebook",
    ".r": "an R program",
    ".jl": "a Julia program",
    ".pl": "a Perl program",
}


class ListedCommand(Struct, frozen=True):
    """A command of a list, as typed; continued lines keep their backslashes. `at`: its place."""

    text: str
    at: int


def is_list(name: str, data: bytes) -> bool:
    """Tell whether a text, right or wrong, is a list of commands, rather than a job file.

    By its name, `jobs.yaml`, or else because no line begins with a key of a job file (`jobs:`): no
    program is called so.
    """
    if PurePath(name).suffix.lower() in YAML:
        return False
    text = data.decode("utf-8-sig", "replace")
    return not (_JOB_FILE.search(text) or _IN_BRACES.match(text))


def parse(source: JobFileText) -> tuple[YamlNode, list[tuple[int, str]]]:
    """Return the tree of a job file or of a list, and mistakes that did not prevent it.

    Raises JobFileError with the one mistake at which reading had to stop.
    """
    if not source.is_list:
        return tree.parse(source)
    _refuse_script(source)
    commands = list(commands_in(source.lines))
    if (one := next((one for one in commands if is_yaml(one.text)), None)) is not None:
        raise JobFileError([source.mistake(*tree.place(one.at), NO_JOB_FILE)])
    found = [(one.at, why) for one in commands for why in mistakes_of(one.text)]
    wrong = {at for at, _ in found}
    named = zip(commands, names_of([one.text for one in commands]), strict=True)
    entries = [_entry(one, name) for one, name in named if one.at not in wrong]
    return YamlNode(0, {"jobs": YamlNode(0, entries)}), found


def _entry(command: ListedCommand, name: str) -> YamlNode:
    at = command.at
    return YamlNode(at, {"name": YamlNode(at, name), "run": YamlNode(at, command.text)}, size=3)


def commands_in(lines: list[str]) -> Iterator[ListedCommand]:
    """Yield the commands of a list's lines, without comments and blank lines."""
    number = 0
    while number < len(lines):
        first, line = number, lines[number]
        number += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [line]
        while _goes_on(parts[-1]) and number < len(lines):
            parts.append(lines[number])
            number += 1
        text = "\n".join(parts).strip()
        yield ListedCommand(text, place_at(first, len(line) - len(line.lstrip())))


def complete(data: bytes) -> bytes:
    """Return a growing list's text up to the last line that is whole, and is not to go on."""
    end = data.rfind(b"\n") + 1
    while end and _goes_on(data[:end].rstrip(b"\r\n")[-1000:].decode(errors="replace")):
        end = data.rfind(b"\n", 0, end - 1) + 1
    return data[:end]


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _refuse_script(source: JobFileText) -> None:
    """Raise an error for a program: what its lines do, they do together."""
    what = _SCRIPTS.get(PurePath(source.name).suffix.lower(), "")
    if source.text.startswith("#!"):
        what = "a script"
    if not what:
        return
    why = (
        f"this is {what}, whose lines belong together, and a list has a command of its own in each;"
        f" gpulaunch init {source.name} replaces the masks of a shell script; gpulaunch exec runs"
        " any script"
    )
    raise JobFileError([source.mistake(0, 0, why)])
