"""Host memory: what jobs reserve of it, who waits for it, and who keeps it for whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulaunch.core import memory as host
from gpulaunch.core import on_cards
from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.model import Demand, Job, Service
from gpulaunch.core.state import State
from tests.core.histories import play
from tests.core.table import Table, job
from tests.core.world import GIB, pretend_gpus

LIMIT = 10 * GIB


def table(cards: int = 0, **options: object) -> Table:
    return Table(cards, memory=LIMIT, cpus=100, **options)


def eats(name: str, gib: int, **fields: object) -> Job:
    return job(name, **{"gpus": 0, "memory": gib * GIB, **fields})


def test_jobs_wait_for_memory_and_are_told_who_has_it() -> None:
    t = table()
    assert t.submit(eats("a", 6), eats("b", 3), eats("c", 2)) == [
        "launch a.1 on none",
        "launch b.1 on none",
    ]
    assert t.state("c") == (
        "waiting: waits for 2 GiB of memory: 10 GiB may be reserved, 9 GiB by a, b"
    )
    assert t.ended("b.1") == ["launch c.1 on none"]


def test_a_job_on_a_card_waits_for_memory_that_one_without_has() -> None:
    t = table(1)
    assert t.submit(eats("plain", 6), eats("card", 6, gpus=1)) == ["launch plain.1 on none"]
    assert t.state("card").startswith("waiting: waits for 6 GiB of memory")
    assert t.ended("plain.1") == ["acquire 0"]
    assert t.granted(0) == ["launch card.1 on 0"]


def test_a_job_without_memory_starts_beside_those_that_have_it_all() -> None:
    t = table()
    assert t.submit(eats("a", 10), eats("b", 1), eats("free", 0)) == [
        "launch a.1 on none",
        "launch free.1 on none",
    ]


def test_a_job_that_reserves_more_than_there_is_never_starts() -> None:
    t = table()
    assert t.submit(eats("wide", 11)) == []
    assert t.state("wide") == (
        "failed: never started: reserves 11 GiB of memory, the run may reserve 10 GiB"
    )


def test_a_job_overtaken_too_often_has_memory_kept_for_it() -> None:
    t = table()
    small = [eats(f"s{n}", 4) for n in range(9)]
    lines = t.submit(eats("first", 4), eats("wide", 9), *small)
    assert lines == ["launch first.1 on none", "launch s0.1 on none"]
    assert t.ended("first.1") == ["launch s1.1 on none"]  # the second overtaking: the last one
    assert t.ended("s0.1") == []
    assert t.state("s2") == "waiting: waits until wide has started"
    assert t.ended("s1.1") == ["launch wide.1 on none"]
    assert t.ended("wide.1") == ["launch s2.1 on none", "launch s3.1 on none"]


def folds(count: int, gib: int, **fields: object) -> list[Job]:
    return [eats(f"fold{n}", gib, worker="fold", gpus=1, **fields) for n in range(count)]


def test_a_worker_keeps_its_memory_and_goes_on_with_it() -> None:
    t = table(1)
    t.submit(*folds(2, 10))
    assert t.granted(0) == ["launch fold0.1 on 0"]
    assert t.ended("fold0.1", kept=True) == ["launch fold1.1 on 0 in fold0.1"]


def test_what_is_behind_a_worker_takes_no_memory_of_its_own() -> None:
    t = table(1)
    t.submit(*folds(2, 8), eats("plain", 2))
    assert t.granted(0) == ["launch fold0.1 on 0"]
    assert t.started("fold0.1") == ["launch fold1.1 on 0 in fold0.1 behind fold0.1"]
    assert t.states()["plain"] == "running"
    assert t.ended("fold0.1", kept=True) == []


def test_a_job_that_lacks_memory_goes_behind_a_worker_that_has_it() -> None:
    t = table(2)
    t.submit(*folds(2, 8))
    assert t.granted(0) == ["launch fold0.1 on 0"]
    assert t.started("fold0.1") == ["launch fold1.1 on 0 in fold0.1 behind fold0.1"]


def test_what_is_behind_a_worker_stays_there_while_no_memory_is_left_for_another() -> None:
    t = table(2)
    t.submit(*folds(2, 8))
    t.granted(0)
    t.started("fold0.1")
    assert t.freed(1) == []  # a card would be free: it is not taken back for that
    assert t.ended("fold0.1", kept=True) == []
    assert t.started("fold1.1") == []
    assert t.states()["fold1"] == "running"


def test_memory_is_kept_for_a_job_whose_card_is_on_its_way() -> None:
    t = table(1)
    assert t.submit(eats("card", 6, gpus=1), eats("plain", 6)) == ["acquire 0"]
    assert t.granted(0) == ["launch card.1 on 0"]


def test_an_idle_worker_is_ended_where_another_job_waits_for_its_memory() -> None:
    t = table(1)
    first, *_ = folds(1, 8)
    later = eats("fold1", 8, gpus=1, worker="fold", needs=("plain",))
    t.submit(first, eats("plain", 8, priority=-1), later)
    assert t.granted(0) == ["launch fold0.1 on 0"]
    assert t.ended("fold0.1", kept=True) == ["end worker fold0.1"]
    assert t.worker_ended("fold0.1") == ["drain 0", "launch plain.1 on none"]


def test_a_service_starts_only_where_its_widest_dependant_fits_beside_it() -> None:
    t = table(0)
    server = Job("db", "true", demand=Demand(gpus=0, memory=6 * GIB), service=Service("tcp:8000"))
    asks = Job("asks", "true", demand=Demand(gpus=0, memory=5 * GIB), needs=("db",))
    assert t.submit(server, asks) == []
    assert t.state("asks") == (
        "failed: never started: it does not fit on the run's cards beside its services"
    )


# ── Cards whose memory is the host's ────────────────────────────────────────────────────────────


def unified(*kinds: bool, memory: int = LIMIT) -> Table:
    """A run with a card for each of these, of which some are unified."""
    gpus = pretend_gpus(len(kinds), LIMIT)
    cards = tuple(replace(gpu, unified=kind) for gpu, kind in zip(gpus, kinds, strict=True))
    return Table(gpus=cards, memory=memory, cpus=100)


def takes(name: str, gib: int, **fields: object) -> Job:
    return job(name, **{"gpu_memory": gib * GIB, **fields})


def test_memory_of_a_unified_card_and_of_the_host_is_promised_once() -> None:
    t = unified(True)
    jobs = eats("plain", 6), takes("card", 6), eats("later", 6)
    assert t.submit(*jobs) == ["launch plain.1 on none"]
    assert t.state("card") == (
        "waiting: waits for 6 GiB of memory: 10 GiB may be reserved, 6 GiB by plain"
    )
    assert t.ended("plain.1") == ["acquire 0"]
    assert t.granted(0) == ["launch card.1 on 0"]
    assert t.state("later") == (
        "waiting: waits for 6 GiB of memory: 10 GiB may be reserved, 6 GiB by card"
    )
    assert t.ended("card.1") == ["drain 0", "launch later.1 on none"]


def test_on_a_card_with_memory_of_its_own_it_is_not_the_hosts() -> None:
    t = unified(False)
    assert t.submit(eats("plain", 6), takes("card", 6)) == ["launch plain.1 on none", "acquire 0"]


def test_a_job_reserves_its_memory_and_that_of_its_unified_card_together() -> None:
    t = unified(True)
    t.submit(takes("both", 6, memory=6 * GIB))
    assert t.state("both") == (
        "failed: never started: reserves 12 GiB of memory, the run may reserve 10 GiB"
    )


def test_jobs_that_share_a_unified_card_leave_the_host_the_rest() -> None:
    t = unified(True)
    pair = [takes(name, 4, share=True, per_gpu=0) for name in ("a", "b")]
    t.submit(*pair, eats("plain", 3))
    t.granted(0)
    assert t.states() == {"a": "running", "b": "running", "plain": "waiting"}
    assert t.ended("b.1") == ["launch plain.1 on none"]


def test_what_does_not_fit_on_the_unified_card_goes_to_the_other_one() -> None:
    t = unified(True, False)
    lines = t.submit(eats("plain", 6), takes("card", 6), takes("second", 6))
    assert lines == ["launch plain.1 on none", "acquire 1"]
    assert t.granted(1) == ["launch card.1 on 1"]
    assert t.ended("plain.1") == ["acquire 0"]


@pytest.mark.parametrize("block", range(4))
def test_histories_on_unified_cards(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        play(seed, 1 + seed % 2, shares=False, unified=True)


# ── Deliberately broken versions: each must be found by the histories ───────────────────────────


def _ignore_the_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host, "lacks_memory", lambda state, demand: False)


def _forget_what_idle_workers_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host, "held", lambda state: state.attempts.memory)


def _count_what_is_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActiveAttempt, "memory", property(lambda self: self.demand.memory))


def _give_a_worker_more_than_it_has(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Demand, other: Demand) -> bool:
        return (self.worker, self.gpus, self.gpu_memory, self.per_gpu, self.cpus) == (
            (other.worker, other.gpus, other.gpu_memory, other.per_gpu, other.cpus)
        )

    patch.setattr(Demand, "same_seat", broken)


def _leave_workers_idle_beside_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(on_cards, "HELD_BY_WORKERS", frozenset({"cards", "room"}))


def _keep_memory_for_whoever_waits(patch: pytest.MonkeyPatch) -> None:
    """All memory is kept, whether or not anybody was overtaken."""
    lacks = host.lacks_memory

    def broken(state: State, demand: Demand) -> bool:
        return lacks(state, demand) or (demand.memory > 0 and bool(state.placing.last.blocked))

    patch.setattr(host, "lacks_memory", broken)


@pytest.mark.parametrize(
    "breakage",
    [
        _ignore_the_memory,
        _forget_what_idle_workers_hold,
        _count_what_is_behind,
        _give_a_worker_more_than_it_has,
        _leave_workers_idle_beside_who_waits,
        _keep_memory_for_whoever_waits,
    ],
)
def test_a_version_that_breaks_host_memory_is_found(
    breakage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(breakage)
    breakage(monkeypatch)
    for seed in range(800):
        try:
            play(seed, 1 + seed % 2)
        except (AssertionError, LookupError, ValueError):
            return
    pytest.fail("800 histories passed with a broken core")
