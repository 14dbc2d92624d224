"""What `foreach:` rests on, and what of it counts while a run follows it (`run --follow`).

Knows no clock and looks at nothing: whoever watches the sources says what counts.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class ForeachSource(Struct, frozen=True):
    """A glob below the directory `base`, or (`file`) a list of items by its absolute path."""

    pattern: str
    base: str
    file: bool = False


class Counting(Protocol):
    """Says which files count: those that are not half-written."""

    def counts(self, path: str) -> bool:
        """Tell whether a glob's match, an absolute path, is an item."""

    def whole(self, path: str, size: int) -> bool:
        """Tell whether the last line or record of a list of so many bytes is an item too."""


class NothingYet:
    """A Counting by which nothing counts: for a first look at a file, to learn its sources."""

    def counts(self, path: str) -> bool:
        return False

    def whole(self, path: str, size: int) -> bool:
        return False


class Following(Struct, frozen=True):
    """How a job file is read for a run that follows its sources. `counting`: what counts.

    `more`: further items may come. Until then a job that waits for all of them is left out.
    """

    counting: Counting
    more: bool = True
