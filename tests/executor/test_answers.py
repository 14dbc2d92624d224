"""A worker's thread with a worker of the test's own behind it: whose is an answer, and an item?"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from gpulaunch.core.model import AttemptId, Exited
from gpulaunch.executor import WorkerDiedError, transfer
from gpulaunch.executor.channel import (
    HELLO,
    PACKET,
    READY,
    RESULT,
    ChannelMessage,
    ItemReceiver,
    WorkerChannel,
)
from gpulaunch.executor.future import GpuFuture
from gpulaunch.executor.item_queue import Claim, Work, WorkItem
from gpulaunch.executor.worker_handle import WorkerHandle, WorkerPlan
from gpulaunch.gpus.discover import simulated
from tests.helpers import wait_until


class Played:
    """A worker that reads and answers items when it is told to. An item multiplies by 10."""

    def __init__(self, count: int) -> None:
        self.work = Work(1, lambda: None)
        plan = WorkerPlan(ChannelMessage(HELLO), environ={}, env={}, cwd="/")
        (gpu,) = simulated(1, "tests")
        self.handle = WorkerHandle(AttemptId("worker-1", 1), gpu, plan, self.work, lambda *_: None)
        self.futures: list[GpuFuture[int]] = [GpuFuture() for _ in range(count)]
        for n, future in enumerate(self.futures):
            self.work.put(WorkItem(future, abs, (n,), {}))
        self.work.enter(self.handle.claim)
        self.handle.thread.start()
        link = self.handle.theirs
        _, (*streams, line), _, _ = socket.recv_fds(link, 1, 3)
        for fd in streams:
            os.close(fd)
        self.line = socket.socket(fileno=line)
        self.channel = WorkerChannel(link)
        self.items = ItemReceiver(self.line, self.channel)
        self.channel.receive()
        self.channel.send(ChannelMessage(READY))

    def reads(self) -> ChannelMessage:
        item = self.items.receive()
        assert item
        return item

    def answers(self, item: ChannelMessage) -> None:
        _, (n,), _ = transfer.value_of(item)
        self.channel.send(transfer.message(RESULT, 10 * n, to_worker=False, number=item.number))

    def dies(self) -> None:
        """The manager hears it, which has told the line of items before."""
        self.work.void(self.handle.claim)
        self.handle.end(Exited(1))
        self.handle.thread.join(60)

    def close(self) -> None:
        self.work.close(cancel=True)
        if self.handle.thread.is_alive():
            self.dies()
        self.line.close()
        self.handle.theirs.close()
        self.handle.streams.close()


@pytest.fixture
def worker() -> Iterator[Played]:
    """A worker with four items: one that it is to run, and three ahead."""
    played = Played(4)
    wait_until(lambda: len(played.handle.claim.ahead) == 3)
    yield played
    played.close()


def test_answers_in_another_order_reach_their_own_futures(worker: Played) -> None:
    items = [worker.reads() for _ in worker.futures]
    for n in (2, 0, 3, 1):
        worker.answers(items[n])
        assert worker.futures[n].result(60) == 10 * n
    assert all(future.gpu == worker.handle.gpu for future in worker.futures)


def test_an_answer_that_comes_twice_is_nobodys(worker: Played) -> None:
    items = [worker.reads() for _ in worker.futures]
    for n in (0, 0, 2, 2, 1, 0, 3):
        worker.answers(items[n])
    assert [future.result(60) for future in worker.futures] == [0, 10, 20, 30]


def test_a_worker_that_dies_with_a_later_item_keeps_no_earlier_one(worker: Played) -> None:
    first = worker.reads()
    line = worker.handle.line
    packets = [line.theirs.recv(PACKET) for _ in range(2)]  # the executor looks through the line
    worker.reads()
    for packet in packets:
        line._ours.send(packet)
    worker.answers(first)
    assert worker.futures[0].result(60) == 0
    worker.dies()
    assert isinstance(worker.futures[3].exception(60), WorkerDiedError)
    assert [future.done() for future in worker.futures] == [True, False, False, True]
    successor = Claim()
    worker.work.enter(successor)
    for future in worker.futures[1:3]:
        item = worker.work.take(successor)
        assert item
        assert item.future is future
