"""Which cards a wide job gets: joined by NVLink, then of one NUMA node, then as ever."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from types import FrameType

import pytest
from msgspec.structs import replace

from gpulaunch.core.cards import Card
from gpulaunch.core.model import Gpu
from gpulaunch.core.placement import best, nearest, worth
from tests.core.table import Table, job
from tests.core.topologies import cube_mesh, islands, joined, some_machine
from tests.core.world import pretend_gpus

TWO_NODES = [0] * 8 + [1] * 8


def test_no_worse_set_is_chosen_while_a_better_one_is_free() -> None:
    rng = random.Random(16)
    for _ in range(2_000):
        gpus = some_machine(pretend_gpus(rng.randint(1, 8)), rng)
        free = rng.sample(gpus, rng.randint(1, len(gpus)))
        count = rng.randint(0, len(free))
        sets = itertools.combinations(range(len(free)), count)
        best = min(sets, key=lambda places: (worth([free[n] for n in places]), places))
        assert nearest(free, count) == list(best), (free, count)


@pytest.mark.parametrize(
    ("gpus", "count", "chosen"),
    [
        (joined(pretend_gpus(4), [(1, 2)]), 2, [1, 2]),
        (joined(pretend_gpus(4), [], [0, 1, 1, 0]), 2, [0, 3]),
        (joined(pretend_gpus(4), [(2, 3)], [0, 0, 0, 1]), 2, [2, 3]),
        (joined(pretend_gpus(4), []), 2, [0, 1]),
        (joined(pretend_gpus(8), cube_mesh())[2:], 4, [2, 3, 4, 5]),
        (joined(pretend_gpus(8), cube_mesh())[3:5] + pretend_gpus(8)[7:], 2, [0, 1]),
        (joined(pretend_gpus(6), islands(6, 2)), 3, [0, 1, 2]),
    ],
)
def test_links_go_before_nodes_and_nodes_before_the_order(
    gpus: Sequence[Gpu], count: int, chosen: list[int]
) -> None:
    assert nearest(gpus, count) == chosen


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_sixteen_cards_are_looked_through_in_few_steps(size: int) -> None:
    gpus = joined(pretend_gpus(16), islands(16, size), TWO_NODES)
    for count in range(2, 16):
        assert _steps(gpus, count) < 3_000


def test_sixteen_cards_that_nobody_would_join_so_are_looked_through_as_well() -> None:
    rng = random.Random(3)
    pairs = [(a, b) for a in range(16) for b in range(a) if rng.random() < 0.3]
    assert max(_steps(joined(pretend_gpus(16), pairs), n) for n in (4, 8, 12)) < 30_000


def _steps(gpus: Sequence[Gpu], count: int) -> int:
    """How many parts of sets are looked at."""
    steps = 0

    def on_call(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        steps += event == "call" and frame.f_code.co_name == "_look"

    sys.setprofile(on_call)
    try:
        nearest(gpus, count)
    finally:
        sys.setprofile(None)
    return steps


# ── In a run ────────────────────────────────────────────────────────────────────────────────────


def test_a_wide_job_asks_for_linked_cards_though_others_come_first() -> None:
    table = Table(gpus=joined(pretend_gpus(4), [(1, 3)]))
    assert table.submit(job("wide", gpus=2)) == ["acquire 1", "acquire 3"]
    assert table.granted(1) == []
    assert table.granted(3) == ["launch wide.1 on 1 3"]


def test_a_run_that_may_have_two_cards_of_many_asks_for_linked_ones() -> None:
    table = Table(gpus=joined(pretend_gpus(4), [(1, 3)]), limit=2)
    assert table.submit(job("wide", gpus=2)) == ["acquire 1", "acquire 3"]


def test_a_wide_job_waits_for_no_better_set() -> None:
    table = Table(gpus=joined(pretend_gpus(3), [(0, 1)]))
    table.submit(job("long", priority=1), job("wide", gpus=2))
    assert table.granted(0, 1) == ["launch long.1 on 0"]
    assert table.granted(2) == ["launch wide.1 on 1 2"]


def test_cards_that_are_asked_for_are_kept_when_an_equal_set_comes_free() -> None:
    table = Table(gpus=joined(pretend_gpus(4), [(0, 1), (2, 3)]))
    table.submit(job("a", priority=1), job("b", priority=1), job("wide", gpus=2))
    table.granted(0, 1)
    table.ended("a.1", back=[0])
    table.ended("b.1", back=[1])
    lines = [*table.granted(2), *table.granted(3)]
    assert [line for line in lines if line.startswith("launch")] == ["launch wide.1 on 2 3"]


def test_single_cards_are_taken_in_the_order_of_ever() -> None:
    table = Table(gpus=joined(pretend_gpus(4), [(1, 2)], [1, 0, 0, 1]))
    assert table.submit(job("a"), job("b")) == ["acquire 0", "acquire 1"]


def test_cards_to_be_used_last_are_taken_last_however_near_they_are() -> None:
    near = {"numa": 0, "links": ("GPU-2", "GPU-3")}
    gpus = [replace(gpu, numa=n) for n, gpu in enumerate(pretend_gpus(4))]
    gpus[2:] = [replace(gpu, rank=1, **near) for gpu in gpus[2:]]
    cards = [Card(gpu) for gpu in gpus]
    assert [card.gpu.index for card in best(cards, 2)] == [0, 1]
    assert [card.gpu.index for card in best(cards[1:], 2)] == [1, 2]
