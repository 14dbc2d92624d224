"""The line of items, without any process: who gets what, and how many workers it asks for."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, cast

import pytest

from gpulaunch.executor.channel import (
    ITEM,
    PACKET,
    ChannelMessage,
    ItemLine,
    ItemReceiver,
    WorkerChannel,
)
from gpulaunch.executor.future import BrokenGpuExecutorError, GpuFuture
from gpulaunch.executor.item_queue import AHEAD, AHEAD_TOO_LONG, Claim, Work, WorkItem


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


# ── Ahead ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False, slots=True)
class Busy(Claim):
    """The claim of a worker that runs an item."""

    runs: WorkItem | None = None

    def answers(self, work: Work, read: WorkItem | None = None) -> WorkItem | None:
        """The worker answers an item, the one that it is taken to run; what it runs then."""
        assert self.runs
        item = read or self.runs
        done, self.runs = work.answered(self, self.runs, item.number)
        assert done is item
        return self.runs


Lined: TypeAlias = tuple[Work, Callable[[], Busy]]


class Time:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def lined(clock: Time) -> Iterator[Lined]:
    """A line of items, and what enters a worker that runs one, with nobody behind its socket."""
    work = Work(3, lambda: None, clock)
    claims: list[Busy] = []

    def running() -> Busy:
        claim = Busy(ItemLine(), work.readmit)
        claims.append(claim)
        work.enter(claim)
        work.put(item())
        claim.runs = work.take(claim)
        return claim

    yield work, running
    for claim in claims:
        assert claim.line
        claim.line.close()


def sent(work: Work, claim: Claim, count: int) -> list[WorkItem]:
    """So many items that are ahead at the worker."""
    found = []
    for n in range(count):
        work.put(item())
        one = work.take_ahead(claim)
        assert one is not None
        assert claim.send(one, ChannelMessage(ITEM, b"%d" % n, number=one.number))
        found.append(one)
    return found


def read(claim: Claim) -> bytes:
    """What the worker reads next."""
    assert claim.line
    return claim.line.theirs.recv(100, socket.MSG_DONTWAIT)[-1:]


def test_an_item_goes_ahead_where_no_worker_is_free(lined: Lined) -> None:
    work, running = lined
    claim = running()
    assert work.take_ahead(claim) is None, "there is none"
    items = sent(work, claim, AHEAD)
    assert [one.future.running() for one in items] == [False] * AHEAD
    work.put(item())
    assert work.take_ahead(claim) is None, "it has as many as it may have"
    assert claim.answers(work) is items[0]
    assert items[0].future.running()
    assert work.take_ahead(claim) is not None


def test_what_a_free_worker_could_begin_goes_ahead_nowhere(lined: Lined) -> None:
    work, running = lined
    claim, free = running(), entered(work)
    free.ready = free.idle = True
    work.put(item())
    assert work.take_ahead(claim) is None
    work.put(item())
    assert work.take_ahead(claim) is not None


def test_what_goes_ahead_makes_way_for_a_worker_that_is_free_by_then(lined: Lined) -> None:
    work, running = lined
    claim, free = running(), entered(work)
    free.ready = True

    class Future(GpuFuture[int]):
        def set_running_or_notify_cancel(self) -> bool:
            free.idle = True
            return super().set_running_or_notify_cancel()

    one = WorkItem(Future(), abs, (1,), {})
    work.put(one)
    assert work.take_ahead(claim) is None
    assert not claim.ahead
    assert work.take(free) is one


def test_as_many_workers_are_asked_for_as_items_wait_ahead_as_well(lined: Lined) -> None:
    work, running = lined
    claim = running()
    assert work.balance(0) == 0
    items = sent(work, claim, 2)
    assert work.balance(0) == 2
    for _ in items:
        claim.answers(work)
    assert work.balance(2) == -2


def taken_but_unsent(work: Work, claim: Claim) -> WorkItem:
    """Return an item that is to go ahead to the claim's worker, and is not sent yet."""
    work.put(item())
    taken = work.take_ahead(claim)
    assert taken
    return taken


@pytest.mark.parametrize("unsent", [False, True])
def test_a_worker_without_an_item_gets_one_that_is_ahead(lined: Lined, unsent: bool) -> None:
    work, running = lined
    claim = running()
    first, second = sent(work, claim, 2)
    third = taken_but_unsent(work, claim) if unsent else None
    free = entered(work)
    assert work.take(free) is first, "the one that waits for longest"
    assert first.future.running()
    work.close()
    assert work.take(free) is second
    if third:
        assert work.take(free) is third
        assert claim.send(third, ChannelMessage(ITEM)), "and nothing is sent"
    with pytest.raises(BlockingIOError):
        read(claim)
    assert work.take(free) is None


def test_what_its_worker_has_read_is_not_to_be_had(lined: Lined) -> None:
    work, running = lined
    claim = running()
    first, second, third = sent(work, claim, 3)
    assert read(claim) == b"0"
    assert not claim.take_back(first)
    assert not first.future.cancel()
    assert claim.take_back(second)
    assert read(claim) == b"2", "the others stay, in their order"
    assert not claim.take_back(third)
    assert not claim.take_back(second)


class OpenLine:
    """The worker's end of a line; the worker reads on while the executor looks through it.

    `reads`: whether it does so after each packet that the executor has taken.
    """

    def __init__(self, end: socket.socket, reads: Iterator[bool]) -> None:
        self._end = end
        self._reads = reads
        self.numbers: list[int] = []
        self._receiver = ItemReceiver(end, WorkerChannel(end))

    def recv(self, size: int, flags: int) -> bytes:
        try:
            return self._end.recv(size, flags)
        finally:
            if next(self._reads, False):
                self.read_on()

    def read_on(self) -> None:
        """Let the worker read the next item, if there is one now."""
        with suppress(BlockingIOError):
            self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            message = self._receiver.receive()
            assert message
            self.numbers.append(message.number)

    def close(self) -> None:
        self._end.close()


@pytest.mark.parametrize("reads", [*itertools.product([False, True], repeat=3)])
@pytest.mark.parametrize("wanted", range(3))
def test_each_item_is_run_once_and_answered_as_itself_whatever_its_worker_reads_meanwhile(
    lined: Lined, wanted: int, reads: tuple[bool, ...]
) -> None:
    work, running = lined
    claim = running()
    assert claim.line
    assert claim.runs
    items = sent(work, claim, 3)
    line = OpenLine(claim.line.theirs, iter(reads))
    claim.line.theirs = cast(socket.socket, line)
    taken = claim.take_back(items[wanted])
    for _ in items:
        line.read_on()
    left = [one for one in items if not (taken and one is items[wanted])]
    assert sorted(line.numbers) == [one.number for one in left]
    claim.answers(work)
    for number in line.numbers:
        (item,) = (one for one in left if one.number == number)
        claim.answers(work, item)
        assert item.future.place is None
    assert claim.runs is None
    if taken:
        work.readmit(items[wanted])
    work.close()
    assert work.done is not taken


def test_a_second_answer_to_the_same_item_is_nobodys(lined: Lined) -> None:
    work, running = lined
    claim = running()
    (one,) = sent(work, claim, 1)
    first = claim.runs
    assert first
    assert claim.answers(work) is one
    assert work.answered(claim, one, first.number) == (None, one)
    work.close()
    assert not work.done
    assert claim.answers(work) is None
    assert work.done


def test_what_comes_later_does_not_keep_what_is_ahead_waiting_for_long(
    lined: Lined, clock: Time
) -> None:
    work, running = lined
    claim, other = running(), running()
    first, second = sent(work, claim, 2)
    later = [item() for _ in range(4)]
    for one in later:
        work.put(one)
    assert work.take_ahead(other) is later[0]
    clock.now = AHEAD_TOO_LONG
    assert work.take_ahead(other) is first, "for one that runs another"
    assert work.take(entered(work)) is second, "and for one that runs none"
    assert work.take(entered(work)) is later[1]


@pytest.mark.parametrize("unsent", [False, True])
def test_what_is_ahead_can_be_cancelled(lined: Lined, unsent: bool) -> None:
    work, running = lined
    claim = running()
    first, second = sent(work, claim, 2)
    if unsent:
        assert taken_but_unsent(work, claim).future.cancel()
    assert first.future.cancel()
    assert first.future.cancelled()
    assert first.future.cancel(), "again"
    assert read(claim) == b"1"
    assert claim.answers(work) is second
    assert not second.future.cancel()
    work.close()
    assert work.take(claim) is None
    wait([first.future], 60)


def test_what_is_ahead_is_cancelled_with_all_that_waits(lined: Lined) -> None:
    work, running = lined
    claim = running()
    first, second, third = sent(work, claim, 3)
    assert read(claim) == b"0"
    work.close(cancel=True)
    work.drop()
    assert (second.future.cancelled(), third.future.cancelled()) == (True, True)
    assert claim.answers(work) is first
    assert claim.answers(work) is None
    assert work.done


def test_what_is_put_back_from_ahead_fails_and_is_cancelled_with_the_others(lined: Lined) -> None:
    work, running = lined
    claim = running()
    first, second = sent(work, claim, 2)
    assert claim.take_back(second)
    work.close(cancel=True)
    work.readmit(second)
    work.drop()
    assert second.future.cancelled()
    assert first.future.cancelled()
    assert claim.answers(work) is None
    assert work.done


def test_what_is_put_back_after_a_failure_fails(lined: Lined) -> None:
    work, running = lined
    claim = running()
    (only,) = sent(work, claim, 1)
    work.fail(BrokenGpuExecutorError("no more"))
    assert not only.future.done()
    assert claim.take_back(only)
    work.readmit(only)
    assert isinstance(only.future.exception(0), BrokenGpuExecutorError)


def test_a_large_item_does_not_go_ahead(lined: Lined) -> None:
    work, running = lined
    claim = running()
    large, small = item(), item()
    work.put(large)
    work.put(small)
    assert work.take_ahead(claim) is large
    message = ChannelMessage(ITEM, bytes(PACKET))
    assert not claim.send(large, message)
    large.message = message
    work.readmit(large)
    assert work.take_ahead(claim) is None, "nothing overtakes it"
    assert claim.answers(work) is None
    assert work.take(claim) is large


def test_what_is_lost_on_the_way_back_into_a_line_that_is_shut_was_not_read(lined: Lined) -> None:
    work, running = lined
    claim = running()
    first, second = sent(work, claim, 2)
    assert claim.line
    claim.line.shut()
    assert claim.take_back(second)
    assert not claim.line.unread(first.number + 100)
    assert claim.line.unread(first.number)
