"""Ready jobs in the order in which they start: one heap for each distinct demand.

Jobs of equal demand are alike to placement: when the first cannot start, none can. So a pass over
the heads alone decides, however many jobs wait.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from gpulaunch.core.model import AttemptId, Demand, Job

Key: TypeAlias = tuple[int, float, float, int]
NodeState: TypeAlias = Literal[
    "settled", "blocked", "delayed", "idle", "asking", "ready", "running"
]
"""Where a job is. Five kinds of waiting: `blocked` by needs and after, `delayed` by a retry,
`asking` for its services, `idle` (a service that nobody asks for), `ready` for cards."""

UNCOUNTED = 1 << 30
"""Blockers of a job before they are counted: whatever is settled meanwhile, it cannot come up."""

NOBODY: set[Node] = cast("set[Node]", frozenset())
NOTHING: Counter[Demand] = cast("Counter[Demand]", MappingProxyType({}))
"""What every job has of these that is no service; they cannot be changed."""

WAITING = frozenset({"blocked", "delayed", "idle", "asking", "ready"})


@dataclass(slots=True, eq=False)
class Node:
    """A job with its neighbours. `skipped` counts later jobs that started before it.

    `excluded`: this round leaves it as it is; `state` is then `settled`, whatever is recorded.
    `fresh_from`: attempts numbered from here are this supervisor's own. `demand_asked` is the
    demand that the job file states; a retry may need something else. `borrowed_key` is the key of
    a job that has asked for this service: its turn.

    For a service: `waiters` wait for it alone, `open` dependants are not settled, `demands` says
    what those will take, `companions` are the services that some dependant needs besides it.
    """

    job: Job
    order: int
    state: NodeState = "blocked"
    borrowed_key: Key | None = None
    blockers: int = UNCOUNTED
    skipped: int = 0
    blocked_on: str = ""
    excluded: bool = False
    fresh_from: int = 1
    needs: tuple[Node, ...] = ()
    services: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()
    unknown: str = ""
    dependants: tuple[Node, ...] = ()
    followers: tuple[Node, ...] = ()
    waiters: set[Node] = NOBODY
    open: int = 0
    demands: Counter[Demand] = field(default_factory=lambda: NOTHING)
    companions: set[Node] = NOBODY
    ready: bool = False
    attempt: AttemptId | None = None
    demand_asked: Demand = field(default_factory=Demand)

    def __post_init__(self) -> None:
        # The others, of which there may be a hundred thousand, need no empty ones of their own.
        if self.job.service is not None:
            self.waiters, self.demands, self.companions = set(), Counter(), set()

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def key(self) -> Key:
        """Less comes first. Made when asked for: kept, those of a long list would be megabytes."""
        if self.borrowed_key is not None:
            return self.borrowed_key
        job = self.job
        # Not -0.0, which would be another number for every job.
        return (-job.priority, 0.0 - job.cost or 0.0, 0.0 - job.expected or 0.0, self.order)


def is_extra(node: Node) -> bool:
    """A service that no job needs, but for services: it runs beside the others while they last."""
    return node.job.service is not None and not node.demands


class DemandQueue:
    """Ready jobs of one demand. Entries of jobs that left or changed their key are passed over."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self._heap: list[tuple[int, float, float, int, int, Node]] = []  # a key, order, node

    def push(self, node: Node) -> None:
        heapq.heappush(self._heap, (*node.key, node.order, node))

    def peek(self) -> Node | None:
        while self._heap:
            *key, _, node = self._heap[0]
            if node.state == "ready" and node.job.demand == self.demand and node.key == tuple(key):
                return node
            heapq.heappop(self._heap)
        return None

    def pop(self) -> None:
        heapq.heappop(self._heap)


class WaitingJobs:
    """All ready jobs. `heads` iterates over them in order while a pass parks or starts them."""

    def __init__(self) -> None:
        self._queues: dict[Demand, DemandQueue] = {}
        self._parked: list[Node] = []

    def push(self, node: Node) -> None:
        queue = self._queues.get(node.job.demand)
        if queue is None:
            queue = self._queues[node.job.demand] = DemandQueue(node.job.demand)
        queue.push(node)

    def __bool__(self) -> bool:
        return any(queue.peek() for queue in self._queues.values())

    def heads(self) -> Iterator[Node]:
        """Ready jobs, best first. After `park` or a start the next of that demand follows;
        a job left as it was blocks its whole demand for this pass."""
        heap: list[tuple[Key, int, DemandQueue, Node]] = []
        for demand, queue in list(self._queues.items()):
            node = queue.peek()
            if node is None:
                del self._queues[demand]
            else:
                heap.append((node.key, node.order, queue, node))
        heapq.heapify(heap)
        while heap:
            _, _, queue, node = heapq.heappop(heap)
            following = queue.peek()
            if following is node:
                yield node
                following = queue.peek()
            if following is not None and following is not node:
                heapq.heappush(heap, (following.key, following.order, queue, following))

    def first_like(self, demand: Demand) -> list[Node]:
        """Of the jobs that the same worker could take, the first of each queue."""
        alike = [queue for known, queue in self._queues.items() if known.same_seat(demand)]
        return [node for queue in alike if (node := queue.peek()) is not None]

    def park(self, node: Node) -> None:
        """Take the head aside until `unpark`: what becomes of it says nothing of those alike."""
        self._queues[node.job.demand].pop()
        self._parked.append(node)

    def unpark(self) -> None:
        parked, self._parked = self._parked, []
        for node in parked:
            self.push(node)
