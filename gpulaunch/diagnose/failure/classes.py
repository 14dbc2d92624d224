"""The words of failures, from `classes.txt`: a class's title, and what a person can do about it.

The decisions are the core's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from gpulaunch.base.text import listing, size
from gpulaunch.core.causes import Advice, DisksFull, Hint, MemoryUse, Quoted, SharedFate


class FailureClass(Struct, frozen=True):
    """`plain`: the outcome's own words (exit status, signal, time limit) say as much."""

    name: str
    title: str
    advice: str = ""
    plain: bool = False


_ENTRY = re.compile(r"^(\w+)(, plain)?:(?: (.+))?\n((?:    .+\n)+)", re.MULTILINE)
_ENTRIES = [
    FailureClass(name, title, " ".join(advice.split()), bool(plain))
    for name, plain, title, advice in _ENTRY.findall(
        Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    )
]
_ADVICE = {one.name: one.advice for one in _ENTRIES}
"""What a person can do, by class; entries without a title are hints where no class says it."""
CLASSES: Mapping[str, FailureClass] = {one.name: one for one in _ENTRIES if one.title}
"""By name. Holds exactly the names of `core.retry.POLICIES` (a test holds this)."""


def advice_for(name: str) -> str:
    """Return one or two lines on what to do, by a class or a hint; empty for an unknown one."""
    return _ADVICE.get(name, "")


def title_of(kind: str) -> str:
    """`out of GPU memory`; empty for a class whose outcome says as much, and for an unknown one."""
    known = CLASSES.get(kind)
    return known.title if known and not known.plain else ""


def advice(hints: Advice) -> str:
    """Return the hints as text; empty for none."""
    return " ".join(filter(None, map(_words, hints)))


def _words(hint: Hint | DisksFull | MemoryUse | SharedFate | Quoted) -> str:
    match hint:
        case Quoted(text):
            return text
        case Hint(name):
            return advice_for(name)
        case DisksFull(paths):
            return f"Full: {', '.join(paths)}."
        case MemoryUse():
            return _memory(hint)
        case SharedFate(jobs):
            shown = listing(jobs)
            return f"It ran through MPS beside {shown}: a fatal fault of one of them ends them all."
    never: NoReturn = hint
    raise AssertionError(never)


def _memory(use: MemoryUse) -> str:
    """Return `It asked for 2 GiB more; the card has 23.7 GiB; 20.8 GiB were its own.`"""
    parts = []
    if use.asked is not None:
        parts.append(f"it asked for {size(use.asked)} more")
    if use.total is not None:
        parts.append(f"the card has {size(use.total)}")
    if use.own is not None:
        parts.append(f"{size(use.own)} were its own")
    if use.others:
        who = f" (PID {', '.join(map(str, use.pids[:3]))})" if use.pids else ""
        parts.append(f"{size(use.others)} other processes'{who}")
    return f"{parts[0][0].upper()}{'; '.join(parts)[1:]}." if parts else ""
