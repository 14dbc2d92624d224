"""Local time: what a clock on the wall shows, when it shows something, and how both are written.

    "19:00", "2026-11-26 07:30" ─▶ the moment when the clock first shows it (seconds since 1970)
    a moment ─▶ "19:00", "tomorrow 07:30", "Mon 19:00", "2026-11-26 07:30"

Where clocks are put forward, a time that they leave out is the moment at which they are changed;
where they are put back, a time comes twice. Pure but for the zone: None is this machine's.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from itertools import pairwise

from gpulaunch.base.text import shortened, span

EXAMPLES = "19:00, 2026-11-26 07:30 or 2026-11-26T07:30Z"
DAY = 86400.0

_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?"
_CLOCK = re.compile(_TIME, re.ASCII)
_DATED = re.compile(
    rf"(?P<date>\d{{4}}-\d\d-\d\d)(?:(?:[Tt]|\s+){_TIME}\s*(?P<offset>[Zz]|[+-]\d\d:?(?:\d\d)?)?)?",
    re.ASCII,
)


def shown(utc: float, zone: tzinfo | None = None) -> datetime:
    """Return what the clock on the wall shows at that moment, without its zone."""
    return datetime.fromtimestamp(utc, zone).replace(tzinfo=None, fold=0)


def moments(wall: datetime, zone: tzinfo | None = None) -> tuple[float, ...]:
    """Return the moments at which the clock on the wall shows this time, in order: one or two.

    Of a time that is left out, the moment at which the clock is put past it.
    """
    first, second = (_utc(wall, zone, fold) for fold in (0, 1))
    if first == second:
        return (first,)
    if first < second:
        return first, second
    return (_change(second, first, zone),)


def _utc(wall: datetime, zone: tzinfo | None, fold: int) -> float:
    return wall.replace(tzinfo=zone, fold=fold).timestamp()


def _ahead(utc: float, zone: tzinfo | None) -> float:
    """Return how many seconds the clock on the wall is ahead of UTC at that moment."""
    return shown(utc, zone).replace(tzinfo=timezone.utc).timestamp() - utc


def _change(before: float, after: float, zone: tzinfo | None) -> float:
    """Return the moment between these two at which the clock on the wall is put to another time."""
    low, high = int(before), int(after) + 1
    old = _ahead(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _ahead(middle, zone) == old else (low, middle)
    return float(high)


def changes(first: date, days: int, zone: tzinfo | None = None) -> list[float]:
    """Return the moments in these days at which the clock on the wall is put to another time."""
    starts = [
        _utc(datetime.combine(first + timedelta(number), time()), zone, 0)
        for number in range(days + 1)
    ]
    pairs = pairwise(starts)
    return [_change(a, b, zone) for a, b in pairs if _ahead(a, zone) != _ahead(b, zone)]


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def parse_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Return the moment that a time of day, or a date with one, means: seconds since 1970.

    `19:00` is the next time that a clock shows that, from `now` on; a date alone is its beginning.
    Without an offset it is local time. Raises ValueError with what was expected.
    """
    stripped = text.strip()
    if match := _CLOCK.fullmatch(stripped):
        return _next(_time_of(match, text), now, zone)
    match = _DATED.fullmatch(stripped)
    if match is None:
        raise ValueError(f"expected a time like {EXAMPLES}, found {shortened(text)}")
    at = _time_of(match, text) if match["hour"] else time()
    try:
        wall = datetime.combine(date.fromisoformat(match["date"]), at)
    except ValueError as error:
        raise ValueError(f"expected a date of the calendar ({error}), found {text!r}") from None
    if wall.year < 1971 or wall.year > 9000:
        raise ValueError(f"expected a date within the next years, found {text!r}")
    if match["offset"]:
        return _utc(wall, _zone(match["offset"], text), 0)
    return moments(wall, zone)[0]


def _time_of(match: re.Match[str], text: str) -> time:
    try:
        return time(int(match["hour"]), int(match["minute"]), int(match["second"] or 0))
    except ValueError:
        raise ValueError(f"expected a time from 00:00 to 23:59, found {shortened(text)}") from None


def _zone(offset: str, text: str) -> tzinfo:
    if offset in "Zz":
        return timezone.utc
    digits = offset[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(f"expected an offset like +01:00, found {text!r}")
    ahead = timedelta(hours=hours, minutes=minutes)
    return timezone(-ahead if offset[0] == "-" else ahead)


def _next(at: time, now: float, zone: tzinfo | None) -> float:
    today = shown(now, zone).date()
    days = (datetime.combine(today + timedelta(number), at) for number in (-1, 0, 1, 2))
    return min(moment for wall in days for moment in moments(wall, zone) if moment >= now)


# ── Writing ─────────────────────────────────────────────────────────────────────────────────────


def time_of(utc: float, now: float | None = None, zone: tzinfo | None = None) -> str:
    """Return a time for people: the shorter, the nearer it is to `now`; None: with its date."""
    try:
        wall, today = shown(utc, zone), None if now is None else shown(now, zone).date()
    except (ValueError, OverflowError, OSError):  # spoilt in a journal
        return "a time that no calendar has"
    clock = f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"
    if now is None or abs(utc - now) > 6 * DAY:
        return f"{wall:%Y-%m-%d} {clock}"
    if abs(utc - now) < 0.75 * DAY or wall.date() == today:
        return clock
    return f"{_DAYS[wall.weekday()]} {clock}"


def until(utc: float, seconds: float | None, zone: tzinfo | None = None) -> str:
    """Return `19:00 (in 3 h)`, for a time that is so many seconds from now; None: unknown."""
    if seconds is None:
        return time_of(utc, None, zone)
    return f"{time_of(utc, utc - seconds, zone)} (in {about(seconds)})"


def about(seconds: float) -> str:
    """Return a span to the minute, from two minutes on: `45 s`, `12 min`, `3 h`, `2 d 3 h`."""
    left = max(1, round(seconds))
    if left < 120:
        return span(left)
    left = round(left / 60) * 60
    return span(left if left < DAY else round(left / 3600) * 3600)


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
