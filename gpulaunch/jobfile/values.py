"""Scalars of a job file, text as typed, to what a field means. Raises ValueError with one line."""

from __future__ import annotations

import math
import re
import shlex

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?\s*(?:ms|[smhdw])\s*)+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|[smhdw])")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])(i?)(b?)", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_MAX_DURATION = 100 * 365 * 86400.0
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
"""Shells whose quoting is understood, and how each is called with a script."""


def found(value: object) -> str:
    """What was found, for people, never long."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def integer(text: str, least: int, what: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < least:
        raise ValueError(f"expected {what}, found {found(text)}")
    return int(text)


def number(text: str) -> float:
    """A finite number, 0 or more."""
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)) or float(text) < 0:
        raise ValueError(f"expected a number, 0 or more, found {found(text)}")
    return float(text)


def boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ValueError(f"expected true or false, found {found(text)}")
    return value


def duration(text: str) -> float:
    """Seconds: `90`, `30s`, `2h`, `1h30m`, `1d`."""
    stripped = text.strip()
    if _SECONDS.fullmatch(stripped):
        seconds = float(stripped)
    elif _DURATION.fullmatch(stripped):
        seconds = sum(float(n) * _UNIT[unit] for n, unit in _PART.findall(stripped))
    else:
        raise ValueError(f"expected a duration like 90, 30s, 2h or 1h30m, found {found(text)}")
    if seconds > _MAX_DURATION:
        raise ValueError(f"expected at most a hundred years, found {found(text)}")
    return seconds


def positive_duration(text: str) -> float:
    seconds = duration(text)
    if seconds <= 0:
        raise ValueError("expected a duration longer than 0; leave the field out for no limit")
    return seconds


def size(text: str) -> int:
    """Bytes: `16GB` is 16 * 10^9 (so is `16G`), `20GiB` is 20 * 2^30."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f'expected a size with its unit like "16GB" or "20GiB", found {found(text)}'
        )
    amount, unit, binary, _ = match.groups()
    base = 1024 if binary else 1000
    count = int(float(amount) * base ** _POWER[unit.lower()])
    if not 0 < count < 1 << 60:
        raise ValueError(f"expected a size a card can have, found {found(text)}")
    return count


def choice(text: str, *words: str) -> str:
    if text not in words:
        raise ValueError(f"expected {' or '.join(words)}, found {found(text)}")
    return text


def shell_words(text: str) -> tuple[str, ...]:
    """The argument vector that a script is appended to: `sh` becomes `sh -e -c`."""
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
    """Which of the shells that are understood it is, also behind `env` and the like."""
    for word in shell:
        name = word.rsplit("/", 1)[-1]
        if name in SHELLS:
            return name
    return None
