"""Text of a job file as bash text: quoted, with what is known only at the start as variables.

    {{out}} known now      bare '/x/out/a'      'single'  /x/out/a           "double" /x/out/a
    {{out}} as a variable  bare "${OUT}"        'single'  '"${OUT}"'         "double" ${OUT}

Pure: text in, text out. Every word is one line, whatever is in it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TypeAlias

from gpulaunch.core.model import Job
from gpulaunch.core.template import Slot, Text, parts_of
from gpulaunch.jobfile.commands import BUILTINS
from gpulaunch.text import shell_word, shell_words

_PLAIN = re.compile(r"[\w./,:=+@%^-]+", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIMPLE = re.compile(r"""(?:[\w./,:=+@%^ \t-]|'[^'\n]*'|"[^"$`\\!\n]*")+""", re.ASCII)


Values: TypeAlias = Mapping[str, str]
"""Names of slots, and the variables in which a script finds what they stand for."""


def raw(text: Text, values: Values) -> str:
    """Return a verbatim text (an element of a list, a variable, a path) as one word."""
    return "".join(
        f'"${{{values[part.name]}}}"' if isinstance(part, Slot) else shell_word(part)
        for part in parts_of(text)
    )


def script(text: Text, values: Values) -> str:
    """Return a script of the job file, as text for the shell that is to run it."""
    return "".join(p if isinstance(p, str) else _slot(p, values) for p in parts_of(text))


def _slot(slot: Slot, values: Values) -> str:
    inside = f"${{{values[slot.name]}}}"
    return {"bare": f'"{inside}"', "single": f"'\"{inside}\"'"}.get(slot.quoting, inside)


def command(job: Job, values: Values) -> str:
    """Return a job's command in bash: as people would type it where that means the same."""
    if isinstance(job.run, tuple):
        return " ".join(_argument(number, text, values) for number, text in enumerate(job.run))
    text = script(job.run, values)
    if job.shell == Job(name="", run="").shell and (simple := _simple(text)):
        return simple
    return shell_words((*job.shell, text))


def _argument(number: int, text: Text, values: Values) -> str:
    """Return a word of a command, whose first is a program: no builtin, and no assignment."""
    spelt = raw(text, values)
    if number == 0 and spelt in BUILTINS:
        return f"env {spelt}"
    return f"'{spelt}'" if number == 0 and "=" in spelt and _PLAIN.fullmatch(spelt) else spelt


def _simple(text: str) -> str:
    """Return the script as plain words, where it is no more than a program and its arguments."""
    if not _SIMPLE.fullmatch(text.strip()):
        return ""
    parts = shlex.split(text)
    if not parts or not parts[0] or "=" in parts[0] or parts[0] in BUILTINS:
        return ""
    return shell_words(parts)


def is_identifier(name: str) -> bool:
    """Tell whether bash can have a variable of that name."""
    return bool(_IDENTIFIER.fullmatch(name))
