"""Reports a command's failure: in words on standard error, and as JSON if asked for.

With `--json`, standard output gets one line about the failure and nothing else:
{"schema": 1, "error": WORDS, "status": EXIT STATUS, "mistakes": [...]}. A mistake of a job file, or
of the configuration, has file, line, column, field and message; other failures have no mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from gpulaunch.contracts import SCHEMA
from gpulaunch.errors import Mistake
from gpulaunch.text import in_utf8, several

_ENDS = frozenset({"--", ":::"})


def complain(
    text: str,
    status: int,
    as_json: bool = False,
    found: Sequence[Mistake] = (),
    what: str = "the job file",
) -> int:
    """Print why a command failed; return its exit status. `what` the mistakes are in."""
    from gpulaunch.digest.words import visible_lines

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
