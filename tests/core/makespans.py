"""A pretend machine with a clock, which runs a list of jobs as the core says and tells how long.

Simulated: jobs take the memory and the part of a card's computing that they are drawn with. Those
on one card slow each other down as far as they would compute more than the card can, and not else.
The memory of a card comes back some time after its last job has ended.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Ended,
    Event,
    GangGranted,
    Granted,
    Launch,
    MemoryPeaked,
    ReserveGang,
    Submitted,
)
from gpulaunch.core.facts import AttemptStarted, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Demand, End, Exited, Failure, Gpu, Instant, Job
from gpulaunch.core.run import Run
from tests.core.options import config
from tests.core.world import GIB, pretend_gpus

CARD = 80 * GIB
FAILS_AFTER = 0.2
"""The part of its time after which a job runs out of memory that does."""


@dataclass(frozen=True)
class Load:
    """What a job really takes: seconds alone on its card, bytes, and its part of the computing."""

    seconds: float
    memory: int
    busy: float


@dataclass
class Workload:
    """A drawn list of jobs on so many cards, and what each job really takes."""

    cards: int
    jobs: tuple[Job, ...]
    loads: Mapping[str, Load]

    def alone(self) -> Workload:
        """The same list, each job with its card alone."""
        jobs = [replace(j, demand=Demand(j.demand.gpus, cpus=j.demand.cpus)) for j in self.jobs]
        return Workload(self.cards, tuple(jobs), self.loads)

    def learning(self) -> Workload:
        """The same list; those that share learn their memory, kind by kind."""
        jobs = [
            replace(j, demand=replace(j.demand, gpu_memory=0, kind=j.group))
            if j.demand.share
            else j
            for j in self.jobs
        ]
        return Workload(self.cards, tuple(jobs), self.loads)

    def mixed(self, seed: int) -> Workload:
        """The same list; of those that share, kinds do so by numbers, by `per_gpu`, or learn."""
        ways = [
            Demand(share=True, per_gpu=0, gpu_memory=10 * GIB),
            Demand(share=True, per_gpu=0, kind=0),
            Demand(per_gpu=2),
            Demand(per_gpu=3),
        ]
        rng, kinds = random.Random(seed), sorted({job.group for job in self.jobs})
        chosen = {kind: rng.choice(ways) for kind in kinds}

        def demand(job: Job) -> Demand:
            way = chosen[job.group]
            if not job.demand.share:
                return job.demand
            if way.kind is not None:
                return replace(way, kind=job.group)
            return way if way.per_gpu else replace(way, gpu_memory=job.demand.gpu_memory)

        jobs = [replace(job, demand=demand(job)) for job in self.jobs]
        return Workload(self.cards, tuple(jobs), self.loads)

    def bound(self) -> float:
        """Seconds that no schedule undercuts: by the longest job, by memory, and by computing."""
        work = compute = longest = 0.0
        for job in self.jobs:
            load, gpus = self.loads[job.name], job.demand.gpus
            longest = max(longest, load.seconds)
            part = load.memory / CARD if job.demand.share else 1.0
            busy = load.busy if job.demand.share else 1.0
            work += gpus * part * load.seconds
            compute += gpus * busy * load.seconds
        return max(longest, work / self.cards, compute / self.cards)


def drawn(seed: int) -> Workload:
    """Draw a mixed list: kinds of small jobs that share, some large ones, some that need cards."""
    rng = random.Random(seed)
    cards = rng.choice([1, 2, 4, 8])
    jobs: list[Job] = []
    loads: dict[str, Load] = {}
    for kind in range(rng.randint(1, 4)):
        memory, busy = rng.choice([3, 6, 10, 20, 38]) * GIB, rng.choice([0.1, 0.25, 0.4, 0.7])
        seconds = rng.choice([30.0, 120.0, 600.0])
        for number in range(rng.randint(4, 30)):
            spread = rng.uniform(0.7, 1.0)
            name = f"k{kind}-{number:02}"
            loads[name] = Load(seconds * rng.uniform(0.5, 1.5), int(memory * spread), busy)
            demand = Demand(1, memory, 0, share=True)
            jobs.append(Job(name, "true", group=kind, demand=demand))
    for number in range(rng.choice([0, 0, 2, 5])):
        gpus = rng.choice([1, 1, min(2, cards)])
        name = f"whole-{number}"
        loads[name] = Load(rng.uniform(60.0, 900.0), 70 * GIB, 1.0)
        jobs.append(Job(name, "true", group=9, demand=Demand(gpus)))
    rng.shuffle(jobs)
    return Workload(cards, tuple(jobs), loads)


@dataclass
class _Live:
    launch: Launch
    left: float
    began: float
    fails: bool = False


@dataclass
class Machine:
    """Runs a workload to its end. `seconds`: how long that took; `crowded`: most jobs on a card;
    `failures`: attempts that found no memory, and went again.

    `drains`: seconds until the memory of a card is back. `wasted`: what ran beside others, and
    began after a card became free that stayed idle, each with that card.
    """

    workload: Workload
    drains: float = 0.0
    seconds: float = 0.0
    crowded: int = 0
    failures: int = 0
    wasted: list[str] = field(default_factory=list)
    _live: dict[AttemptId, _Live] = field(default_factory=dict)
    _idle_since: dict[str, float] = field(default_factory=dict)
    _due: list[tuple[float, int, Event]] = field(default_factory=list)
    _told: int = 0

    def __post_init__(self) -> None:
        self.gpus = pretend_gpus(self.workload.cards)
        self._idle_since = {gpu.uuid: 0.0 for gpu in self.gpus}
        ledger = Ledger()
        ledger.apply(RunOpened("r", "r", 1, "0", "h", "b", 1, self.gpus), self._now)
        self.run = Run(self.gpus, config(), ledger)
        self._tell(Submitted(self.workload.jobs))
        while self._live or self._due:
            self._go_on()
        assert self.run.finished, "jobs wait though nothing runs"

    @property
    def _now(self) -> Instant:
        return Instant(1000.0 + self.seconds, self.seconds)

    def _tell(self, *events: Event) -> None:
        queue = list(events)
        while queue:
            for result in self.run.handle([queue.pop(0)], self._now):
                queue += self._carry_out(result)

    def _carry_out(self, result: object) -> Sequence[Event]:
        match result:
            case Acquire(gpu):
                return [Granted(gpu, CARD)]
            case Drain(gpu):
                if not self.drains:
                    return [Drained(gpu, CARD)]
                self._told += 1
                due = self.seconds + self.drains
                heapq.heappush(self._due, (due, self._told, Drained(gpu, CARD)))
            case ReserveGang(on=True):
                return [GangGranted()]
            case Launch(attempt, job):
                load = self.workload.loads[job.name]
                live = self._live[attempt] = _Live(result, load.seconds, self.seconds)
                for gpu in result.gpus:
                    self._idle_since.pop(gpu.uuid, None)
                    on = self._on(gpu)
                    self.crowded = max(self.crowded, len(on))
                    taken = sum(self.workload.loads[one.launch.job.name].memory for one in on)
                    live.fails = live.fails or taken > CARD
                if live.fails:
                    self.failures += 1
                    live.left *= FAILS_AFTER
                peak = [MemoryPeaked(attempt, load.memory)] if job.demand.kind is not None else []
                return [AttemptStarted(attempt, 7), *peak]
        return []

    def _on(self, gpu: Gpu) -> list[_Live]:
        return [live for live in self._live.values() if gpu in live.launch.gpus]

    def _rate(self, live: _Live) -> float:
        """How fast a job advances beside those on its cards; 1: as it does alone."""
        loads = self.workload.loads
        busy = [
            sum(loads[one.launch.job.name].busy for one in self._on(gpu))
            for gpu in live.launch.gpus
        ]
        return min(1.0, 1.0 / max(busy))

    def _go_on(self) -> None:
        """Let the time pass until the next job ends, or the memory of a card is back."""
        rates = {attempt: self._rate(live) for attempt, live in self._live.items()}
        ends = min(((live.left / rates[a], a) for a, live in self._live.items()), default=None)
        drained = self._due[0][0] - self.seconds if self._due else None
        step = min(each for each in (ends and ends[0], drained) if each is not None)
        self.seconds += step
        self._look_for_waste()
        for attempt, live in self._live.items():
            live.left -= step * rates[attempt]
        if ends is None or (drained is not None and drained <= ends[0]):
            self._tell(heapq.heappop(self._due)[-1])
            return
        gone = self._live.pop(ends[1])
        for gpu in gone.launch.gpus:
            if not self._on(gpu):
                self._idle_since[gpu.uuid] = self.seconds
        out_of_memory = End(Exited(1), Failure("gpu_oom", "CUDA out of memory"))
        self._tell(Ended(ends[1], out_of_memory if gone.fails else End(Exited(0))))

    def _look_for_waste(self) -> None:
        """Note who runs beside others, and could have been on a card that is idle all the time.

        A card that is kept for a job which needs several is no such card.
        """
        for uuid, since in self._idle_since.items():
            kept = self.run._state.cards[uuid].reservations
            if kept or self.seconds <= since + 1.001 * self.drains:
                continue
            for other in self.gpus:
                beside = [live for live in self._on(other) if live.began >= since]
                if len(self._on(other)) > 1 and beside:
                    name = beside[-1].launch.attempt
                    self.wasted.append(f"{name} is on {other.uuid}, {uuid} idle since {since}")
