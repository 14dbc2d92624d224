"""The failure classes in words, from `classes.txt`: a title, and what a person can do.

The decisions are the core's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpulaunch.core.classes import POLICIES, Policy


@dataclass(frozen=True, slots=True)
class FailureClass:
    """`plain`: the outcome's own words (exit status, signal, time limit) say as much."""

    name: str
    title: str
    advice: str = ""
    plain: bool = False

    @property
    def policy(self) -> Policy:
        return POLICIES[self.name]


_CLASS = re.compile(r"^(\w+)(, plain)?: (.+)\n((?:    .+\n)+)", re.MULTILINE)
CLASSES: Mapping[str, FailureClass] = {
    name: FailureClass(name, title, " ".join(advice.split()), bool(plain))
    for name, plain, title, advice in _CLASS.findall(
        Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    )
}
"""By name. Holds exactly the names of `core.classes.POLICIES` (a test holds this)."""


def advice_for(kind: str) -> str:
    """One or two lines on what to do; empty for a class that is not known."""
    known = CLASSES.get(kind)
    return known.advice if known else ""


def title_of(kind: str) -> str:
    """`out of GPU memory`; empty for a class whose outcome says as much, and for an unknown one."""
    known = CLASSES.get(kind)
    return known.title if known and not known.plain else ""
