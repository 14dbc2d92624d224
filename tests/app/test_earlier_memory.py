"""What `check` says of `memory:` beside what earlier runs took: one line an entry."""

from __future__ import annotations

from gpulaunch.core.model import Demand, Job
from gpulaunch.run.check import MemoryPeak, compared

GIB = 1 << 30


def entry(group: int, memory: int, *names: str) -> list[Job]:
    return [Job(name, "x", group=group, demand=Demand(memory=memory * GIB)) for name in names]


def said(jobs: list[Job], **peaks: float) -> list[str]:
    known = {name: MemoryPeak(int(peak * GIB), "night-1") for name, peak in peaks.items()}
    return list(compared(jobs, known))


def test_a_job_that_took_more_than_it_reserves_is_named() -> None:
    assert said(entry(0, 8, "a", "b", "c"), a=2, b=11.2, c=9) == [
        "memory: b reserves 8 GiB, and took up to 11.2 GiB in night-1, the most of 3 such jobs"
    ]


def test_an_entry_that_reserves_far_more_than_any_job_took_is_named() -> None:
    assert said(entry(0, 64, "a"), a=3) == [
        "memory: a reserves 64 GiB, and took no more than 3 GiB in night-1"
    ]
    assert said(entry(0, 64, "a", "b"), a=3, b=40) == []


def test_each_entry_is_told_by_itself_and_one_that_fits_not_at_all() -> None:
    jobs = [*entry(0, 8, "a"), *entry(1, 8, "b"), *entry(2, 0, "c"), *entry(3, 8, "d")]
    lines = said(jobs, a=6, b=9, c=50)
    assert len(lines) == 1
    assert lines[0].startswith("memory: b reserves 8 GiB")


def test_little_memory_is_not_worth_a_line() -> None:
    assert said(entry(0, 1, "a"), a=0.1) == []
