"""Params: the values that foreach and matrix gave a job, by name.

Jobs of one entry share the names: a dict for each would be the largest part of a long job list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Params(Mapping[str, str]):
    """A mapping from names to values. `texts` are in the order of `names`, each name once."""

    __slots__ = ("_names", "_texts")

    def __init__(self, names: tuple[str, ...], texts: tuple[str, ...]) -> None:
        self._names = names
        self._texts = texts

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        return self._texts[self._names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))
