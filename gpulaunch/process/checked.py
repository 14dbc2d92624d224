"""Reads a record's members from a file that a job of the same user may have forged.

Each member has its type and lies within bounds that all later code can bear; else a ValueError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from gpulaunch.core.model import Instant
from gpulaunch.files import regular

LARGEST_RECORD = 1 << 20
"""Bytes of one record; the longest real ones have some thousands."""
LARGEST_COUNT = 1 << 53
"""The largest whole number that is read: JSON's numbers are exact up to here."""
MAX_TIMESTAMP = 250e9
"""Seconds since 1970, shortly before the last date that Python has in every time zone."""


def record_bytes(path: str | os.PathLike[str], at: int = 0) -> bytes:
    """Return LARGEST_RECORD bytes at most of a regular file, from `at` on, without waiting.

    Raises OSError.
    """
    with open(path, "rb", opener=regular) as file:
        return os.pread(file.fileno(), LARGEST_RECORD, at)


def record_of(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object in the line. Raises ValueError."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def text(value: object) -> str:
    """Return a text. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {value!r:.100}")
    return value


def count(value: object, most: int = LARGEST_COUNT) -> int:
    """Return a whole number from 0 to `most`. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"expected a number from 0 to {most}, found {value!r:.100}")
    return value


def seconds(value: object) -> float:
    """Return a time or a span in seconds, from 0 to MAX_TIMESTAMP. Raises ValueError."""
    if isinstance(value, (int, float)) and 0 <= value <= MAX_TIMESTAMP:
        return float(value)
    raise ValueError(f"expected seconds, found {value!r:.100}")


def instant(value: object) -> Instant:
    """Return a moment by both clocks. Raises ValueError."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"expected two times, found {value!r:.100}")
    return Instant(seconds(value[0]), seconds(value[1]))
