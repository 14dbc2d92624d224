"""What was typed up to the cursor, as words; and a value, as it has to be typed.

bash hands on the line as it is. Of the current word it replaces only what is behind the last
character at which it breaks words (`:` and `=` are among them), and in quotes what is behind these.
"""

from __future__ import annotations

import re

from msgspec import Struct

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SPECIAL = re.compile(r"[^\w@%+,./:=-]")
_IN_DOUBLE = re.compile(r'["\\$`]')


class TypedLine(Struct):
    """`words` are whole; `current` is what the last one means so far, `raw` how it is typed.

    `quote`: the quotes that are open in it, or empty; `kept`: how many characters of `raw` bash
    keeps, whatever the word becomes.
    """

    words: list[str]
    current: str = ""
    raw: str = ""
    quote: str = ""
    kept: int = 0


def read_line(line: str, breaks: str) -> TypedLine:
    """Return the words of a command line of bash; those before the command are left out."""
    words: list[str] = []
    found = TypedLine([])
    started = False
    at = 0
    while at < len(line):
        char = line[at]
        taken = 1
        if found.quote:
            taken = _quoted(found, line, at)
        elif char in " \t\n":
            if started:
                words.append(found.current)
            found, started = TypedLine([]), False
            at += 1
            continue
        elif char == "\\":
            found.current += line[at + 1 : at + 2]
            taken = 2
        elif char in "'\"":
            found.quote = char
            found.kept = len(found.raw) + 1
        else:
            found.current += char
            if char in breaks:
                found.kept = len(found.raw) + 1
        found.raw += line[at : at + taken]
        started = True
        at += taken
    while words and _ASSIGNMENT.match(words[0]):
        del words[0]
    found.words = words[1:]
    return found


def _quoted(found: TypedLine, line: str, at: int) -> int:
    """Take in what stands at a place inside quotes; return how many characters it is."""
    char = line[at]
    if char == found.quote:
        found.quote = ""
    elif char == "\\" and found.quote == '"' and line[at + 1 : at + 2] in ('"', "\\", "$", "`"):
        found.current += line[at + 1]
        return 2
    else:
        found.current += char
    return 1


def spelt(value: str, line: TypedLine) -> str | None:
    """Return what bash has to put in the place of what it replaces; None where nothing fits."""
    if line.quote == "'":
        whole = value.replace("'", "'\\''")
    elif line.quote == '"':
        # Nothing but other quotes keeps `!` from being the history's.
        whole = _IN_DOUBLE.sub(r"\\\g<0>", value).replace("!", "\"'!'\"")
    else:
        whole = _SPECIAL.sub(r"\\\g<0>", value)
    typed = line.raw[: line.kept]
    if line.quote:
        before, _, typed = typed.rpartition(line.quote)
        if before:  # quotes that open within a word: too odd to go on with
            return None
        return whole
    if not line.kept:
        return whole
    return whole[len(typed) :] if whole.startswith(typed) else None
