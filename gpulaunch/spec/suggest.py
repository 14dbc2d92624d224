"""Words for messages: the nearest known one, and long ones made short."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean gpus?`, or nothing."""
    near = difflib.get_close_matches(word.lower()[:80], sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def shorten(text: str) -> str:
    """At most 80 characters of it, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."
