"""Ready jobs in the order in which they start: one heap for each distinct demand.

Placement treats jobs of equal demand alike: when the first cannot start, none can. So a pass looks
at the first job of each heap alone, however many jobs wait.
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

BlockedOn: TypeAlias = Literal["tokens", "room", "cpus", "cards", "turn"]
"""What a ready job lacks: tokens, room for a service and its dependants, CPUs, cards, or its turn
in the engine's queue."""

UNCOUNTED = 1 << 30
"""A job's blockers before they are counted: so many that settled jobs cannot bring them to 0."""

NOBODY: set[Node] = cast("set[Node]", frozenset())
NOTHING: Counter[Demand] = cast("Counter[Demand]", MappingProxyType({}))
"""Empty values that all jobs but services share; they cannot be changed."""

WAITING = frozenset({"blocked", "delayed", "idle", "asking", "ready"})


@dataclass(slots=True, eq=False)
class Node:
    """A job with its neighbours in the graph. `order` is its place in the job file.

    `skipped`: how many later jobs took what it waits for; `blocked_on`: what that is, other than
    jobs. `blockers`: how many jobs it waits for. `unknown`: a need that is not in the file.
    `excluded`: this supervisor leaves it as it is; `state` is then `settled`, whatever is recorded.
    `fresh_from`: attempts numbered from here are this supervisor's own. `demand_asked` is the
    demand that the job file states; a retry may need something else. `dependants` need it,
    `followers` come after it.

    For a service: `waiters` are the jobs that ask for it; `borrowed_key` is the key of the most
    urgent of them; `open`: how many dependants are not settled; `demands` counts the demands of
    jobs that need it; `companions` are the services that some dependant needs besides it.
    """

    job: Job
    order: int
    state: NodeState = "blocked"
    borrowed_key: Key | None = None
    blockers: int = UNCOUNTED
    skipped: int = 0
    blocked_on: BlockedOn | None = None
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
        # Other jobs, of which there may be a hundred thousand, share the empty ones.
        if self.job.service is not None:
            self.waiters, self.demands, self.companions = set(), Counter(), set()

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def key(self) -> Key:
        """The job's sort key: less comes first. Computed, as stored keys would take megabytes."""
        if self.borrowed_key is not None:
            return self.borrowed_key
        job = self.job
        # Not -0.0, which would be another number for every job.
        return (-job.priority, 0.0 - job.cost or 0.0, 0.0 - job.expected or 0.0, self.order)


def is_extra(node: Node) -> bool:
    """Whether no job but services needs this service: it runs while other jobs last."""
    return node.job.service is not None and not node.demands


class DemandQueue:
    """Ready jobs of one demand, as a heap. `peek` drops entries of jobs that are not ready now."""

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
        """Yield ready jobs in the order of their keys, one demand's head at a time.

        After a job that was parked or started, the next of its demand follows. A job that is left
        as it was blocks its whole demand for this pass.
        """
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
        """Return the first job of each demand that the same worker could serve."""
        alike = [queue for known, queue in self._queues.items() if known.same_seat(demand)]
        return [node for queue in alike if (node := queue.peek()) is not None]

    def park(self, node: Node) -> None:
        """Remove the head until `unpark`, so that the pass goes on with the next of its demand."""
        self._queues[node.job.demand].pop()
        self._parked.append(node)

    def unpark(self) -> None:
        parked, self._parked = self._parked, []
        for node in parked:
            self.push(node)
