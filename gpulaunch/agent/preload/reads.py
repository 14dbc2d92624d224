"""Records which variables of the environment imports read, and which they set."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..wire import Any


class Reads:
    """Records the variables that Python code reads and sets inside the `with` block.

    A copy of the whole environment (for a child process) counts as reading none; a loop that takes
    some variables reads those.
    """

    def __enter__(self) -> Reads:
        self.whole: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self.before = dict(self.whole)
        self.seen: set[bytes] = set()
        self.batch: set[bytes] = set()
        self.pending: set[bytes] = set()
        os.environ._data = os.environb._data = Recording(self)  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        data = os.environ._data  # type: ignore[attr-defined]
        self.after = {name: dict.__getitem__(data, name) for name in dict.keys(data)}
        self.whole.clear()
        self.whole.update(self.after)
        os.environ._data = os.environb._data = self.whole  # type: ignore[attr-defined]
        self.seen |= self.batch

    def iterates(self, names: set[bytes]) -> None:
        self.seen |= self.batch
        self.batch, self.pending = set(), names

    def read(self, name: bytes) -> None:
        if name not in self.pending:
            self.seen.add(name)
            return
        self.pending.discard(name)
        self.batch.add(name)
        if not self.pending:
            self.batch.clear()

    @property
    def names(self) -> set[str]:
        return {os.fsdecode(name) for name in self.seen}

    def changed(self) -> dict[bytes, bytes | None]:
        names = self.before.keys() | self.after.keys()
        return {n: self.after.get(n) for n in names if self.before.get(n) != self.after.get(n)}


class Recording(dict):  # type: ignore[type-arg]
    def __init__(self, reads: Reads) -> None:
        super().__init__(reads.whole)
        self.reads = reads

    def __getitem__(self, name: bytes) -> Any:
        self.reads.read(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        self.reads.iterates(set(super().keys()))
        return super().__iter__()
