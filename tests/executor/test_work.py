"""The line of items, without any process: who gets what, and how many workers it asks for."""

from __future__ import annotations

import pytest

from gpulaunch.executor.errors import BrokenGpuExecutorError
from gpulaunch.executor.future import GpuFuture
from gpulaunch.executor.work import Claim, Work, WorkItem


def item() -> WorkItem:
    return WorkItem(GpuFuture(), abs, (1,), {})


@pytest.fixture
def calls() -> list[None]:
    return []


@pytest.fixture
def work(calls: list[None]) -> Work:
    return Work(3, lambda: calls.append(None))


def entered(work: Work) -> Claim:
    claim = Claim()
    work.enter(claim)
    return claim


def test_as_many_workers_are_asked_for_as_items_wait(work: Work, calls: list[None]) -> None:
    assert work.balance(0) == 0
    for _ in range(2):
        work.put(item())
    assert len(calls) == 2
    assert work.balance(0) == 2
    assert work.balance(2) == 0
    work.put(item())
    assert work.balance(2) == 1
    work.put(item())
    assert work.balance(3) == 0, "and no more than there are cards for"
    assert len(calls) == 3, "nobody is woken where nothing follows"


def test_workers_that_come_up_count_as_soon_there(work: Work) -> None:
    work.put(item())
    assert work.balance(0) == 1
    entered(work)
    assert work.balance(0) == 0
    work.put(item())
    assert work.balance(0) == 1


def test_workers_are_not_asked_for_any_more_when_their_items_are_gone(
    work: Work, calls: list[None]
) -> None:
    claim = entered(work)
    for _ in range(2):
        work.put(item())
    assert work.balance(0) == 1
    work.take(claim)
    calls.clear()
    work.take(claim)
    assert calls, "the manager is told"
    assert work.balance(1) == -1


def test_one_who_died_or_left_is_no_help(work: Work) -> None:
    claim = entered(work)
    work.put(item())
    work.void(claim)
    assert work.balance(0) == 1
    assert work.take(claim) is None
    assert work.serving == 0


def test_an_item_in_hand_may_come_back_until_it_is_over(work: Work, calls: list[None]) -> None:
    work.put(item())
    work.take(entered(work))
    work.close()
    assert not work.done
    calls.clear()
    work.over()
    assert calls, "the manager is told"
    assert work.done


def test_an_item_that_is_put_back_comes_first_and_cannot_be_cancelled(work: Work) -> None:
    first, second = item(), item()
    work.put(first)
    work.put(second)
    claim = entered(work)
    assert work.take(claim) is first
    assert work.put_back(first)
    work.close(cancel=True)
    assert not work.done
    work.drop()
    assert second.future.cancelled()
    assert work.take(claim) is first


def test_cancelled_items_are_passed_over(work: Work) -> None:
    first, second = item(), item()
    work.put(first)
    work.put(second)
    first.future.cancel()
    assert work.take(entered(work)) is second


def test_what_cannot_be_done_fails_and_so_does_what_comes(work: Work) -> None:
    waiting = item()
    work.put(waiting)
    work.fail(BrokenGpuExecutorError("no more"))
    assert isinstance(waiting.future.exception(0), BrokenGpuExecutorError)
    with pytest.raises(BrokenGpuExecutorError, match="no more"):
        work.put(item())
    assert work.done
