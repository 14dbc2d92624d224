"""Which files count, and when to look again: pure; whoever looks at files says what it saw.

    there before, or came by rename ─────────────────────▶ counts ──▶ gone
    new ──▶ restless ── as it was for `settle` seconds ──▶ counts

A file that counts goes on to count until it is gone, whatever is written to it: its job may be
running, or wait for another try. Times are this machine's monotonic clock, and never a file's: a
file server's clock may be another.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct

GATHER = 0.1
"""Seconds for which news are gathered: files often come many at a time."""
PACE = 1.0
"""Seconds at least between two times that news are told."""


class Stamp(Struct, frozen=True):
    """What shows that a file is another: its size in bytes, its time in ns, its inode."""

    size: int
    mtime: int
    inode: int


class Stillness:
    """The files of a run's sources, each with its Stamp. Changed by what was seen at `now`.

    `settle`: seconds for which a file must have been as it is. `lists` are lists of items: each
    change of one is news, and it is in `still` while its last line is whole.
    """

    def __init__(self, settle: float) -> None:
        self.settle = settle
        self.still: dict[str, Stamp] = {}
        self._restless: dict[str, tuple[Stamp, float]] = {}  # in the order of their last changes
        self.lists: set[str] = set()
        self._news: float | None = None
        self._told: float | None = None

    @property
    def waiting(self) -> int:
        """How many files do not count yet."""
        return len(self._restless)

    @property
    def known(self) -> frozenset[str]:
        """The files that count, and those that do not yet."""
        return frozenset((*self.still, *self._restless))

    def ripe(self, now: float) -> list[str]:
        """Return the files that count from now on, if they are still as they were."""
        due = takewhile(lambda one: one[1][1] + self.settle <= now, self._restless.items())
        return [path for path, _ in due]

    def began(self, path: str, stamp: Stamp, age: float, now: float) -> None:
        """Take a file that was there at the beginning, `age` seconds after its last change."""
        if age >= self.settle:
            self._settle(path, stamp, now)
        else:
            self._wait(path, stamp, now)

    def moved_in(self, path: str, stamp: Stamp, now: float) -> None:
        """Take a file that came by rename, as a whole."""
        self._settle(path, stamp, now)

    def seen(self, path: str, stamp: Stamp, now: float, written: bool = False) -> None:
        """Take a file as it is now. `written`: somebody wrote to it, be its stamp as before."""
        if path in self.lists:
            self._listed(path, stamp, now)
        elif path in self.still:
            self.still[path] = stamp
        elif written or self._known(path) != stamp:
            self._wait(path, stamp, now)

    def gone(self, path: str, now: float) -> None:
        """Forget a file that is not there any more."""
        counted = self.still.pop(path, None) is not None
        restless = self._restless.pop(path, None) is not None
        if counted or (restless and path in self.lists):
            self._tell(now)

    def only(self, paths: Iterable[str], now: float) -> None:
        """Forget all files but these."""
        for path in (self.still.keys() | self._restless.keys()).difference(paths):
            self.gone(path, now)

    def due(self) -> float | None:
        """Return when to call `told` next; None: not before something is seen."""
        times = []
        if self._restless:
            times.append(next(iter(self._restless.values()))[1] + self.settle)
        if self._news is not None:
            times.append(self._ready(self._news))
        return min(times, default=None)

    def told(self, now: float) -> bool:
        """Let files count whose time has come; tell once for all news that what counts changed."""
        for path in self.ripe(now):
            stamp, since = self._restless[path]
            self._settle(path, stamp, since + self.settle)
        if self._news is None or now < self._ready(self._news):
            return False
        self._news, self._told = None, now
        return True

    def _known(self, path: str) -> Stamp | None:
        return self.still.get(path) or self._restless.get(path, (None,))[0]

    def taken(self) -> None:
        """Forget the news: somebody has taken what counts without being told."""
        self._news = None

    def _listed(self, path: str, stamp: Stamp, now: float) -> None:
        if self._known(path) != stamp:  # its complete lines are news at once
            self.still.pop(path, None)
            self._wait(path, stamp, now)
            self._tell(now)

    def _ready(self, news: float) -> float:
        return news + GATHER if self._told is None else max(news + GATHER, self._told + PACE)

    def _settle(self, path: str, stamp: Stamp, now: float) -> None:
        self._restless.pop(path, None)
        if self.still.get(path) != stamp:
            self.still[path] = stamp
            self._tell(now)

    def _wait(self, path: str, stamp: Stamp, now: float) -> None:
        self._restless.pop(path, None)  # so that the newest change is the last
        self._restless[path] = stamp, now

    def _tell(self, now: float) -> None:
        if self._news is None:
            self._news = now
