"""Jobs that share a card, and what they take of its memory in the pretend world."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpulaunch.core.events import Event, Launch, MemoryPeaked, Relisted, Submitted
from gpulaunch.core.facts import AttemptEnded, Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Demand, Job

GIB = 1 << 30


def sharing(jobs: Sequence[Job], rng: random.Random, part: float) -> tuple[Job, ...]:
    """The same jobs; of those with a card, such a part shares, and some learn what they take."""
    return tuple(shared(job, rng, part) for job in jobs)


def shared(job: Job, rng: random.Random, part: float) -> Job:
    """The job, perhaps with a share of a card instead of a card."""
    demand, one = job.demand, random.Random(f"{job.group} {rng.random() < 0.8}")
    if not demand.gpus or rng.random() >= part:
        return job
    learns = demand.gpus == 1 and job.service is None and one.random() < 0.6
    memory = one.choice([5, 10, 30, 60]) * GIB
    demand = replace(
        demand,
        share=True,
        per_gpu=one.choice([0, 0, 0, 2, 3]),
        gpu_memory=0 if learns else memory,
        kind=job.group if learns else None,
        avoid=frozenset(),
    )
    return replace(job, demand=demand, learned=one.choice([0, 0, memory]) if learns else 0)


@dataclass
class CardShares:
    """What the world saw of the shares of one run's jobs. `outgrew`: what took more than promised.

    `taught`: bytes that each job's success told, by kind and job; `hinted`: kinds of which earlier
    runs told something.
    """

    promised: dict[AttemptId, int] = field(default_factory=dict)
    took: dict[AttemptId, int] = field(default_factory=dict)
    kinds: dict[AttemptId, int] = field(default_factory=dict)
    leaders: dict[AttemptId, AttemptId] = field(default_factory=dict)
    hinted: set[int | None] = field(default_factory=set)
    taught: dict[int, dict[str, int]] = field(default_factory=dict)
    unlike: int = 0
    learned: int = 0
    outgrew: int = 0

    def crashed(self, jobs: Sequence[Job], ledger: Ledger) -> None:
        """Forget what jobs told that the next supervisor does not find in its list or journal."""
        kinds = {job.name: job.demand.kind for job in jobs if job.name in ledger.jobs}
        for kind, told in self.taught.items():
            for name in [name for name in told if kinds.get(name) != kind]:
                del told[name]

    def launched(self, launch: Launch) -> None:
        """Note what the attempt is promised."""
        self.promised[launch.attempt] = launch.promised
        if launch.job.demand.kind is not None:
            self.kinds[launch.attempt] = launch.job.demand.kind
            self.learned += launch.promised > 0

    def goes_on(self, attempt: AttemptId, leader: AttemptId) -> None:
        """Note that it begins in the worker of another, whose memory may be known by now."""
        self.leaders[attempt] = leader

    def check_launch(
        self, launch: Launch, running: Sequence[tuple[Demand, AttemptId]], idle: Sequence[Demand]
    ) -> None:
        """Check that the attempt may be beside these attempts and idle workers on a card.

        By the words of their demands alone.
        """
        name, demand = f"Launch({launch.attempt})", launch.job.demand
        told = {} if demand.kind is None else self.taught.get(demand.kind, {})
        known = max(told.values(), default=0)
        if known and demand.share and launch.worker is None:
            least = min(known, *(gpu.memory for gpu in launch.gpus))
            assert launch.promised >= least, f"{name}: its kind took more than it is promised"
        demands = [demand, *(other for other, _ in running), *idle]
        if len(demands) == 1:
            return
        for each, attempt in [(demand, launch.attempt), *running]:
            known = each.kind is None or each.kind in self.hinted
            known = known or self.promised[attempt] > 0 or self._of_kind(attempt) > 0
            assert known, f"{name}: nobody knows what {attempt} takes"
        assert all(d.share or d.per_gpu > 1 for d in demands), f"{name} beside {demands[1:]}"
        if any(each.share for each in demands):
            assert all(each.share for each in demands), f"{name} beside {demands[1:]}"
            most = min((each.per_gpu for each in demands if each.per_gpu), default=99)
        else:
            assert len({each.per_gpu for each in demands}) == 1, f"{name} beside {demands[1:]}"
            most = demand.per_gpu
        assert len(demands) <= most, f"{name} beside {demands[1:]}"
        self.unlike += len({(each.gpu_memory, each.kind) for each in demands}) > 1

    def weight(self, attempt: AttemptId) -> int:
        """Bytes that others have to leave to the attempt, which shares its card."""
        own = self.promised.get(attempt, 0) or self._of_kind(attempt)
        return max(own, self.took.get(attempt, 0))

    def _of_kind(self, attempt: AttemptId) -> int:
        """Bytes that a job of its kind is known to take, also of those that began before that."""
        told = self.taught.get(self.kinds.get(attempt, -1), {})
        leader = self.leaders.get(attempt)
        return max(*told.values(), 0, 0 if leader is None else self.weight(leader))

    def grow(self, attempt: AttemptId, job: Job, rng: random.Random) -> list[Event]:
        """What the run is told of what an attempt takes that has just started."""
        if job.demand.kind is None or rng.random() < 0.1:
            return []
        usual = 10 + 8 * job.demand.kind
        looks = sorted(rng.choice([1, usual, usual, 2 * usual]) * GIB for _ in range(2))
        return [MemoryPeaked(attempt, took) for took in looks]

    def hear(self, event: Event) -> None:
        """Note what the run is told just now."""
        if isinstance(event, Submitted | Relisted):
            self.hinted |= {job.demand.kind for job in event.jobs if job.learned}
        if not isinstance(event, MemoryPeaked) or event.attempt not in self.promised:
            return
        promised = self.promised[event.attempt]
        self.took[event.attempt] = max(event.memory, self.took.get(event.attempt, 0))
        self.outgrew += 0 < promised < event.memory

    def see(self, fact: Fact, ledger: Ledger) -> None:
        """Note what the run records, which the ledger has taken in."""
        if not isinstance(fact, AttemptEnded) or fact.attempt not in self.kinds:
            return
        if ledger.attempt(fact.attempt).state == "succeeded":
            told = self.taught.setdefault(self.kinds[fact.attempt], {})
            told[fact.attempt.job] = max(fact.end.gpu_memory, told.get(fact.attempt.job, 0))
