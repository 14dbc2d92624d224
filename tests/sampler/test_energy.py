"""Whose energy is whose: the parts are the whole, and what is not known is nobody's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.core.model import AttemptId
from gpulaunch.observe.sampler.energy import (
    LONGEST_KEPT,
    Drawn,
    EnergyMeter,
    Presence,
    drawn,
    split,
)
from gpulaunch.observe.sampler.energy import EnergyReading as Reading

A, B, C = (AttemptId(name, 1) for name in "abc")
WHOLE = Drawn(100.0, 0.0, 10.0)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (Reading(0, joules=50), Reading(10, joules=150), Drawn(100, 0, 10)),
        (
            Reading(0, joules=50),
            Reading(900, joules=150),
            Drawn(100, 0, 900),
        ),  # misses nothing
        (Reading(0, watts=100), Reading(2, watts=200), Drawn(300, 0, 2)),
        (Reading(0, watts=100), Reading(900, watts=100), Drawn(200, 898, 900)),  # a gap
        (
            Reading(0, joules=50, watts=9),
            Reading(1, joules=60, watts=9),
            Drawn(10, 0, 1),
        ),
        (
            Reading(0, joules=150, watts=40),
            Reading(1, joules=3, watts=60),
            Drawn(50, 0, 1),
        ),
        (
            Reading(0, joules=150),
            Reading(1, joules=3),
            None,
        ),  # the driver was loaded anew
        (Reading(0), Reading(1, joules=3), None),
        (Reading(0, watts=40), Reading(1), None),
        (Reading(5, joules=1), Reading(5, joules=2), None),
        (Reading(9, joules=1), Reading(5, joules=2), None),  # a clock that was set back
    ],
)
def test_what_a_card_drew_is_its_counters_else_the_power_for_as_long_as_it_stands(
    before: Reading, now: Reading, found: Drawn | None
) -> None:
    assert drawn(before, now, longest=2.0) == found


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([], {}),
        ([Presence(A, -5, 99)], {A: 100}),
        ([Presence(A, 0, 10, 30), Presence(B, 0, 10, 10)], {A: 75, B: 25}),
        ([Presence(A, 0, 10, 0), Presence(B, 0, 10, 0)], {A: 50, B: 50}),
        ([Presence(A, 0, 10, 0), Presence(B, 0, 10, 7)], {A: 0, B: 100}),
        ([Presence(A, 0, 10, None), Presence(B, 0, 10, 7)], {A: 50, B: 50}),
        ([Presence(A, 0, 4)], {A: 40}),  # what it draws with nobody there is nobody's
        ([Presence(A, 0, 6), Presence(B, 4, 10)], {A: 50, B: 50}),
        ([Presence(A, 0, 10), Presence(B, 20, 30)], {A: 100}),
        ([Presence(A, 5, 5)], {}),
    ],
)
def test_energy_is_split_by_what_each_did_while_it_was_there(
    there: list[Presence], found: dict[AttemptId, float]
) -> None:
    assert split(WHOLE, there) == pytest.approx(found)


PRESENCES = st.builds(
    Presence,
    st.sampled_from([A, B, C]),
    st.floats(-20, 20),
    st.floats(-20, 20),
    st.sampled_from([None, 0.0, 1.0, 55.0, 100.0]),
)


@given(st.lists(PRESENCES, max_size=6), st.floats(0, 1e6))
def test_the_parts_are_what_the_card_drew_while_anybody_was_there(
    there: list[Presence], joules: float
) -> None:
    parts = split(Drawn(joules, 0.0, 10.0), there)
    covered = joules / 10 * union([(max(0.0, p.since), min(10.0, p.until)) for p in there])
    assert sum(parts.values()) == pytest.approx(covered, abs=1e-6 * (1 + joules))
    assert all(part >= 0 for part in parts.values())


@given(st.lists(PRESENCES, max_size=5), st.floats(0, 1e6))
def test_with_somebody_there_all_the_time_the_parts_are_the_whole(
    there: list[Presence], joules: float
) -> None:
    parts = split(Drawn(joules, 0.0, 10.0), [*there, Presence(A, -1, 11, 5.0)])
    assert sum(parts.values()) == pytest.approx(joules)


def union(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def used(meter: EnergyMeter, at: float, joules: float | None, *there: Presence) -> dict[str, float]:
    found = meter.look("card", Reading(at, joules), there, 2.0)
    return {attempt.job: part for attempt, part in found}


def test_what_ended_between_two_looks_gets_its_part() -> None:
    meter = EnergyMeter()
    assert used(meter, 0, 0.0, Presence(A, 0, 0)) == {}
    meter.ended("card", Presence(A, 0, 0.5))
    assert used(meter, 1, 100.0, Presence(B, 0.5, 1)) == pytest.approx({"a": 50, "b": 50})
    assert used(meter, 2, 200.0, Presence(B, 0.5, 2)) == pytest.approx({"b": 100})


def test_a_counter_that_is_not_told_for_a_while_loses_nothing() -> None:
    meter = EnergyMeter()
    used(meter, 0, 0.0)
    meter.ended("card", Presence(A, 0, 2))
    assert used(meter, 2, None, Presence(B, 2, 2)) == {}
    assert used(meter, 4, 100.0, Presence(B, 2, 4)) == pytest.approx({"a": 50, "b": 50})


def test_a_sampler_goes_on_with_the_counter_that_the_one_before_saw() -> None:
    meter = EnergyMeter({"card": Reading(90.0, 1000.0)})
    assert used(meter, 100.0, 1500.0, Presence(A, 50, 100)) == {"a": 500.0}


def test_the_counter_of_a_machine_that_was_started_anew_says_nothing_of_before() -> None:
    meter = EnergyMeter({"card": Reading(90.0, 1000.0)})
    assert used(meter, 100.0, 7.0, Presence(A, 50, 100)) == {}
    assert used(meter, 101.0, 57.0, Presence(A, 50, 101)) == {"a": 50.0}


def test_a_card_that_is_never_heard_of_again_keeps_no_endless_list() -> None:
    meter = EnergyMeter()
    for at in range(3 * int(LONGEST_KEPT)):
        meter.ended("card", Presence(A, at - 1, at))
    assert len(meter._over["card"]) <= LONGEST_KEPT
