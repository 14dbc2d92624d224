"""Where Slurm takes no more for now: how many are tried next, and when. Pure: told the time.

A limit is of the partition, account, QOS or reservation that a batch names, or of all: each such
lane finds its own. How many there is room for Slurm does not say, so it is tried:

    refused n ─▶ half, at once ─▶ ... ─▶ refused 1 ─▶ one, after 1 s, 2 s, 4 s, ... LONGEST
    one of ours in that lane has ended ─▶ so many, soon
    taken, nobody knows why ─▶ twice as many, at once
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Lane: TypeAlias = tuple[str, ...]
"""Options of sbatch that a site's limits go by."""

NAMES = ("--partition=", "--account=", "--qos=", "--reservation=", "--wckey=")
FIRST_RETRY_DELAY, MIN_RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 5.0, 30.0
"""Seconds: from a first refusal to the next try; the shortest between tries in vain while ends of
our own let hope; the longest, since other users' jobs end as well."""


def lane_of(options: Sequence[str]) -> Lane:
    return tuple(word for word in options if word.startswith(NAMES))


@dataclass(slots=True, eq=False)
class Limit:
    """Of one lane. `why` is what Slurm said last; `at` the monotonic time before which nothing is
    tried, `fits` how many are then (`known`: so many of ours have ended), `beyond` a number that
    did not fit, `pause` the seconds until the next try after one in vain."""

    why: str = ""
    at: float = 0.0
    fits: int = 0
    known: bool = False
    beyond: int | None = None
    pause: float = field(default_factory=lambda: FIRST_RETRY_DELAY)

    def most(self, now: float) -> int:
        """How many may be tried now; 0 for none."""
        return 0 if now < self.at else max(1, self.fits)

    def refused(self, size: int, why: str, now: float) -> None:
        self.why = why
        if size > 1:
            self.beyond, self.fits, self.known, self.at = size, size // 2, False, now
        else:
            self.known = self.known and self.fits > 1  # by ends since it was tried
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
        """One of ours in this lane. Slurm may hear of its end a moment later than we do."""
        self.fits, self.known, self.beyond = self.fits + 1, True, None
        self.nudge(now)

    def nudge(self, now: float) -> None:
        """There may be room sooner than was thought."""
        self.at = min(self.at, now + min(self.pause, MIN_RETRY_DELAY))


class Limits:
    """Those that were met, by lane."""

    def __init__(self) -> None:
        self._met: dict[Lane, Limit] = {}
        self._said: set[tuple[Lane, str]] = set()

    def most(self, lane: Lane, otherwise: int, now: float) -> int:
        """How many may be handed over there now; `otherwise`, where no limit was met."""
        limit = self._met.get(lane)
        return otherwise if limit is None else min(otherwise, limit.most(now))

    def refused(self, lane: Lane, size: int, why: str, now: float) -> bool:
        """Whether people are to be told: none of them is taken, for a reason that is new."""
        self._met.setdefault(lane, Limit()).refused(size, why, now)
        new = size == 1 and (lane, why) not in self._said
        if new:
            self._said.add((lane, why))
        return new

    def taken(self, lane: Lane, size: int, now: float) -> None:
        if (limit := self._met.get(lane)) is not None:
            limit.taken(size, now)

    def one_is_over(self, lane: Lane, now: float) -> None:
        """A limit of all lanes may be what holds up the others."""
        for other, limit in self._met.items():
            if other == lane:
                limit.one_is_over(now)
            else:
                limit.nudge(now)

    def keep(self, lanes: Collection[Lane]) -> None:
        """Those where something waits; the others are forgotten."""
        for lane in [lane for lane in self._met if lane not in lanes]:
            del self._met[lane]

    def why(self, lane: Lane) -> str:
        """What Slurm said there; empty where no limit was met."""
        limit = self._met.get(lane)
        return limit.why if limit else ""

    def next_at(self) -> Iterator[float]:
        """Monotonic times of the next tries."""
        for limit in self._met.values():
            yield limit.at
