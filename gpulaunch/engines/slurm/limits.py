"""The site's limits on submissions: how many attempts to try next, and when. Pure: told the time.

A limit belongs to the partition, account, QOS or reservation that a batch names, or to the whole
site. These options are the batch's lane, and each lane finds its limit by itself. Slurm does not
say how many attempts there is room for, so it is tried:

    refused n ─▶ half, at once ─▶ ... ─▶ refused 1 ─▶ one, after 1 s, 2 s, ... MAX_RETRY_DELAY
    n of ours in that lane have ended ─▶ n, soon
    taken, although none of ours has ended ─▶ twice as many, at once
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct, field

Lane: TypeAlias = tuple[str, ...]
"""The options of sbatch to which a site's limits apply."""


NAMES = ("--partition=", "--account=", "--qos=", "--reservation=", "--wckey=")


FIRST_RETRY_DELAY, MIN_RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 5.0, 30.0
"""Seconds from a first refusal to the next try; the longest delay after one of our attempts has
ended, which may have made room; and the longest at all, since other users' jobs end too."""


def lane_of(options: Sequence[str]) -> Lane:
    return tuple(word for word in options if word.startswith(NAMES))


class Limit(Struct, eq=False):
    """The limit of one lane, as far as it is known.

    `why` is what Slurm said last. `at` is the monotonic time before which nothing is tried; `fits`
    is how many are tried then; `known`: as many attempts of ours have ended. `beyond` is a number
    that did not fit; `pause` the seconds from a refusal of one to the next try.
    """

    why: str = ""
    at: float = 0.0
    fits: int = 0
    known: bool = False
    beyond: int | None = None
    pause: float = field(default_factory=lambda: FIRST_RETRY_DELAY)

    def most(self, now: float) -> int:
        """Return how many may be tried now; 0 for none."""
        return 0 if now < self.at else max(1, self.fits)

    def refused(self, size: int, why: str, now: float) -> None:
        self.why = why
        if size > 1:
            self.beyond, self.fits, self.known, self.at = size, size // 2, False, now
        else:
            self.known = self.known and self.fits > 1  # more have ended since this try
            self.fits = self.fits if self.known else 0
            self.beyond, self.at = None, now + self.pause
            self.pause = min(2 * self.pause, MAX_RETRY_DELAY)

    def taken(self, size: int, now: float) -> None:
        self.pause = FIRST_RETRY_DELAY
        if self.beyond is not None:
            self.beyond -= size
            self.fits = self.beyond // 2
        elif self.known:
            self.fits -= size
        else:
            self.fits, self.at = 2 * size, now
            return
        if self.fits <= 0:
            later = MIN_RETRY_DELAY if self.known else FIRST_RETRY_DELAY
            self.fits, self.known, self.beyond, self.at = 0, False, None, now + later

    def one_is_over(self, now: float) -> None:
        """Count an attempt of this lane that ended. Slurm may hear of its end later than we do."""
        self.fits, self.known, self.beyond = self.fits + 1, True, None
        self.nudge(now)

    def nudge(self, now: float) -> None:
        """Bring the next try forward: there may be room."""
        self.at = min(self.at, now + min(self.pause, MIN_RETRY_DELAY))


class Limits:
    """The site's limits on submissions that were met, by lane: how many attempts to try, and when.

    A limit belongs to the partition, account, QOS or reservation that a batch names, or to the
    whole site. These options are the batch's lane, and each lane finds its limit by itself. Slurm
    does not say how many attempts there is room for, so it is tried:

        refused n ─▶ half, at once ─▶ ... ─▶ refused 1 ─▶ one, after 1 s, 2 s, ... MAX_RETRY_DELAY
        n of ours in that lane have ended ─▶ n, soon
        taken, although none of ours has ended ─▶ twice as many, at once
    """

    def __init__(self) -> None:
        self._met: dict[Lane, Limit] = {}
        self._said: set[tuple[Lane, str]] = set()

    def most(self, lane: Lane, otherwise: int, now: float) -> int:
        """Return how many may be submitted in the lane now; `otherwise` if no limit was met."""
        limit = self._met.get(lane)
        return otherwise if limit is None else min(otherwise, limit.most(now))

    def refused(self, lane: Lane, size: int, why: str, now: float) -> bool:
        """Note a refusal; return True if people are to hear of it: a single one, a new reason."""
        self._met.setdefault(lane, Limit()).refused(size, why, now)
        new = size == 1 and (lane, why) not in self._said
        if new:
            self._said.add((lane, why))
        return new

    def taken(self, lane: Lane, size: int, now: float) -> None:
        if (limit := self._met.get(lane)) is not None:
            limit.taken(size, now)

    def one_is_over(self, lane: Lane, now: float) -> None:
        """Count an attempt of this lane that ended; other lanes try sooner, for a shared limit."""
        for other, limit in self._met.items():
            if other == lane:
                limit.one_is_over(now)
            else:
                limit.nudge(now)

    def keep(self, lanes: Collection[Lane]) -> None:
        """Keep the limits of these lanes, where batches wait, and forget the others."""
        for lane in [lane for lane in self._met if lane not in lanes]:
            del self._met[lane]

    def why(self, lane: Lane) -> str:
        """Return what Slurm said last in the lane; empty if no limit was met."""
        limit = self._met.get(lane)
        return limit.why if limit else ""

    def next_at(self) -> Iterator[float]:
        """Yield the monotonic times of the next tries."""
        for limit in self._met.values():
            yield limit.at
