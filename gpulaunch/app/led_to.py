"""Which attempts' `{{out}}` a run's links lead to: those in `results/`, in `keep/`, in what stays.

A job may well leave its checkpoint in `{{out}}`, and in `{{keep}}` a link to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_STEPS = 40
"""Links that lead to one another, as many as the kernel follows."""


class LedTo:
    """Knows the entries of a directory to which links lead, by their names. Changes nothing."""

    def __init__(self, outs: Path) -> None:
        self._outs = os.path.realpath(outs)
        self._names: set[str] = set()
        self._all = False

    def __contains__(self, name: str) -> bool:
        return self._all or name in self._names

    def follow(self, directory: Path) -> None:
        """Follow all links at or below a directory; enters none of them. Raises nothing."""
        todo = [str(directory)]
        while todo:
            path = todo.pop()
            if os.path.islink(path):
                self._lead(path)
                continue
            with suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        self._lead(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)

    def _lead(self, link: str) -> None:
        for place in (*_steps(link), os.path.realpath(link)):
            if place.startswith(f"{self._outs}/"):
                self._names.add(place[len(self._outs) + 1 :].split("/", 1)[0])
            elif f"{self._outs}/".startswith(f"{place.rstrip('/')}/"):
                self._all = True


def _steps(link: str) -> Iterator[str]:
    """Yield where a link leads, and where that does if it is one, and so on."""
    with suppress(OSError):
        for _ in range(MAX_STEPS):
            folder = os.path.realpath(os.path.dirname(link))
            link = os.path.normpath(os.path.join(folder, os.readlink(link)))
            yield link
