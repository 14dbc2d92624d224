"""How long what is answered may be: whoever reads it pays for each word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from gpulaunch.text import clip

T = TypeVar("T")

MAX_NOTES = 40
"""Lines, at most, of an answer's notes."""
MAX_NOTE = 2000
"""Characters, at most, of one of them."""
MAX_MEMBER = 10_000
"""Characters, at most, of any other text in an answer."""


def bounded(lines: Iterable[str]) -> list[str]:
    """Return the first lines, clipped, and where there are more a line that says how many."""
    all_lines = list(lines)
    shown = [clip(line, MAX_NOTE) for line in all_lines[:MAX_NOTES]]
    if more := len(all_lines) - len(shown):
        shown.append(f"... and {more:,} more lines")
    return shown


def answerable(answer: T, longest: int) -> T:
    """Return an answer's JSON, each text in it cut to so many characters; `…` marks a cut.

    What of a path is no UTF-8 becomes `?`: the protocol has no way to tell it.
    """
    told: object = answer
    if isinstance(answer, str):
        told = clip(answer, longest).encode(errors="replace").decode()
    elif isinstance(answer, list):
        told = [answerable(one, longest) for one in answer]
    elif isinstance(answer, dict):
        told = {
            answerable(key, longest): answerable(value, longest) for key, value in answer.items()
        }
    return told  # type: ignore[return-value]
