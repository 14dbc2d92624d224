"""How many are tried where Slurm takes no more, and when."""

from __future__ import annotations

import pytest
from msgspec import Struct

from gpulaunch.engines.slurm.limits import (
    FIRST_RETRY_DELAY,
    MAX_RETRY_DELAY,
    MIN_RETRY_DELAY,
    Limit,
    Limits,
    lane_of,
)


class Site(Struct):
    """Takes `room` more in the lane. Counts how often it was asked."""

    room: int
    asked: int = 0
    now: float = 0.0

    def hand_over(self, limit: Limit, left: int, seconds: float) -> int:
        """What is taken of so many within that time."""
        until, taken = self.now + seconds, 0
        while taken < left:
            size = min(left - taken, limit.most(self.now))
            if not size:
                if limit.at > until:
                    break
                self.now = limit.at
                continue
            self.asked += 1
            if size <= self.room:
                limit.taken(size, self.now)
                self.room, taken = self.room - size, taken + size
            else:
                limit.refused(size, "full", self.now)
        self.now = max(self.now, until)
        return taken


def refused(size: int) -> Limit:
    limit = Limit()
    limit.refused(size, "full", 0.0)
    return limit


@pytest.mark.parametrize("room", [1, 2, 3, 100, 299, 500, 999])
def test_all_that_there_is_room_for_is_found_with_few_calls(room: int) -> None:
    site = Site(room)
    assert site.hand_over(refused(1000), 1000, 10.0) == room
    assert site.asked <= 26


def test_of_a_queue_that_stays_full_little_is_asked() -> None:
    site = Site(0)
    assert site.hand_over(refused(1), 100, 600.0) == 0
    assert site.asked <= 5 + 600 / MAX_RETRY_DELAY


def test_room_that_ends_of_our_own_make_is_used_soon_and_at_once() -> None:
    site, limit = Site(0), refused(1)
    site.hand_over(limit, 100, 120.0)
    asked = site.asked
    for _ in range(7):
        limit.one_is_over(site.now)
    site.room = 7
    assert site.hand_over(limit, 100, MIN_RETRY_DELAY - 0.1) == 7
    assert site.asked == asked + 1


def test_ends_that_make_no_room_do_not_make_it_ask_often() -> None:
    site, limit = Site(0), refused(1)
    for _ in range(600):
        limit.one_is_over(site.now)
        site.hand_over(limit, 1, 1.0)
    assert site.asked <= 10 + 600 / MIN_RETRY_DELAY


def test_much_room_that_others_leave_is_found_in_a_few_steps() -> None:
    site, limit = Site(0), refused(1)
    site.hand_over(limit, 1000, 100.0)
    site.room, asked = 1000, site.asked
    assert site.hand_over(limit, 1000, MAX_RETRY_DELAY) == 1000
    assert site.asked <= asked + 11


def test_a_limit_holds_up_its_own_lane_alone() -> None:
    limits = Limits()
    full = lane_of(("--parsable", "--qos=a", "--time=3"))
    other = lane_of(("--parsable", "--qos=b", "--time=3"))
    assert full == ("--qos=a",)
    assert limits.refused(full, 1, "no more", 0.0)
    assert limits.most(full, 10, FIRST_RETRY_DELAY / 2) == 0
    assert limits.most(other, 10, FIRST_RETRY_DELAY / 2) == 10
    assert (limits.why(full), limits.why(other)) == ("no more", "")


def test_people_are_told_once_of_each_limit_and_reason() -> None:
    limits = Limits()
    said = [limits.refused(("--qos=a",), size, "no more", 0.0) for size in (4, 2, 1, 1)]
    assert said == [False, False, True, False]
    limits.keep(())
    assert limits.why(("--qos=a",)) == ""
    assert not limits.refused(("--qos=a",), 1, "no more", 9.0)
    assert limits.refused(("--qos=a",), 1, "of that user either", 9.0)
    assert limits.refused(("--qos=b",), 1, "no more", 9.0)


def test_an_end_in_one_lane_lets_the_others_try_sooner() -> None:
    limits = Limits()
    for _ in range(9):
        limits.refused(("--qos=a",), 1, "full", 0.0)
    assert limits.most(("--qos=a",), 10, MIN_RETRY_DELAY) == 0
    limits.one_is_over((), 0.0)
    assert limits.most(("--qos=a",), 10, MIN_RETRY_DELAY) == 1
