"""Ready jobs in the order in which they start: one heap for each distinct demand.

Placement treats jobs of equal demand alike: when the first cannot start, none can. So a pass looks
at the first job of each heap alone, however many jobs wait.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from gpulaunch.core.model import AttemptId, Demand, ImageSource, Job

Key: TypeAlias = tuple[int, float, float, int]
Entry: TypeAlias = "tuple[int, float, float, int, int, Node]"
"""A ready job's entry in the heap of its demand: its key, its order, itself."""
BlockedOn: TypeAlias = Literal["tokens", "room", "cpus", "memory", "cards", "turn"]
"""What a ready job lacks: tokens, room for a service and its dependants, CPUs, the host's memory,
cards, or its turn in the engine's queue."""
HELD_BY_WORKERS: frozenset[BlockedOn | None] = frozenset({"cards", "room", "memory"})
"""What a job may lack because an idle worker has it."""

UNCOUNTED = 1 << 30
"""A job's blockers before they are counted: so many that settled jobs cannot bring them to 0."""


class Blocked(Struct, frozen=True):
    """The job waits for the jobs of its needs and after; `by` is how many are left."""

    by: int = UNCOUNTED


class Delayed(Struct, frozen=True):
    """The job is tried again at `until` (monotonic seconds)."""

    until: float


class NotDue(Struct, frozen=True):
    """The job does not start before `at` (seconds since 1970)."""

    at: float


class AwaitingImage(Struct, frozen=True):
    """The image of the job's container is not there yet."""

    source: ImageSource


class Idle(Struct, frozen=True):
    """A service that no job asks for yet."""


class Asking(Struct, frozen=True):
    """The job waits until these services are ready."""

    services: tuple[Node, ...]


class Ready(Struct, frozen=True):
    """The job may start. `lacks`: what keeps it; `skipped`: how many later jobs took that."""

    skipped: int = 0
    lacks: BlockedOn | None = None


class Launched(Struct, frozen=True):
    """The job's attempt has not ended. `answers`: it is a service, which those that need it use."""

    attempt: AttemptId
    answers: bool = False


class Settled(Struct, frozen=True):
    """The job is over, or this supervisor leaves it as it is."""


NodeState: TypeAlias = (
    Blocked | Delayed | NotDue | AwaitingImage | Idle | Asking | Ready | Launched | Settled
)
Waiting = (Blocked, Delayed, NotDue, AwaitingImage, Idle, Asking, Ready)
"""The states of a job that waits, for `isinstance`."""
FOCUSED = (Ready, Asking)
"""The states in which a job may stay the only one that may start."""

UNKNOWN, IDLE, READY, SETTLED = Blocked(), Idle(), Ready(), Settled()
"""States that all jobs share, of which there may be a hundred thousand."""

TRANSITIONS: Mapping[type[NodeState], tuple[type[NodeState], ...]] = {
    Blocked: (*Waiting, Launched, Settled),
    Delayed: (*Waiting, Settled),
    NotDue: (*Waiting, Settled),
    AwaitingImage: (Blocked, NotDue, Idle, Asking, Ready, Settled),
    Idle: (Blocked, NotDue, AwaitingImage, Asking, Ready, Settled),
    Asking: (Blocked, NotDue, Idle, Asking, Ready, Settled),
    Ready: (Blocked, NotDue, Idle, Asking, Ready, Launched, Settled),
    Launched: (Blocked, Launched, Settled),
    Settled: (Blocked,),
}
"""The legal transitions of a job; `docs/design/life.md` says when each comes about."""


class Links(Struct, frozen=True):
    """The jobs that a job waits for. `unknown`: a need that is not in the list.

    `needs` are without the `services` that it needs.
    """

    needs: tuple[Node, ...] = ()
    services: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()
    unknown: str = ""

    @property
    def required(self) -> tuple[Node, ...]:
        """All that must do well for this job to run."""
        return self.needs + self.services


class Serving(Struct, eq=False):
    """Whom a service serves.

    `waiters` are the jobs that ask for it; `borrowed_key` is the key of the most urgent of them;
    `open`: how many dependants are not settled; `demands` counts the demands of jobs that need it;
    `companions` are the services that some dependant needs besides it.
    """

    waiters: set[Node] = field(default_factory=set)
    borrowed_key: Key | None = None
    open: int = 0
    demands: Counter[Demand] = field(default_factory=Counter)
    companions: set[Node] = field(default_factory=set)

    def forget_whom(self) -> None:
        """Forget what is counted of the jobs that need the service; who waits for it, stays."""
        self.open = 0
        self.demands.clear()
        self.companions.clear()


NO_LINKS, _NOBODY = Links(), Serving()


class Node(Struct, eq=False):
    """A job in the graph of jobs. `order` is its place in the list of jobs.

    `dependants` need it, `followers` come after it. `excluded`: this supervisor leaves it as it is;
    `state` is then Settled, whatever is recorded. `fresh_from`: attempts numbered from here are
    this supervisor's own. `demand_asked` is the demand that its definition states; a retry may need
    something else. `serving` is the service's own; other jobs share one that is empty. `entry`: a
    ready job's one among the waiting jobs. `renewed`: its new definition, which it takes up once
    its attempt has ended; `withdrawn`: the list has it no more, and nothing starts it again.
    """

    job: Job
    order: int
    demand_asked: Demand
    state: NodeState = UNKNOWN
    links: Links = NO_LINKS
    dependants: Sequence[Node] = ()  # a list from the first one on, as most jobs have none
    followers: Sequence[Node] = ()
    serving: Serving = field(default_factory=lambda: _NOBODY)
    excluded: bool = False
    fresh_from: int = 1
    entry: Entry | None = None
    renewed: Job | None = None
    withdrawn: bool = False

    @classmethod
    def of(cls, job: Job, order: int) -> Node:
        return cls(job, order, job.demand, serving=_NOBODY if job.service is None else Serving())

    def become(self, state: NodeState) -> None:
        """Change the job's state: the only door, which tests watch."""
        self.state = state

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def settled(self) -> bool:
        return isinstance(self.state, Settled)

    @property
    def waits(self) -> bool:
        return isinstance(self.state, Waiting)

    @property
    def lacks(self) -> BlockedOn | None:
        """What keeps a ready job from starting; None for a job in any other state."""
        return self.state.lacks if isinstance(self.state, Ready) else None

    @property
    def skipped(self) -> int:
        return self.state.skipped if isinstance(self.state, Ready) else 0

    def lack(self, what: BlockedOn | None) -> None:
        """Note what keeps the ready job from starting."""
        if self.lacks != what:
            self.become(Ready(self.skipped, what))

    @property
    def attempt(self) -> AttemptId | None:
        return self.state.attempt if isinstance(self.state, Launched) else None

    @property
    def answers(self) -> bool:
        """True for a service that those that need it can use."""
        return isinstance(self.state, Launched) and self.state.answers

    @property
    def key(self) -> Key:
        """The job's sort key: less comes first. Computed, as stored keys would take megabytes."""
        if self.serving.borrowed_key is not None:
            return self.serving.borrowed_key
        job = self.job
        # Not -0.0, which would be another number for every job.
        return (-job.priority, 0.0 - job.cost or 0.0, 0.0 - job.expected or 0.0, self.order)


def is_extra(node: Node) -> bool:
    """Tell whether no job but services needs this service: it runs while other jobs last."""
    return node.job.service is not None and not node.serving.demands


class DemandQueue:
    """Ready jobs of one demand, as a heap.

    INVARIANT: each job has one entry that counts, which it knows. An entry that was left behind
    stays in the heap until it comes first, and changes nothing.
    """

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def push(self, entry: Entry) -> None:
        heapq.heappush(self._heap, entry)

    def peek(self) -> Node | None:
        while self._heap:
            first = self._heap[0]
            if first[-1].entry is first:
                return first[-1]
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Entry:
        return heapq.heappop(self._heap)


class WaitingJobs:
    """All ready jobs. `heads` iterates over them in order while a pass parks or starts them."""

    def __init__(self) -> None:
        self._queues: dict[Demand, DemandQueue] = {}
        self._parked: list[Entry] = []
        self._counts: Counter[Demand] = Counter()
        self._claims: Counter[Demand] = Counter()

    def push(self, node: Node) -> None:
        """Add a ready job, or move it to where its key is now."""
        if node.entry is None:
            self._counts[node.job.demand] += 1
        node.entry = (*node.key, node.order, node)
        self._push(node.entry)

    def _push(self, entry: Entry) -> None:
        demand = entry[-1].job.demand
        queue = self._queues.get(demand)
        if queue is None:
            queue = self._queues[demand] = DemandQueue()
        queue.push(entry)

    def remove(self, node: Node) -> None:
        """Remove a job that is to wait for something else, or no more."""
        if node.entry is not None:
            self._counts[node.job.demand] -= 1
        node.entry = None

    def __bool__(self) -> bool:
        return any(queue.peek() for queue in self._queues.values())

    def heads(self) -> Iterator[Node]:
        """Yield ready jobs in the order of their keys, one demand's head at a time.

        After a job that was parked or started, the next of its demand follows. A job that is left
        as it was blocks its whole demand for this pass.
        """
        found: list[tuple[DemandQueue, Node]] = []
        for demand, queue in list(self._queues.items()):
            node = queue.peek()
            if node is None:
                del self._queues[demand]
            else:
                found.append((queue, node))
        if len(found) == 1:  # as in most lists, and this is asked many times in every turn
            yield from self._heads_of(*found[0])
            return
        heap = [(node.key, node.order, queue, node) for queue, node in found]
        heapq.heapify(heap)
        while heap:
            _, _, queue, node = heapq.heappop(heap)
            following = queue.peek()
            if following is node:
                yield node
                following = queue.peek()
            if following is not None and following is not node:
                heapq.heappush(heap, (following.key, following.order, queue, following))

    @staticmethod
    def _heads_of(queue: DemandQueue, head: Node) -> Iterator[Node]:
        """Yield the heads of one demand, each after what became of the one before."""
        node: Node | None = head
        while node is not None:
            yield node
            following = queue.peek()
            node = None if following is node else following

    def unclaimed(self) -> Iterator[tuple[Demand, int]]:
        """Yield each demand of ready jobs, and of how many that are not parked."""
        counts = ((demand, count - self._claims[demand]) for demand, count in self._counts.items())
        return ((demand, count) for demand, count in counts if count > 0)

    def count_like(self, demand: Demand) -> int:
        """Return the number of ready jobs that the same worker could serve."""
        counts = self._counts.items()
        return sum(count for known, count in counts if count and known.same_seat(demand))

    def first_like(self, demand: Demand) -> list[Node]:
        """Return the first job of each demand that the same worker could serve."""
        alike = [queue for known, queue in self._queues.items() if known.same_seat(demand)]
        return [node for queue in alike if (node := queue.peek()) is not None]

    def park(self, node: Node) -> None:
        """Remove the head until `unpark`, so that the pass goes on with the next of its demand."""
        self._parked.append(self._queues[node.job.demand].pop())
        self._claims[node.job.demand] += 1

    def unpark(self) -> None:
        parked, self._parked = self._parked, []
        self._claims.clear()
        for entry in parked:
            if entry[-1].entry is entry:
                self._push(entry)


class DueTimes(Struct, eq=False):
    """The jobs that are not due, those whose moment comes first before others.

    `watched`: the moment for which the timer is set. A job that waits for something else by now
    leaves its entry behind, which changes nothing.
    """

    waiting: dict[Node, None] = field(default_factory=dict)
    watched: float | None = None
    _entries: list[tuple[float, int, int, Node]] = field(default_factory=list)
    _sequence: int = 0

    def add(self, node: Node, at: float) -> None:
        self._sequence += 1
        self.waiting[node] = None
        heapq.heappush(self._entries, (at, node.order, self._sequence, node))

    def take(self, now: float) -> list[Node]:
        """Remove the entries whose moment has come; return the jobs of them that wait for it."""
        found: dict[Node, None] = {}
        while self._entries and self._entries[0][0] <= now:
            node = heapq.heappop(self._entries)[-1]
            if isinstance(node.state, NotDue) and node.state.at <= now:
                found[node] = None
        return list(found)

    @property
    def first(self) -> float | None:
        """The moment that comes first; None where no job waits for one."""
        while self._entries:
            at, _, _, node = self._entries[0]
            if node.state == NotDue(at):
                return at
            heapq.heappop(self._entries)
        return None


class ImageWaits(Struct, eq=False):
    """The images of jobs' containers: `ready` ones, and by source who is `waiting` for others.

    `asked`: those that the engine was asked for and has not answered for, each with whether it is
    being pulled.
    """

    waiting: dict[ImageSource, dict[Node, None]] = field(default_factory=dict)
    asked: dict[ImageSource, bool] = field(default_factory=dict)
    ready: set[ImageSource] = field(default_factory=set)

    def lacked_by(self, node: Node) -> ImageSource | None:
        """Return the image that has to be there before the job starts; None where it is."""
        container = node.job.container
        source = None if container is None else container.source
        return None if source in self.ready else source

    def add(self, node: Node, source: ImageSource) -> None:
        self.waiting.setdefault(source, {})[node] = None

    def remove(self, node: Node, source: ImageSource) -> None:
        del self.waiting[source][node]
        if not self.waiting[source]:
            del self.waiting[source]

    def who_waits(self, source: ImageSource) -> list[Node]:
        """Return the jobs that wait for this image, in the order of the list."""
        return sorted(self.waiting.get(source, ()), key=lambda node: node.order)


class Jobs(Struct, eq=False):
    """All jobs by name, those of them that are `services`, and what is counted of them.

    `missed`: names that the list does not have, and the jobs that wait for them all the same.

    `demands` counts the demands of unsettled jobs; `failed` keeps the order of the failures.
    `perhaps_ahead`: blocked jobs of which something has changed since they were last looked at.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    missed: dict[str, dict[Node, None]] = field(default_factory=dict)
    services: list[Node] = field(default_factory=list)
    waiting: WaitingJobs = field(default_factory=WaitingJobs)
    unsettled: int = 0
    delayed: int = 0
    failed: dict[Node, None] = field(default_factory=dict)
    demands: Counter[Demand] = field(default_factory=Counter)
    perhaps_ahead: dict[Node, None] = field(default_factory=dict)
    dues: DueTimes = field(default_factory=DueTimes)
    images: ImageWaits = field(default_factory=ImageWaits)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def add(self, job: Job) -> Node:
        """Add a job as the last one of the list, and return its node."""
        node = self.nodes[job.name] = Node.of(job, len(self.nodes))
        if job.service is not None:
            self.services.append(node)
        return node
