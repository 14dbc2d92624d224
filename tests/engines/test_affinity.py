"""On which CPUs a job runs: near its cards, split among those that share one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from gpulaunch.core.model import Demand, Gpu, Job
from gpulaunch.engines.affinity import CpuPlacement, NearCpus, part, read_cpus
from gpulaunch.engines.environment import MachineLimits, threads
from tests.gpus.fake import FakeDriver

NEAR = ("0-3", "0-3", "4-7", "4-7")
CARDS = tuple(
    Gpu(f"GPU-{n}", n, f"k{n}", "card", 1, numa=n // 2, cpus=cpus) for n, cpus in enumerate(NEAR)
)
TWO_NODES = CpuPlacement(tuple(range(8)), 2, CARDS, 4)
ONE_NODE = CpuPlacement(tuple(range(8)), 1, CARDS, 4)

Affinity = Literal["card", "none"] | None


def a_job(affinity: Affinity = None, **demand: int) -> Job:
    return Job("a", "true", demand=Demand(**demand), affinity=affinity)  # type: ignore[arg-type]


def cpus(job: Job, *cards: int, slot: int = 0, on: CpuPlacement = TWO_NODES) -> list[int] | None:
    near = on.near(job, [CARDS[n] for n in cards], slot)
    return None if near is None else list(near.cpus)


def test_a_job_runs_near_its_card_where_there_is_more_than_one_node() -> None:
    assert cpus(a_job(), 1) == [0, 1, 2, 3]
    assert cpus(a_job(), 2) == [4, 5, 6, 7]
    assert cpus(a_job(), 2, on=ONE_NODE) is None
    assert cpus(a_job("card"), 2, on=ONE_NODE) == [4, 5, 6, 7]
    assert cpus(a_job("none"), 2) is None


def test_a_job_without_cards_runs_anywhere() -> None:
    assert cpus(a_job("card", gpus=0)) is None


def test_a_job_of_several_cards_runs_near_any_of_them() -> None:
    assert cpus(a_job(gpus=2), 2, 3) == [4, 5, 6, 7]
    assert cpus(a_job(gpus=2), 0, 3) is None, "near both are all"


def test_a_card_of_which_nothing_is_known_narrows_nothing() -> None:
    unknown = replace(CARDS[0], cpus="")
    assert TWO_NODES.near(a_job(), [unknown]) is None
    assert TWO_NODES.near(a_job(gpus=2), [unknown, CARDS[2]]) is None


def test_only_what_the_launcher_may_use_counts() -> None:
    taskset = replace(TWO_NODES, allowed=(2, 3, 4))
    assert cpus(a_job(), 0, on=taskset) == [2, 3]
    assert cpus(a_job(), 0, on=replace(TWO_NODES, allowed=(5, 6))) is None, "all are far"
    assert cpus(a_job(), 0, on=replace(TWO_NODES, allowed=(1, 2))) is None, "all are near"


def test_jobs_that_share_a_card_have_a_part_each() -> None:
    parts = [cpus(a_job(per_gpu=3), 2, slot=slot) for slot in range(4)]
    assert parts == [[4], [5], [6, 7], [4]]
    one_card = replace(ONE_NODE, gpus=CARDS[:1], allowed=(0, 1, 2, 3))
    assert cpus(a_job("card", per_gpu=2), 0, slot=1, on=one_card) == [2, 3], "though all are near"


def test_jobs_that_share_by_memory_have_all_that_is_near_and_threads_for_their_part() -> None:
    job = a_job(per_gpu=0, share=True)
    near = TWO_NODES.near(job, CARDS[:1], 1, sharers=2)
    assert near == NearCpus((0, 1, 2, 3), 1), "two cards are near, with two jobs each"
    assert cpus(a_job(per_gpu=3, share=True), 0, slot=1) == [0, 1, 2, 3]
    assert not TWO_NODES.splits(job)


def test_more_jobs_than_cpus_have_one_each() -> None:
    assert [part((4, 5), slot, 5) for slot in range(5)] == [(4,), (5,), (4,), (5,), (4,)]


def test_the_parts_are_all_of_it() -> None:
    for count in range(1, 20):
        for parts in range(1, count + 1):
            found = [part(tuple(range(count)), slot, parts) for slot in range(parts)]
            assert sum(found, ()) == tuple(range(count))
            assert {len(one) for one in found} <= {count // parts, count // parts + 1}


def test_a_job_never_has_fewer_cpus_than_it_reserves() -> None:
    assert cpus(a_job(cpus=4), 0) == [0, 1, 2, 3]
    assert cpus(a_job(cpus=5), 0) is None
    assert cpus(a_job(cpus=2, per_gpu=2), 0) == [0, 1]
    assert cpus(a_job(cpus=3, per_gpu=2), 0) == [0, 1, 2, 3], "more than its part"


@pytest.mark.parametrize(
    ("job", "gpus", "pool", "count"),
    [
        (a_job(), 4, 4, 2),  # two cards share the four CPUs of a node
        (a_job(), 1, 1, 4),
        (a_job(), 4, 1, 4),  # any one of four
        (a_job(per_gpu=2), 4, 4, 1),
        (a_job(cpus=3), 4, 4, 3),
    ],
)
def test_libraries_start_as_many_threads_as_the_near_cpus_are_for(
    job: Job, gpus: int, pool: int, count: int
) -> None:
    placement = replace(TWO_NODES, gpus=CARDS[:gpus], pool=pool)
    machine = MachineLimits(8, pool, "", placement)
    assert threads(job, machine, near=placement.near(job, CARDS[:1])) == count


# ── The machine ─────────────────────────────────────────────────────────────────────────────────


def test_threads_of_one_core_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(tmp_path)
    driver.nodes("0-1")
    driver.cores("0,2", "1,3")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    found = read_cpus(driver.environ, CARDS, 4)
    assert (found.allowed, found.nodes) == ((0, 2, 1, 3), 2)
    assert cpus(a_job("card", per_gpu=2), 0, on=found) == [0, 2]


def test_a_machine_that_says_nothing_has_one_node(tmp_path: Path) -> None:
    assert read_cpus(FakeDriver(tmp_path).environ, CARDS, 4).nodes == 1


def test_cards_of_which_nothing_is_known_ask_for_nothing() -> None:
    unknown = tuple(replace(card, cpus="") for card in CARDS)
    found = read_cpus({"GPULAUNCH_SYSFS": "/nowhere"}, unknown, 4)
    assert found.near(a_job(), unknown[:1]) is None
