"""What a command line that fails is told: what was meant, and why it failed.

Words and options that people bring along from other tools are read, with the list in `habits.txt`,
only for what is no command and no option: nothing here may stand in the way of one. Where nothing
is known of a word, a spelling that is very near is named, or nothing: a wrong guess costs more than
none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from gpulaunch.base.errors import Mistake
from gpulaunch.base.schemas import SCHEMA
from gpulaunch.base.text import in_utf8, several

NEAR_COMMAND, NEAR_OPTION = 0.72, 0.8
"""How alike (0 to 1) a spelling must be to be named."""
ALL = "*"


def _read(path: Path) -> dict[str, dict[str, str]]:
    """Return the list's sections, each with what is meant by words that stand together."""
    phrases: dict[str, str] = {}
    sections = {"phrases": phrases}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            words, _, text = line.partition(" : ")
            section[words] = re.sub(r"@(\w+)", lambda name: phrases[name[1]], text)
    return sections


MEANT = _read(Path(__file__).with_name("habits.txt"))
"""Options and what is meant by them, by the names of the commands that do not have them."""
del MEANT["phrases"]
HABITS: Mapping[str, str] = {
    word: text for words, text in MEANT.pop("commands").items() for word in words.split()
}
"""What is meant by words that are no command."""


def instead_of_command(word: str, commands: Sequence[str]) -> str:
    """Return the end of a line about an unknown command: our name for it, or a near spelling."""
    if ours := HABITS.get(word.lower()):
        return f": {ours}"
    # In a short word, swapped letters lower the likeness much: rnu is run.
    turned = [command for command in commands if sorted(command) == sorted(word.lower())]
    near = turned or get_close_matches(word, commands, 1, NEAR_COMMAND)
    return f"; did you mean {near[0]!r}?" if near else "; `gpulaunch -h` lists them"


def instead_of_option(
    option: str,
    command: str,
    known: Collection[str],
    fields: Collection[str],
    defaults: Collection[str] = (),
) -> str:
    """Return the end of a line about an unknown option of `command`.

    It names our option, a near spelling, or where the options are listed.

    `known`: the options that it has; `fields`: those of a job, where it takes jobs, and `defaults`
    those that `--default` takes.
    """
    word = option.lower() if option.startswith("--") else option
    if ours := _ours(word, command):
        return f": {ours}"
    if not word.startswith("--"):
        return f"; gpulaunch {command} -h lists its options"
    if (field := word[2:].replace("-", "_")) in fields:
        here = f", or --default {field}=VALUE for all of them" * (field in defaults)
        return f": {field}: is a field of a job, in the job file{here}"
    begun = [one for one in known if len(word) > 4 and one.startswith(word)]
    near = begun if len(begun) == 1 else get_close_matches(word, known, 1, NEAR_OPTION)
    return f"; did you mean {near[0]}?" if near else f"; gpulaunch {command} -h lists its options"


def _ours(word: str, command: str) -> str:
    for commands, meant in MEANT.items():
        if commands == ALL or command in commands.split():
            for words, ours in meant.items():
                if word in words.split():
                    return ours
    return ""


def instead_before_a_command(option: str) -> str:
    """Return the end of a line about an option that stands where a command is expected."""
    if option in ("-v", "-V"):
        return ": gpulaunch --version"
    return ": options stand behind a command, as in gpulaunch run jobs.yaml --gpus 2"


# ── Failures ──────────────────────────────────────────────────────────────────────────────────────

_ENDS = frozenset({"--", ":::"})


def complain(
    text: str,
    status: int,
    as_json: bool = False,
    found: Sequence[Mistake] = (),
    what: str = "the job file",
) -> int:
    """Print why a command failed; return its exit status. `what` the mistakes are in.

    In words on standard error. With `as_json`, standard output gets one line and nothing else:
    {"schema": 1, "error": WORDS, "status": EXIT STATUS, "mistakes": [...]}. A mistake of a job
    file, or of the configuration, has file, line, column, field and message; other failures have
    no mistakes.
    """
    from gpulaunch.observe.present.words import visible_lines

    lines = visible_lines(text).split("\n")
    # A job file's mistakes begin with their places; what is indented goes on with the line before.
    named = not found or len(lines) == 1
    for line in lines:
        click.echo(f"gpulaunch: {line}" if named and not line.startswith(" ") else line, err=True)
    if as_json:
        count = f"{several(len(found), 'mistake')} in {what}"
        error = count if found else text
        mistakes = [one.plain() for one in found]
        told = {"schema": SCHEMA, "error": error, "status": status, "mistakes": mistakes}
        click.echo(in_utf8(json.dumps(told, ensure_ascii=False)))
    return status


def asks_for_json(error: click.ClickException, argv: Sequence[str]) -> bool:
    """Tell whether a command line that could not be parsed has the command's own `--json`."""
    context: click.Context | None = getattr(error, "ctx", None)
    if context is None or not any("--json" in one.opts for one in context.command.params):
        return False
    end = next((i for i, word in enumerate(argv) if word in _ENDS), len(argv))
    return "--json" in argv[:end]
