"""A user's launchers hold all the cards that they may: what a run does then, and afterwards."""

from __future__ import annotations

import pytest

from gpulaunch.core import why
from gpulaunch.core.events import AllowanceFreed, AllowanceSpent, GangGranted, Refused
from gpulaunch.core.facts import GpuChanged
from tests.core.histories import play
from tests.core.table import Table, job, service
from tests.core.test_histories import CHUNK, COUNT

SPENT = AllowanceSpent(2, "/etc/gpulaunch/config.yaml:3")
WHY = "your launchers may hold 2 at once (/etc/gpulaunch/config.yaml:3), and hold them,"


def spent(table: Table, card: int) -> list[str]:
    return table.on(Refused(f"GPU-{card}", SPENT))


def freed(table: Table) -> list[str]:
    return table.on(AllowanceFreed())


def test_nothing_more_is_asked_for_until_the_allowance_is_freed() -> None:
    table = Table(4)
    assert table.submit(job("a"), job("b"), job("c")) == ["acquire 0", "acquire 1", "acquire 2"]
    assert spent(table, 1) == []
    assert spent(table, 2) == []
    assert table.granted(0) == ["launch a.1 on 0"]
    assert table.state("b") == f"waiting: waits for a card: {WHY} 1 of them in this run"
    assert freed(table) == ["acquire 1", "acquire 2"]
    assert table.granted(1) == ["launch b.1 on 1"]


def test_a_card_of_which_nothing_is_known_is_not_recorded_as_anything() -> None:
    table = Table(2)
    table.submit(job("a"))
    spent(table, 0)
    assert not [fact for fact in table.facts if isinstance(fact, GpuChanged)]


def test_a_run_without_a_card_says_that_other_launchers_have_them() -> None:
    table = Table(2)
    table.submit(job("a"))
    spent(table, 0)
    assert table.state("a") == f"waiting: waits for a card: {WHY} all of them in other launchers"


def test_a_run_that_holds_all_that_is_allowed_says_so_with_the_place() -> None:
    table = Table(2, limit=1, limited_by="/etc/gpulaunch/config.yaml:3")
    table.submit(job("a"), job("b"))
    table.granted(0)
    assert table.state("b") == (
        "waiting: waits for a card: the run may hold 1 at once, as all your launchers together"
        " (/etc/gpulaunch/config.yaml:3); GPU 0 is busy with a (0:00)"
    )


def test_what_the_run_gives_back_it_may_take_again() -> None:
    table = Table(2)
    table.submit(job("a"), job("b"))
    spent(table, 1)
    table.granted(0)
    table.ended("a.1")
    assert table.drained(0) == ["launch b.1 on 0"]
    table.ended("b.1")
    assert table.drained(0) == ["release 0"]
    assert table.on() == []


def test_a_job_that_only_the_allowance_keeps_waiting_never_fails_for_it() -> None:
    table = Table(2)
    table.submit(job("a"), service("server"), job("b", needs=("server",)))
    spent(table, 0)
    spent(table, 1)
    for seconds in (1.0, why.DEADLOCK_TIMEOUT + why.DEADLOCK_TIMEOUT_JITTER):
        table.now += seconds
        table.on()
    assert table.states() == dict.fromkeys(("a", "server", "b"), "waiting")


def test_a_wide_job_waits_for_its_share_and_fails_by_no_deadlock() -> None:
    table = Table(4, limit=2)
    assert table.submit(job("pair", gpus=2)) == ["acquire 0", "acquire 1"]
    table.granted(0)
    lines = spent(table, 1)
    assert "release 0" in lines, "another launcher could use the card"
    assert "gather True" in lines
    assert table.on(GangGranted()) == ["acquire 0"]
    table.granted(0)
    assert table.states() == {"pair": "waiting"}
    assert freed(table) == ["acquire 1"]
    assert table.granted(1)[:1] == ["launch pair.1 on 0 1"]


def test_the_right_to_gather_is_not_kept_where_no_card_may_be_had() -> None:
    table = Table(4, limit=2)
    table.submit(job("pair", gpus=2))
    spent(table, 0)
    assert spent(table, 1) == ["gather False"], "others could use the right"
    assert table.on() == []


def test_cards_of_a_higher_rank_are_taken_after_all_others() -> None:
    table = Table(3, ranks=(1, 0, 0))
    assert table.submit(job("a"), job("b"), job("c")) == ["acquire 1", "acquire 2", "acquire 0"]
    table = Table(3, ranks=(0, 1, 0))
    assert table.submit(job("pair", gpus=2)) == ["acquire 0", "acquire 2"]


@pytest.mark.parametrize("first", range(0, max(CHUNK, COUNT // 3), CHUNK))
def test_runs_of_one_user_never_have_more_cards_than_allowed_and_all_end(first: int) -> None:
    refused = 0
    for seed in range(first, first + CHUNK):
        refused += play(seed, 1 + seed % 3, limited=True).refused
    assert refused > CHUNK // 4, "the allowance is hardly ever spent"
