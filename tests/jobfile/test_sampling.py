"""`sample:` over a matrix: the same everywhere and for good, without repeats, within its bounds."""

from __future__ import annotations

from decimal import Decimal
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.jobfile import sampling
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.sampling import Axes, Range, Sample, drawn
from tests.jobfile.helpers import jobs_of, mistakes_of

RANGES: Axes = {
    "lr": Range("log", "1e-5", "1e-2"),
    "drop": Range("uniform", "0", "0.5"),
    "depth": Range("integer", "2", "8"),
    "batch": ("16", "32"),
}
LISTS: Axes = {"a": ("1", "2", "3"), "b": Range("integer", "-2", "2"), "c": ("x",)}

axes = st.sampled_from([RANGES, LISTS, {"x": Range("uniform", "-1e9", "1e9")}])
seeds = st.integers(0, 10**18)


def texts(axes: Axes, count: int, seed: int = 0) -> list[str]:
    return [" ".join(one.values()) for one in drawn(axes, (), Sample(count, seed))]


def test_what_is_drawn_is_fixed_for_good() -> None:
    """A run's jobs are named after these: another Python or version must draw the same."""
    assert texts(RANGES, 5) == [
        "0.001321 0.14357 2 16",
        "0.00462 0.05159 8 32",
        "0.001328 0.05457 2 16",
        "0.0002176 0.11978 5 16",
        "0.00199 0.22325 4 16",
    ]
    assert texts(LISTS, 4, 7) == ["3 -2 x", "3 1 x", "1 0 x", "1 -2 x"]


def test_decimal_arithmetic_written_in_python_draws_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import _pydecimal

    draws = [(1 << 64) // 997 * number for number in range(997)]
    ranges = [axis for axis in RANGES.values() if isinstance(axis, Range)]
    compiled = [[axis.value(draw) for draw in draws] for axis in ranges]
    for name in ("_EXACT", "_SHORT"):
        given = getattr(sampling, name)
        made = _pydecimal.Context(given.prec, given.rounding, given.Emin, given.Emax, traps=[])
        monkeypatch.setattr(sampling, name, made)
    monkeypatch.setattr(sampling, "Decimal", _pydecimal.Decimal)
    monkeypatch.setattr(sampling, "_DRAWS", _pydecimal.Decimal(1 << 64))
    sampling._start_and_span.cache_clear()
    again = [[axis.value(draw) for draw in draws] for axis in ranges]
    sampling._start_and_span.cache_clear()
    assert again == compiled


@settings(max_examples=40)
@given(axes, seeds, st.integers(1, 12))
def test_more_samples_begin_with_the_same_ones(axes: Axes, seed: int, count: int) -> None:
    assert drawn(axes, (), Sample(15, seed))[:count] == drawn(axes, (), Sample(count, seed))


@settings(max_examples=40)
@given(axes, seeds)
def test_no_combination_is_drawn_twice_and_all_are_within_their_bounds(
    axes: Axes, seed: int
) -> None:
    found = drawn(axes, (), Sample(15, seed))
    assert len({tuple(one.values()) for one in found}) == 15
    for one in found:
        for key, axis in axes.items():
            if isinstance(axis, Range):
                assert Decimal(axis.low) <= Decimal(one[key]) <= Decimal(axis.high)
            else:
                assert one[key] in axis


def test_another_key_leaves_the_values_of_the_others() -> None:
    one: Axes = {"lr": RANGES["lr"]}
    more: Axes = {"drop": RANGES["drop"], **one}
    assert texts(one, 10) == [text.split()[1] for text in texts(more, 10)]


def test_another_value_in_a_list_leaves_the_order_of_what_is_drawn() -> None:
    more: Axes = {**LISTS, "a": ("1", "2", "3", "4")}
    assert [one for one in texts(more, 20) if not one.startswith("4")] == texts(LISTS, 15)


def test_seeds_draw_different_series() -> None:
    series = {tuple(texts(axes, 10, seed)) for axes in (RANGES, LISTS) for seed in range(20)}
    assert len(series) == 40


def test_as_many_as_there_are_combinations_are_all_of_them() -> None:
    every = [" ".join(one) for one in product("123", ("-2", "-1", "0", "1", "2"), "x")]
    assert sorted(texts(LISTS, 15)) == sorted(every)
    with pytest.raises(FieldError, match="16 samples, and the matrix has only 15 combinations"):
        texts(LISTS, 16)


def test_what_is_excluded_is_not_drawn_and_others_are_in_its_place() -> None:
    rules = [{"batch": "16", "depth": "2"}, {"batch": "32"}]
    axes: Axes = {**RANGES, "depth": ("2", "3", "4")}
    found = drawn(axes, rules, Sample(50))
    assert {(one["batch"], one["depth"]) for one in found} == {("16", "3"), ("16", "4")}
    free = drawn(axes, (), Sample(500))
    assert found == [one for one in free if one in found][:50]
    with pytest.raises(FieldError, match="1 sample, and the matrix has no combination"):
        drawn(axes, [{"batch": "16"}, {"batch": "32"}], Sample(1))


def test_the_one_combination_that_is_left_is_found() -> None:
    numbers = tuple(map(str, range(60)))
    rules = [{key: number} for key in "ab" for number in numbers[1:]]
    assert drawn({"a": numbers, "b": numbers}, rules, Sample(1)) == [{"a": "0", "b": "0"}]


def test_draws_fill_their_range_evenly_or_by_powers() -> None:
    """Counts of 4,000 fixed draws: an even chance is 1,000 a part, give or take 27."""
    axes: Axes = {
        "even": Range("uniform", "-1", "3"),
        "powers": Range("log", "1e-4", "1"),
        "whole": Range("integer", "0", "3"),
        "list": ("a", "b", "c", "d"),
    }
    found = drawn(axes, (), Sample(4000))
    parts = {
        "even": [int(float(one["even"]) + 1) for one in found],
        "powers": [-int(Decimal(one["powers"]).adjusted()) for one in found],
        "whole": [int(one["whole"]) for one in found],
        "list": ["abcd".index(one["list"]) for one in found],
    }
    for key, numbers in parts.items():
        counts = [numbers.count(one) for one in sorted(set(numbers))]
        assert all(abs(count - 1000) < 110 for count in counts[:4]), (key, counts)


@pytest.mark.parametrize(
    ("kind", "low", "high", "draw", "text"),
    [
        ("uniform", "0", "1", 0, "0"),
        ("uniform", "0", "1", 2**63, "0.5"),
        ("uniform", "0", "1", 2**64 - 1, "1"),
        ("uniform", "-0.5", "0.5", 2**62, "-0.25"),
        ("uniform", "1000", "1001", 2**62 + 2**60, "1000.3125"),
        ("uniform", "0", "1e9", 2**62, "250000000"),
        ("uniform", "0.12345678", "0.2", 0, "0.123457"),
        ("log", "1e-5", "1e-1", 2**63, "0.001"),
        ("log", "1e-6", "1e-5", 2**63, "3.162e-6"),
        ("log", "1e-5", "1e-2", 0, "1e-5"),
        ("log", "1e7", "1e9", 2**63, "1e8"),
        ("log", "16", "1024", 2**63, "128"),
        ("integer", "-3", "3", 0, "-3"),
        ("integer", "-3", "3", 2**64 - 1, "3"),
        ("integer", "0", str(10**17), 2**63, str(5 * 10**16)),
    ],
)
def test_numbers_are_short_text(kind: str, low: str, high: str, draw: int, text: str) -> None:
    found = Range(kind, low, high).value(draw)
    assert float(found) == float(text)
    assert len(found) <= max(len(low), len(high), 10)
    assert found == text or kind == "uniform"


bounds = st.decimals(allow_nan=False, allow_infinity=False, places=6).map(str)


@settings(max_examples=100)
@given(bounds, bounds, st.integers(0, 2**64 - 1), st.sampled_from(["uniform", "log"]))
def test_any_bounds_give_numbers_within_them(low: str, high: str, draw: int, kind: str) -> None:
    try:
        axis = sampling.distribution({kind: [low, high]})
    except FieldError:
        return
    assert isinstance(axis, Range)
    found = axis.value(draw)
    assert Decimal(low) <= Decimal(found) <= Decimal(high)
    assert float(found) == float(found)


# ── in a job file ───────────────────────────────────────────────────────────────────────────────


def test_jobs_are_named_after_what_was_drawn_and_know_it() -> None:
    text = """
        jobs:
          - name: train
            matrix: {lr: {log: [1e-5, 1e-2]}, batch: {choice: [16, 32]}}
            sample: {n: 2, seed: 3}
            run: train {{lr}} {{batch}}
    """
    jobs = jobs_of(text)
    for job in jobs:
        lr, batch = job.params["lr"], job.params["batch"]
        assert job.name == f"train-lr={lr}-batch={batch}"
        assert job.run == f"train '{lr}' '{batch}'"
    assert len(jobs) == 2


def test_every_item_has_every_sample() -> None:
    text = """
        jobs:
          - {foreach: {values: [a, b]}, matrix: {x: {uniform: [0, 1]}}, sample: 3, run: "go {{x}}"}
    """
    found = [(job.params["item"], job.params["x"]) for job in jobs_of(text)]
    drawn = [x for item, x in found if item == "a"]
    assert found == [*(("a", x) for x in drawn), *(("b", x) for x in drawn)]
    assert len(drawn) == 3


def test_with_sample_a_list_alone_is_a_random_part_of_the_grid() -> None:
    jobs = jobs_of("jobs: [{matrix: {a: [1, 2, 3], b: [1, 2, 3]}, sample: 4, run: x}]")
    found = [tuple(job.params.values()) for job in jobs]
    assert len(set(found)) == 4
    assert found != sorted(found)


def test_samples_count_as_jobs_do() -> None:
    items = ", ".join(map(str, range(51)))
    entry = (
        f"foreach: {{values: [{items}]}}, matrix: {{x: {{uniform: [0, 1]}}, y: {{log: [1, 9]}}}}"
    )
    (said,) = mistakes_of(f"jobs: [{{{entry}, sample: 10000, run: x}}]")
    assert said.endswith("more than 500,000 jobs; run them in parts")


def test_vast_ranges_are_drawn_from_and_narrow_ones_given_up() -> None:
    many = ", ".join(f"k{number}: {{integer: [0, {10**17}]}}" for number in range(200))
    entry = f"{{name: 'n{{{{k0}}}}', matrix: {{{many}, x: {{log: [1, 2]}}}}, sample: 20, run: x}}"
    assert len(jobs_of(f"jobs: [{entry}]")) == 20
    (said,) = mistakes_of(f"jobs: [{entry.replace('sample: 20', 'sample: 50000')}]")
    assert said.endswith("more than 200,000 values, over all samples and keys")
    (said,) = mistakes_of("jobs: [{matrix: {a: {log: [1, 1.001]}}, sample: 9, run: x}]")
    assert said.endswith("9 samples, and the matrix has only 2 combinations")


def test_a_matrix_without_a_combination_is_one_mistake_whoever_needs_its_jobs() -> None:
    matrix = "{a: [1], exclude: [{a: 1}]}"
    needed = (
        f"jobs: [{{name: 'x-{{{{a}}}}', matrix: {matrix}, run: x}}, {{run: y, needs: ['x-*']}}]"
    )
    (said,) = mistakes_of(needed)
    assert said.endswith("matrix.exclude: every combination is excluded")
