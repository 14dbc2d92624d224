"""Converts scalars of a job file, typed as text, to values. Raises ValueError, one line each."""

from __future__ import annotations

import math
import re
import shlex

from gpulaunch.localtime import parse_moment
from gpulaunch.text import parse_span, shortened

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CAPABILITY = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?")
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}

SHELLS = {
    "bash": ("-eo", "pipefail", "-c"),
    "zsh": ("-f", "-e", "-o", "pipefail", "-c"),
    "sh": ("-e", "-c"),
    "dash": ("-e", "-c"),
    "ash": ("-e", "-c"),
    "ksh": ("-e", "-c"),
    "mksh": ("-e", "-c"),
}
"""The shells whose quoting we know, and how each is called with a script."""


def found(value: object) -> str:
    """Return a found value for people, shortened."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    return shortened(value)


def integer(text: str, least: int, what: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < least:
        raise ValueError(f"expected {what}, found {found(text)}")
    return int(text)


def number(text: str) -> float:
    """Return a finite number, 0 or more."""
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)) or float(text) < 0:
        raise ValueError(f"expected a number, 0 or more, found {found(text)}")
    return float(text)


def boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ValueError(f"expected true or false, found {found(text)}")
    return value


def moment(text: str) -> str:
    """Return the text of a moment, which is one whatever the time is. Raises ValueError."""
    parse_moment(text, 0.0)
    return " ".join(text.split())


def positive_duration(text: str) -> float:
    seconds = parse_span(text)
    if seconds <= 0:
        raise ValueError("expected a duration longer than 0; leave the field out for no limit")
    return seconds


def choice(text: str, *words: str) -> str:
    if text not in words:
        raise ValueError(f"expected {' or '.join(words)}, found {found(text)}")
    return text


def glob_of_names(text: str) -> str:
    """Return a glob of cards' names, as typed but for spaces around it. Raises ValueError."""
    if not text.strip():
        raise ValueError('expected a glob of cards\' names like "*A100*", found nothing')
    return text.strip()


def compute_capability(text: str) -> tuple[int, int]:
    """Return a compute capability: (8, 0) for `8.0` and for `8`. Raises ValueError."""
    match = _CAPABILITY.fullmatch(text.strip())
    if not match or not int(match[1]):
        raise ValueError(f"expected a compute capability like 8.0, found {found(text)}")
    return int(match[1]), int(match[2] or 0)


def shell_words(text: str) -> tuple[str, ...]:
    """Return the arguments to which a script is appended: `sh` becomes `sh -e -c`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"expected a shell like bash or [zsh, -c], found {found(text)}") from error
    if not words:
        raise ValueError("expected a shell like bash or [zsh, -c], found nothing")
    if len(words) > 1:
        return words
    return words + SHELLS.get(words[0].rsplit("/", 1)[-1], ("-c",))


def dialect(shell: tuple[str, ...]) -> str | None:
    """Return which of the known shells it is, also after `env` and the like."""
    for word in shell:
        name = word.rsplit("/", 1)[-1]
        if name in SHELLS:
            return name
    return None
