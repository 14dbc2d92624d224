"""Hours of the week in which a run starts jobs (`--between`), in local time.

    "mon-fri 19:00-07:30,sat,sun" ─▶ Hours ─▶ open now? and when that changes

What a clock on the wall shows counts, from a window's beginning until just before its end: where
clocks are put forward, a window that begins in the hour left out opens at the change; where they
are put back, what the clock shows twice is within the hours twice, or not at all. A window that
goes past midnight belongs to the day on which it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta, tzinfo
from itertools import pairwise

from msgspec import Struct

from gpulaunch.base.localtime import changes, moments, shown
from gpulaunch.base.text import shortened

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ALWAYS = "always"
MINUTES = 24 * 60
_EXAMPLES = "19:00-07:30, sat,sun or mon-fri 19:00-07:30,sat,sun"
_DAY = "|".join(DAYS)
_LONG = r"(?:day|sday|nesday|rsday|urday)?"
_ITEM = re.compile(
    rf"(?:(?P<first>{_DAY}){_LONG}(?:\s*-\s*(?P<last>{_DAY}){_LONG})?)?"
    r"(?:(?:^|\s+)(?P<begin>\d{1,2}(?::\d\d)?)\s*-\s*(?P<end>\d{1,2}(?::\d\d)?))?",
    re.ASCII,
)


class Window(Struct, frozen=True):
    """Minutes from `begin` to `end` after midnight of these days (0: Monday); past 1440: the next.

    `words` are as the window is written: `mon-fri 19:00-07:30`.
    """

    words: str
    days: frozenset[int]
    begin: int
    end: int

    def covers(self, day: int, minute: float) -> bool:
        """Tell whether the window is open so many minutes after midnight of that weekday."""
        today = day in self.days and self.begin <= minute < self.end
        return today or ((day - 1) % 7 in self.days and minute + MINUTES < self.end)


class Hours(Struct, frozen=True):
    """The windows in which jobs may start: any of them."""

    windows: tuple[Window, ...]

    def __str__(self) -> str:
        return ",".join(window.words for window in self.windows)

    def open_at(self, utc: float, zone: tzinfo | None = None) -> bool:
        """Tell whether jobs may start at that moment."""
        wall = shown(utc, zone)
        minute = (wall - datetime.combine(wall.date(), time())) / timedelta(minutes=1)
        return any(window.covers(wall.weekday(), minute) for window in self.windows)

    def next_change(self, utc: float, zone: tzinfo | None = None) -> float | None:
        """Return the first moment after `utc` at which that is otherwise; None: never."""
        now = self.open_at(utc, zone)
        later = sorted({moment for moment in self._boundaries(utc, zone) if moment > utc})
        return next((moment for moment in later if self.open_at(moment, zone) != now), None)

    def _boundaries(self, utc: float, zone: tzinfo | None) -> Iterator[float]:
        """Yield all moments of the next weeks at which a window may open or close.

        Two weeks, as one day's window may lie in an hour that is left out.
        """
        today = shown(utc, zone).date()
        for number in range(-1, 16):
            midnight = datetime.combine(today + timedelta(number), time())
            for window in self.windows:
                for minute in {window.begin, window.end % MINUTES}:
                    yield from moments(midnight + timedelta(minutes=minute), zone)
        yield from changes(today - timedelta(1), 17, zone)


def parse_hours(text: str) -> Hours | None:
    """Return the hours that `19:00-07:30`, `sat,sun` or `mon-fri 19:00-07:30,sat` name.

    None for `always`. Raises ValueError in one line.
    """
    words = " ".join(text.lower().split())
    if words == ALWAYS:
        return None
    items = [item.strip() for item in words.split(",")]
    windows = tuple(_window(item, text) for item in items)
    for item, following in pairwise(items):
        bare, timed = not any(map(str.isdigit, item)), any(map(str.isdigit, following))
        if bare and timed and following[0].isalpha():
            raise ValueError(
                f"{item} before {following!r} may mean all of {item}, or only those hours: write"
                f" '{following},{item}', or the hours with {item} too"
            )
    return Hours(windows)


def _window(item: str, text: str) -> Window:
    match = _ITEM.fullmatch(item) if item else None
    if match is None:
        raise ValueError(f"expected hours like {_EXAMPLES}, or {ALWAYS}, found {shortened(text)}")
    first, last = match["first"], match["last"] or match["first"]
    days = frozenset(range(7)) if first is None else _days(first, last)
    named = "" if first is None else first if match["last"] is None else f"{first}-{last}"
    if match["begin"] is None:
        return Window(named, days, 0, MINUTES)
    begin, end = _minute(match["begin"], item), _minute(match["end"], item)
    if begin == end:
        raise ValueError(f"{item!r} begins when it ends: 00:00-24:00 is a whole day")
    if begin == MINUTES:
        raise ValueError(f"{item!r}: a day begins at 00:00")
    hours = f"{_clock(begin)}-{_clock(end)}"
    return Window(f"{named} {hours}".strip(), days, begin, end if end > begin else end + MINUTES)


def _days(first: str, last: str) -> frozenset[int]:
    begin, end = DAYS.index(first), DAYS.index(last)
    return frozenset((begin + number) % 7 for number in range((end - begin) % 7 + 1))


def _minute(text: str, item: str) -> int:
    hour, _, minute = text.partition(":")
    found = int(hour) * 60 + int(minute or 0)
    if int(minute or 0) > 59 or found > MINUTES:
        raise ValueError(f"expected times from 00:00 to 24:00, found {item!r}")
    return found


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
