"""Everything that can be reached from a few places: the one walk over needs and dependants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(start: Iterable[T], onward: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """Return `start` and all that `onward` leads to, each once, in the order of finding them."""
    found = dict.fromkeys(start)
    todo = list(found)
    while todo:
        more = dict.fromkeys(one for one in onward(todo.pop()) if one not in found)
        found |= more
        todo += more
    return found
