"""What a clock on the wall shows, and when: over changes of the clock too."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timezone, tzinfo

import pytest

from gpulaunch.base.localtime import about, moments, parse_moment, time_of, until
from tests.zones import BERLIN, NEW_YORK, RULES


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def shown(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("text", "now", "moment"),
    [
        ("19:00", "2026-11-25T12:00", "2026-11-25T18:00"),
        ("19:00", "2026-11-25T18:00", "2026-11-25T18:00"),  # now
        ("19:00", "2026-11-25T18:01", "2026-11-26T18:00"),
        ("7:30", "2026-11-25T23:30", "2026-11-26T06:30"),
        ("00:00", "2026-11-25T12:00", "2026-11-25T23:00"),
        ("2026-11-26 07:30", "2026-01-01T00:00", "2026-11-26T06:30"),
        ("2026-11-26T07:30:00", "2026-01-01T00:00", "2026-11-26T06:30"),
        ("2026-07-26 07:30", "2026-01-01T00:00", "2026-07-26T05:30"),
        ("2026-11-26T07:30Z", "2026-01-01T00:00", "2026-11-26T07:30"),
        ("2026-11-26 07:30 +05:30", "2026-01-01T00:00", "2026-11-26T02:00"),
        ("2026-11-26T07:30-0800", "2026-01-01T00:00", "2026-11-26T15:30"),
        ("2026-11-26T07:30-08", "2026-01-01T00:00", "2026-11-26T15:30"),
        ("2026-11-26", "2026-01-01T00:00", "2026-11-25T23:00"),
        # The clock goes from 02:00 to 03:00: 02:30 is the moment at which it is put past it.
        ("02:30", "2026-03-28T23:00", "2026-03-29T01:00"),
        ("2026-03-29 02:30", "2026-01-01T00:00", "2026-03-29T01:00"),
        ("02:30", "2026-03-29T01:30", "2026-03-30T00:30"),
        # It goes from 03:00 back to 02:00: 02:30 comes twice.
        ("02:30", "2026-10-24T23:00", "2026-10-25T00:30"),
        ("02:30", "2026-10-25T00:40", "2026-10-25T01:30"),
        ("2026-10-25 02:30", "2026-01-01T00:00", "2026-10-25T00:30"),
        ("2026-10-25 02:30+01:00", "2026-01-01T00:00", "2026-10-25T01:30"),
    ],
)
def test_a_time_means_a_moment(text: str, now: str, moment: str) -> None:
    assert shown(parse_moment(text, utc(now), BERLIN)) == moment


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("7pm", "expected a time like 19:00, 2026-11-26 07:30 or 2026-11-26T07:30Z, found '7pm'"),
        ("24:00", "expected a time from 00:00 to 23:59, found '24:00'"),
        ("19:60", "expected a time from 00:00 to 23:59"),
        ("2026-02-30", "expected a date of the calendar (day is out of range for month)"),
        ("2h", "expected a time like"),
        ("", "expected a time like"),
        ("0001-01-01", "expected a date within the next years"),
        ("9999-12-31 23:59", "expected a date within the next years"),
        ("2026-11-26 07:30+99:00", "expected an offset like +01:00"),
        ("١٩:٠٠", "expected a time like"),
    ],
)
def test_anything_else_is_refused_in_a_line(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_moment(text, 0.0, BERLIN)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("wall", "zone", "expected"),
    [
        (datetime(2026, 6, 1, 12), BERLIN, ["2026-06-01T10:00"]),
        (datetime(2026, 3, 29, 2, 59), BERLIN, ["2026-03-29T01:00"]),
        (datetime(2026, 10, 25, 2, 0), BERLIN, ["2026-10-25T00:00", "2026-10-25T01:00"]),
        (datetime(2026, 11, 1, 1, 30), NEW_YORK, ["2026-11-01T05:30", "2026-11-01T06:30"]),
    ],
)
def test_a_time_comes_once_or_twice(wall: datetime, zone: tzinfo, expected: list[str]) -> None:
    assert [shown(moment) for moment in moments(wall, zone)] == expected


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("2026-11-25T18:00", "19:00 (in 6 h)"),
        ("2026-11-25T12:00:30", "13:00:30 (in 30 s)"),
        ("2026-11-26T06:30", "Thu 07:30 (in 18 h 30 min)"),
        ("2026-11-28T06:30", "Sat 07:30 (in 2 d 18 h)"),
        ("2027-01-01T06:30", "2027-01-01 07:30 (in 36 d 18 h)"),
    ],
)
def test_the_nearer_the_moment_the_shorter_its_words(moment: str, words: str) -> None:
    now = utc("2026-11-25T12:00")
    assert until(utc(moment), utc(moment) - now, BERLIN) == words
    assert time_of(utc("2026-11-25T18:00"), None, BERLIN) == "2026-11-25 19:00"


def test_a_moment_beyond_the_calendar_has_words_too() -> None:
    assert time_of(1e15) == time_of(-1e15, 0.0, BERLIN) == "a time that no calendar has"
    assert until(1e300, 5.0).startswith("a time that no calendar has")


def test_a_span_is_told_to_the_minute() -> None:
    assert [about(s) for s in (0.2, 45, 130, 3600, 3 * 3600 + 29, 100_000)] == [
        *("1 s", "45 s", "2 min", "1 h", "3 h", "1 d 4 h")
    ]


def test_the_machines_own_zone_counts_where_none_is_named() -> None:
    """In a child process, as a process's zone is its own."""
    program = (
        "from gpulaunch.base.localtime import *\n"
        f"now = {utc('2026-03-28T23:00')}\n"
        "print([parse_moment(t, now) - now for t in ('02:30', '2026-10-25 02:30', '01:30')])\n"
        "print(time_of(now))"
    )
    child = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TZ": RULES["Europe/Berlin"]},
        capture_output=True,
        text=True,
        check=True,
    )
    autumn = utc("2026-10-25T00:30") - utc("2026-03-28T23:00")
    assert child.stdout.splitlines() == [f"[7200.0, {autumn}, 5400.0]", "2026-03-29 00:00"]
