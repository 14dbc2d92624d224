"""Hours of the week: what is typed, what it means minute by minute, and when that changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone, tzinfo

import pytest

from gpulaunch.base.hours import Hours, parse_hours
from gpulaunch.base.localtime import shown
from tests.zones import BERLIN, NEW_YORK

NIGHTS_AND_WEEKENDS = "mon-fri 19:00-07:30,sat,sun"


def hours(text: str) -> Hours:
    found = parse_hours(text)
    assert found is not None
    return found


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("19:00-07:30", "19:00-07:30"),
        ("19-7:30", "19:00-07:30"),
        (" 19:00 - 07:30 ", "19:00-07:30"),
        ("Sat,Sun", "sat,sun"),
        ("saturday , sunday", "sat,sun"),
        ("mon-fri 19:00-07:30,sat,sun", NIGHTS_AND_WEEKENDS),
        ("fri-mon 00:00-24:00", "fri-mon 00:00-24:00"),
        ("sat,sun,19:00-07:30", "sat,sun,19:00-07:30"),
        ("12:00-13:00,19:00-07:30", "12:00-13:00,19:00-07:30"),
    ],
)
def test_hours_are_spelled_in_one_way_and_read_back(typed: str, spelled: str) -> None:
    assert str(hours(typed)) == spelled
    assert hours(spelled) == hours(typed)


def test_always_is_no_limit() -> None:
    assert parse_hours("always") is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "expected hours like 19:00-07:30, sat,sun or mon-fri 19:00-07:30,sat,sun, or always"),
        ("nights", "found 'nights'"),
        ("19:00", "expected hours like"),
        ("7pm-7am", "expected hours like"),
        ("25:00-07:00", "expected times from 00:00 to 24:00, found '25:00-07:00'"),
        ("19:60-07:00", "expected times from 00:00 to 24:00"),
        ("19:00-19:00", "'19:00-19:00' begins when it ends: 00:00-24:00 is a whole day"),
        ("24:00-07:00", "a day begins at 00:00"),
        ("sat,,sun", "expected hours like"),
        ("mon,wed 19:00-07:30", "mon before 'wed 19:00-07:30' may mean all of mon, or only those"),
        ("sat,sun,mon-fri 19-7", "write 'mon-fri 19-7,sun'"),
        ("mon-", "expected hours like"),
    ],
)
def test_anything_else_is_refused_in_a_line(typed: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_hours(typed)
    assert said in str(caught.value)


def nights_and_weekends(wall: datetime) -> bool:
    clock, day = (wall.hour, wall.minute), wall.weekday()
    if day in (5, 6) or (day < 5 and clock >= (19, 0)):
        return True
    return clock < (7, 30) and day in (1, 2, 3, 4)


def early(wall: datetime) -> bool:
    return (2, 10) <= (wall.hour, wall.minute) < (2, 50)


def late(wall: datetime) -> bool:
    return (2, 30) <= (wall.hour, wall.minute) < (4, 0)


def nights(wall: datetime) -> bool:
    return (wall.hour, wall.minute) >= (19, 0) or (wall.hour, wall.minute) < (7, 30)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("19:00-07:30", nights),
        (NIGHTS_AND_WEEKENDS, nights_and_weekends),
        ("2:10-2:50", early),
        ("2:30-4", late),
    ],
)
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK], ids=["Berlin", "New York"])
@pytest.mark.parametrize("monday", ["2026-03-02", "2026-03-23", "2026-10-19", "2026-10-26"])
def test_every_minute_of_a_week_is_what_the_clock_shows_over_its_changes_too(
    text: str, means: Callable[[datetime], bool], zone: tzinfo, monday: str
) -> None:
    """These weeks have a change of the clock in one of the zones, or none."""
    one, begin = hours(text), utc(monday)
    change = one.next_change(begin - 60, zone)
    for minute in range(8 * 24 * 60):
        at = begin + 60.0 * minute
        is_open, was = means(shown(at, zone)), means(shown(at - 60.0, zone))
        assert one.open_at(at, zone) == is_open, shown(at, zone)
        if is_open != was:
            assert change == at, (shown(at, zone), change)
            change = one.next_change(at, zone)
        assert change is not None
        assert change > at


def test_hours_that_last_for_ever_never_change() -> None:
    assert hours("00:00-24:00").next_change(utc("2026-03-27"), BERLIN) is None
    assert hours("mon-sun").open_at(utc("2026-03-27"), BERLIN)


def test_a_week_in_which_the_hours_do_not_exist_is_passed_over() -> None:
    """On 29 March there is no 02:10 to 02:50."""
    one = hours("sun 2:10-2:50")
    assert one.next_change(utc("2026-03-23"), BERLIN) == utc("2026-04-05T00:10")
