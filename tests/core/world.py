"""A strict pretend outside world for the core: it fails on any instruction that is not legal now.

Time is pretended; every answer comes in an order that the history's seed chooses. Several runs may
share one world: leases are exclusive, a wanted card is handed over, one run gathers. A supervisor
may be stopped and go on: meanwhile its leases are let go, but where something of it runs.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from gpulaunch.base.wording import card_reason
from gpulaunch.core.cards import HANDED_OVER
from gpulaunch.core.causes import Because, EndCause, Hint, Quoted
from gpulaunch.core.events import (
    Acquire,
    AllowanceFreed,
    AllowanceSpent,
    Asked,
    Cancel,
    Drain,
    Drained,
    DrainGpus,
    Elsewhere,
    Ended,
    EndWorker,
    Event,
    Freed,
    GangGranted,
    GoOn,
    GpuEvent,
    Granted,
    HeldIdle,
    HolderChanged,
    Instruction,
    Launch,
    Misplaced,
    Occupied,
    Pause,
    PullImage,
    Refused,
    Release,
    ReserveGang,
    Retry,
    SetTimer,
    Sick,
    Stop,
    StopAttempt,
    Submitted,
    TakeBack,
    Timer,
    TimerFired,
    Unanswered,
    WantCards,
    Wanted,
    WorkerEnded,
)
from gpulaunch.core.facts import (
    AttemptStarted,
    AttemptWarned,
    Fact,
    JobRequeued,
    RunOpened,
    ServiceReady,
)
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    End,
    Exited,
    Failure,
    Gpu,
    ImageSource,
    Instant,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    SentWarning,
    Signaled,
    Stopped,
    TimedOut,
)
from gpulaunch.core.placement import is_kind
from gpulaunch.core.reasons import FailedAlike, PausedBy
from gpulaunch.core.retry import POLICIES
from gpulaunch.core.run import Run
from tests.core.check import check, check_definition
from tests.core.edits import Edited
from tests.core.ladders import LadderRule
from tests.core.options import config
from tests.core.pulls import Pulls
from tests.core.sharers import CardShares
from tests.core.timers import timer_name

GIB = 1 << 30
EPOCH = 1e9
"""What the clock on the wall shows at 0 on the monotonic one, unless it was set."""

CANCELLED = Because("cancelled")
PAUSES: tuple[PausedBy, ...] = ("recorder", "asked", "hours")
MOST_LAUNCHES = 20
"""Launches of one job within a second at most, whatever it is answered: as many as its retries and
what costs none come to."""


def pretend_gpus(count: int, *memories: int) -> tuple[Gpu, ...]:
    """Cards with these memories in turn (80 GiB where none is given)."""
    sizes = memories or (80 * GIB,)
    return tuple(
        Gpu(f"GPU-{i}", i, f"sim/{i}", f"pretend {size >> 30}", size, compute=(8 + i % 2, 0))
        for i, size in zip(range(count), itertools.cycle(sizes), strict=False)
    )


@dataclass
class Process:
    """An attempt that is alive in the world."""

    side: Side
    attempt: AttemptId
    job: Job
    gpus: tuple[str, ...]
    started: bool = False
    ready: bool = False
    asked: str = ""
    by: EndCause = CANCELLED
    gently: bool = False
    until: float = 0.0
    worker: AttemptId | None = None
    behind: AttemptId | None = None


@dataclass
class Idle:
    """A worker that an attempt has left in the world."""

    job: Job
    gpus: tuple[str, ...]
    last: AttemptId
    ending: bool = False


@dataclass
class Place:
    """A card in the world."""

    gpu: Gpu
    holder: Side | None = None
    granted: bool = False
    draining: bool = False
    dirty: bool = False
    stranger: bool = False
    sick: bool = False
    taken: int = 0
    carried: set[AttemptId] = field(default_factory=set)
    dead_hold: set[AttemptId] = field(default_factory=set)
    waiters: list[Side] = field(default_factory=list)  # in the order in which they began to wait
    handed: Side | None = None


@dataclass(eq=False)
class Side:
    """One run with its inbox, its timers, and the ledger that its journal's replay makes."""

    name: str
    run: Run
    list: Edited
    limits: dict[str, int]
    cpus: int
    options: dict[str, Any]
    replayed: Ledger
    inbox: deque[Event] = field(default_factory=deque)
    just_ended: set[AttemptId] = field(default_factory=set)
    timers: dict[Timer, float] = field(default_factory=dict)
    asking: set[str] = field(default_factory=set)
    told_wanted: dict[str, bool] = field(default_factory=dict)
    heard_wish: dict[str, bool] = field(default_factory=dict)  # as last delivered
    wants_cards: bool = True  # as it last told the engine
    gave_at: float = -math.inf  # when it last handed a card to another one
    stopped: bool = False
    paused: set[PausedBy] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    facts: list[Fact] = field(default_factory=list)
    crashes: int = 0
    left: list[AttemptId] = field(default_factory=list)
    asleep: bool = False
    ladders: LadderRule = field(default_factory=LadderRule)
    dues: dict[str, float] = field(default_factory=dict)  # as first read
    words: dict[str, str] = field(default_factory=dict)  # who has a card, as last told
    pulls: Pulls = field(default_factory=Pulls)
    shares: CardShares = field(default_factory=CardShares)
    beside: dict[str, object] = field(default_factory=dict)  # who had which card, once it was spent
    launched: dict[str, list[float]] = field(default_factory=dict)  # when, since it was asked for

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.list.jobs


def turn(rng: random.Random, most: int) -> int:
    """How many of the events that have come, at least one, are handled together."""
    return min(most, rng.choice([1, 1, 2, 5, 100]))


class World:
    """Carries out what runs say, strictly, and answers in an order of the seed's choosing."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        rng: random.Random,
        calm: bool = False,
        lasting: Callable[[AttemptId], float] = lambda attempt: 0.0,
        allowance: int | None = None,
        refusing: float = 0.0,
    ) -> None:
        self.refusing = refusing  # the share of launches that are refused at once
        self.told_late = self.refused_at_once = self.workers_died = 0
        # Attempts that are over, and of which that is not told yet, with what is told after it.
        self.untold: dict[tuple[str, AttemptId], list[Ended | AttemptStarted | WorkerEnded]] = {}
        self.allowance = allowance  # cards that all sides may have together
        self.refused = 0  # for the allowance
        self.rng = rng
        self.lasting = lasting
        self.now = 100.0
        self.ahead = EPOCH
        self.latest = 0.0  # that the clock on the wall has shown
        self.cards = {gpu.uuid: Place(gpu) for gpu in gpus}
        self.sides: list[Side] = []
        self.processes: dict[tuple[str, AttemptId], Process] = {}
        self.workers: dict[tuple[str, AttemptId], Idle] = {}
        self.behind: dict[tuple[str, AttemptId], Process] = {}  # launched, and not begun
        self.continued = 0
        self.followed = self.taken_back = self.gave_way = 0
        self.gatherer: Side | None = None
        self.gather_queue: list[Side] = []
        self.pending: list[tuple[str, Callable[[], None]]] = []
        self.calm = calm
        self.steps = 0
        self.log: list[str] = []
        self.launches: Counter[str] = Counter()
        self.overlaps: list[str] = []

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    def add(
        self,
        jobs: Sequence[Job],
        *,
        name: str = "A",
        limits: dict[str, int] | None = None,
        cpus: int = 4,
        **options: Any,
    ) -> Side:
        gpus = tuple(place.gpu for place in self.cards.values())
        ledger, replayed = Ledger(), Ledger()
        self._open(name, gpus, 1, ledger, replayed)
        run = Run(gpus, config(limits=limits or {}, cpus=cpus, **options), ledger)
        side = Side(name, run, Edited(jobs), limits or {}, cpus, options, replayed)
        self.sides.append(side)
        self.tell(side, Submitted(side.jobs))
        return side

    def _open(self, name: str, gpus: Sequence[Gpu], epoch: int, *ledgers: Ledger) -> None:
        fact = RunOpened(name, name, epoch, "0", "host", "boot", 1, tuple(gpus))
        for ledger in ledgers:
            ledger.apply(fact, self.instant)

    @property
    def instant(self) -> Instant:
        self.latest = max(self.latest, self.now + self.ahead)
        return Instant(self.now, self.now + self.ahead)

    def crash(self, side: Side, jobs: Sequence[Job]) -> None:
        """SIGKILL of the supervisor; keepers end its attempts; another goes on from its journal."""
        gpus = tuple(place.gpu for place in self.cards.values())
        for process in list(self.processes.values()):
            if process.side is side:
                process.asked = "old"
                for uuid in process.gpus:
                    self.cards[uuid].dead_hold.add(process.attempt)
        unbegun = [attempt for name, attempt in self.behind if name == side.name]
        for attempt in unbegun:
            del self.behind[side.name, attempt]
        for (name, worker), idle in list(self.workers.items()):
            if name == side.name:
                del self.workers[name, worker]
                for uuid in idle.gpus:
                    self.cards[uuid].dead_hold.add(worker)
                self._later("", partial(self._old_worker_gone, worker, idle))
        if self.gatherer is side:
            self._give_up_gathering(side)
        self.gather_queue = [other for other in self.gather_queue if other is not side]
        for place in self.cards.values():
            place.waiters = [waiter for waiter in place.waiters if waiter is not side]
            if place.handed is side:
                place.handed = None
            if place.holder is side:
                place.granted = place.draining = False
                place.holder = None
                self._freed(place)
        self.pending = [(who, act) for who, act in self.pending if who != side.name]
        # Of those that a crash before this one left, too, if nobody has heard of their ends yet.
        side.left += unbegun
        ledger = copy.deepcopy(side.replayed)
        told = [*side.inbox, *self._forget_untold(side)]
        recorded = [event for event in told if isinstance(event, Ended)]
        recorded += [live.held for live in side.run._state.attempts.held if live.held]
        side.inbox.clear()
        side.launched.clear()
        side.timers.clear()
        side.asking.clear()
        side.told_wanted.clear()
        side.heard_wish.clear()
        side.gave_at = -math.inf
        side.wants_cards = True
        side.drained.clear()
        side.lost.clear()
        side.words.clear()
        side.pulls.forget(side.replayed)
        side.shares.crashed(jobs, side.replayed)
        side.asleep = False
        side.stopped, side.paused = False, set()
        side.crashes += 1
        side.list.jobs = tuple(jobs)
        self._open(side.name, gpus, ledger.opening.epoch + 1, ledger, side.replayed)
        again = {n for n, r in ledger.jobs.items() if r.state in ("failed", "skipped", "cancelled")}
        side.run = Run(gpus, config(limits=side.limits, cpus=side.cpus, **side.options), ledger)
        done = {
            n for n, r in ledger.jobs.items() if r.state == "succeeded" and not r.definition.service
        }
        before = dict(self.launches)
        self.tell(side, Submitted(side.jobs, frozenset(again)))
        for name in done:
            key = f"{side.name}:{name}"
            assert self.launches[key] == before.get(key, 0), f"{name} was done and runs again"
        side.inbox.extend(recorded)
        for attempt in side.left:
            self._later(side.name, partial(self._lose, side, attempt))
        for process in list(self.processes.values()):
            if process.side is side:
                self._later(side.name, partial(self._end_old, process))

    def _forget_untold(self, side: Side) -> list[Ended | AttemptStarted | WorkerEnded]:
        mine = [key for key in self.untold if key[0] == side.name]
        return [event for key in mine for event in self.untold.pop(key)]

    def _lose(self, side: Side, attempt: AttemptId) -> None:
        side.left.remove(attempt)
        side.inbox.append(Ended(attempt, End(Lost(Quoted("gone")))))

    def _old_worker_gone(self, worker: AttemptId, idle: Idle) -> None:
        """Its keeper has ended it, and held its leases until then."""
        for uuid in idle.gpus:
            place = self.cards[uuid]
            place.dead_hold.discard(worker)
            if not place.dead_hold:
                self._freed(place)

    def _end_old(self, process: Process) -> None:
        """What an old keeper left behind."""
        ends: list[Outcome] = [
            Interrupted(Quoted("its supervisor died")),
            Lost(Quoted("gone")),
            Exited(0),
        ]
        self._end(process, self.rng.choice(ends), 0)

    def tell(self, side: Side, *events: Event) -> None:
        """Hand events in together, and carry out what comes back, strictly."""
        assert not side.asleep
        before = len(side.facts)
        side.just_ended = {event.attempt for event in events if isinstance(event, Ended)}
        for event in events:
            self.log.append(f"{self.now:9.3f} {side.name} <- {event!r}"[:300])
            side.pulls.hear(event, side.run)
            side.shares.hear(event)
            for job in event.jobs if isinstance(event, Submitted) else ():
                if job.not_before is not None:
                    side.dues.setdefault(job.name, job.not_before.utc)
            match event:
                case Refused(gpu, Elsewhere(holder)):
                    side.words[gpu] = holder
                case HolderChanged(gpu, holder):
                    side.words[gpu] = holder
                case Wanted(gpu, wanted):
                    side.heard_wish[gpu] = wanted
                case Granted(gpu):
                    side.heard_wish[gpu] = False
        results = side.run.handle(events, self.instant)
        for result in results:
            self.log.append(f"                {side.name} -> {result!r}"[:300])
        for result in results:
            if not isinstance(result, Instruction):
                side.replayed.apply(result, self.instant)
                side.ladders.see(result)
                side.shares.see(result, side.replayed)
                side.facts.append(result)
                if isinstance(result, JobRequeued):
                    side.launched.pop(result.name, None)
        assert len(side.facts) >= before
        for result in results:
            if isinstance(result, Instruction):
                self._carry_out(side, result)
        check(side.run)
        side.pulls.check_heard(side.run, len(events) == 1)
        self._check_elsewhere(side)

    def _check_elsewhere(self, side: Side) -> None:
        """What is said of a card that is elsewhere is what was told last, and its end is too."""
        for uuid, record in side.run.ledger.gpus.items():
            if record.state == "elsewhere" and Timer("card", uuid) not in side.timers:
                told = side.words.get(uuid)
                assert card_reason(record.why) == told, (
                    f"{uuid} is held by {told}, recorded {record.why}"
                )
                waits = side in self.cards[uuid].waiters or Freed(uuid) in side.inbox
                assert waits, f"{uuid} is elsewhere, and nobody will tell of its end"

    # ── Instructions ────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, side: Side, instruction: Instruction) -> None:
        match instruction:
            case Acquire(gpu):
                place = self.cards[gpu]
                assert gpu not in side.asking, f"Acquire({gpu}) twice"
                assert not (place.holder is side and place.granted), f"Acquire({gpu}), held"
                assert gpu not in side.drained, f"Acquire({gpu}), given back"
                assert not self._closed(side), f"Acquire({gpu}) while nothing may start"
                state = side.run.ledger.gpus[gpu].state
                assert state != "aside", f"Acquire({gpu}), which was set aside"
                side.asking.add(gpu)
                # Like the engine, the lease is taken at once; the look takes its time.
                if place.handed is side:
                    place.handed, place.holder = None, side
                self._later(side.name, lambda: self._answer(side, place))
            case Release(gpu):
                place = self.cards[gpu]
                if any(isinstance(e, Refused) and e.gpu == gpu for e in side.inbox):
                    return  # the two have crossed
                assert self._has(side, place), f"Release({gpu}), not held"
                assert not place.draining or side.stopped, f"Release({gpu}) while it drains"
                assert not self._on(gpu), f"Release({gpu}) with {self._on(gpu)} on it"
                assert not self._idle_on(gpu), f"Release({gpu}) with a worker on it"
                place.granted = place.draining = False
                place.holder = None
                if side.heard_wish.get(gpu):
                    side.gave_at = self.now
                self._hand_over(place)
            case Drain(gpu):
                place = self.cards[gpu]
                assert self._has(side, place), f"Drain({gpu}), not held"
                assert not place.draining, f"Drain({gpu}) twice"
                assert not self._on(gpu), f"Drain({gpu}) with {self._on(gpu)} on it"
                assert not self._idle_on(gpu), f"Drain({gpu}) with a worker on it"
                place.draining = True
                self._later(side.name, lambda: self._drained(side, place))
            case PullImage(source):
                side.pulls.ask(instruction, self._closed(side))
                self._later(side.name, partial(self._answer_pull, side, source))
            case Launch():
                side.ladders.launched(instruction)
                self._launch(side, instruction)
            case WantCards(on):
                assert on != side.wants_cards, f"WantCards({on}) twice"
                side.wants_cards = on
            case StopAttempt(gently=True) if not self._gives_way(side, instruction):
                raise AssertionError(f"{instruction}: nobody waits for its card")
            case StopAttempt(attempt, _, by, _) if (side.name, attempt) in self.behind:
                self._not_begun(self.behind[side.name, attempt], by)
            case TakeBack(attempt):
                if process := self.behind.get((side.name, attempt)):
                    self.taken_back += 1
                    self._not_begun(process, Because("taken_back"))
            case StopAttempt(attempt, reason, by, _):
                process = self.processes.get((side.name, attempt))
                if process is None:
                    told = any(isinstance(e, Ended) and e.attempt == attempt for e in side.inbox)
                    told = told or attempt in side.just_ended or (side.name, attempt) in self.untold
                    assert told, f"StopAttempt({attempt}), not alive"
                    return
                assert reason in ("cancelled", "interrupted", "stopped")
                assert process.asked != "old", f"StopAttempt({attempt}), an old keeper's"
                process.asked, process.by, process.gently = reason, by, instruction.gently
            case EndWorker(worker):
                idle = self.workers.get((side.name, worker))
                if idle is None:
                    untold = [event for held in self.untold.values() for event in held]
                    coming = WorkerEnded(worker) in (*side.inbox, *untold)
                    assert coming, f"EndWorker({worker}), not alive"
                elif not idle.ending:
                    idle.ending = True
                    self._later(side.name, partial(self._end_worker, side, worker))
            case SetTimer(timer, at):
                assert at > self.now, f"{timer} in the past"
                side.timers[timer] = at
            case ReserveGang(on=True):
                assert self.gatherer is not side
                assert side not in self.gather_queue
                self.gather_queue.append(side)
                self._grant_gathering()
            case ReserveGang(on=False):
                if side in self.gather_queue:
                    self.gather_queue.remove(side)
                else:
                    assert self.gatherer is side, "Gather(off) without Gather(on)"
                    self._give_up_gathering(side)

    def _gives_way(self, side: Side, stop: StopAttempt) -> bool:
        """Whether a preemptible attempt is stopped once, for a launcher that waits for its card."""
        known = self.processes.values()
        mine = [p for p in known if p.side is side and p.attempt == stop.attempt]
        if not mine:
            return True  # it has ended, and that is not known yet
        (process,) = mine
        self.gave_way += 1
        assert process.job.demand.preemptible, f"{stop}: it is not preemptible"
        assert not process.asked, f"{stop}: it was asked to end before"
        assert self.now >= side.gave_at + HANDED_OVER, f"{stop}, soon after a card was given"
        coming = [
            other.attempt
            for other in self.processes.values()
            if other.side is side
            and other.asked
            and not set(other.gpus) & set(process.gpus)
            and any(side.heard_wish.get(uuid) for uuid in other.gpus)
            and all(p.asked for uuid in other.gpus for p in self._on(uuid))
        ]
        assert not coming, f"{stop}, and {coming} end anyway on cards that are wanted"
        return any(side.heard_wish.get(uuid) for uuid in process.gpus)

    def _launch(self, side: Side, launch: Launch) -> None:
        attempt, job, demand = launch.attempt, launch.job, launch.job.demand
        uuids = [gpu.uuid for gpu in launch.gpus]
        side.shares.launched(launch)
        times = [at for at in side.launched.get(job.name, ()) if at > self.now - 1.0]
        side.launched[job.name] = [*times, self.now]
        assert len(times) < MOST_LAUNCHES, f"Launch({attempt}), too often within a second"
        check_definition(job, side.jobs)
        side.pulls.check_launch(job)
        assert not self._closed(side), f"Launch({attempt}) while nothing may start"
        assert (side.name, attempt) not in self.processes, f"Launch({attempt}) twice"
        due = side.dues.get(job.name, 0.0)
        assert due <= self.latest, f"Launch({attempt}) {due - self.latest} seconds too early"
        mine = [p for p in self.processes.values() if p.side is side]
        mine += [p for p in self.behind.values() if p.side is side]
        assert attempt.job not in {p.attempt.job for p in mine}, f"{attempt.job} runs already"
        assert len(uuids) == len(set(uuids)) == demand.gpus, f"Launch({attempt}) on {uuids}"
        for uuid in uuids:
            assert is_kind(self.cards[uuid].gpu, demand), f"Launch({attempt}) on another kind"
            assert uuid not in side.drained, f"Launch({attempt}) on {uuid}, given back"
            assert uuid not in demand.avoid, f"Launch({attempt}) on {uuid}, to be avoided"
            assert uuid not in side.lost, f"Launch({attempt}) on {uuid}, which is lost"
            if launch.behind is not None:
                continue
            place = self.cards[uuid]
            assert self._has(side, place), f"Launch({attempt}) on {uuid}, not held"
            assert not place.draining, f"Launch({attempt}) on {uuid}, which drains"
            held = self._is_to_be_judged(side, uuid)
            clean = place.carried or held or not place.dirty or launch.worker
            assert clean, f"Launch({attempt}) on {uuid}, which was not drained"
            running = [(p.job.demand, p.attempt) for p in self._on(uuid)]
            idle = self._idle_on(uuid, launch.worker)
            side.shares.check_launch(launch, running, [one.job.demand for one in idle])
            others = [*(other for _, other in running), *(one.last for one in idle)]
            weight = sum(map(side.shares.weight, others))
            weight += launch.promised if others else demand.gpu_memory
            # A worker that goes on is there already, whatever it or others have grown to.
            grown = launch.worker is not None and (demand.kind is not None or side.shares.outgrew)
            fits = not weight or weight <= self._free(place) or grown
            assert fits, f"{attempt}: {weight >> 30} GiB promised on {uuid}"
            through = {one.job.demand.mps for one in (*self._on(uuid), *idle)}
            assert through <= {demand.mps}, (
                f"Launch({attempt}) on {uuid}: through MPS beside others"
            )
        seat = None
        if launch.behind is not None:
            self._launch_behind(side, launch)
        elif launch.worker is not None:
            seat = self.workers.pop((side.name, launch.worker), None)
            died = WorkerEnded(launch.worker) in side.inbox  # the attempt begins without it
            assert seat or died, f"Launch({attempt}) in a worker that is not there"
        if launch.behind is None and launch.worker is not None and seat is not None:
            assert not seat.ending, f"Launch({attempt}) in a worker that is being ended"
            assert set(seat.gpus) == set(uuids), f"Launch({attempt}) on other cards than its worker"
            assert seat.job.demand.same_seat(demand), f"Launch({attempt}) in another one's worker"
            self.continued += 1
        states = {name: record.state for name, record in side.run.ledger.jobs.items()}
        for need in job.needs:
            if states.get(need) and side.run.ledger.jobs[need].definition.service:
                serving: list[object] = [
                    p for p in mine if p.attempt.job == need and p.ready and not p.asked
                ]
                serving += [e for e in side.inbox if isinstance(e, Ended) and e.attempt.job == need]
                serving += [
                    key for key in self.untold if key[0] == side.name and key[1].job == need
                ]
                assert serving, f"Launch({attempt}) before its service {need} is ready"
            else:
                assert states[need] == "succeeded", f"Launch({attempt}) before {need}"
        for other in job.after:
            done = states.get(other, "succeeded") not in ("waiting", "running")
            done = done or side.run.ledger.jobs[other].vanished
            assert done, f"Launch({attempt}) before {other} has ended"
        alive = [p for p in mine if p.asked != "old"]
        used = Counter(token for p in alive for token in p.job.demand.uses)
        used.update(demand.uses)
        for token in demand.uses:
            assert used[token] <= side.limits.get(token, 1), f"{attempt}: tokens of {token}"
        cpus = [p.job.demand.cpus or 1 for p in alive if not p.gpus and not p.job.service]
        if not uuids and not job.service:
            total = sum(cpus) + (demand.cpus or 1)
            assert total <= side.cpus or not cpus, f"{attempt}: {total} CPUs"
        if launch.behind is None and demand.memory:
            begun = [p for p in alive if (side.name, p.attempt) not in self.behind]
            reserved = sum(p.job.demand.memory for p in begun) + demand.memory
            for (name, worker), idle in self.workers.items():
                if name == side.name and worker != launch.worker:
                    reserved += idle.job.demand.memory
            most = side.options.get("memory")
            assert most is None or reserved <= most, f"{attempt}: {reserved} bytes of {most}"
        process = Process(side, attempt, job, tuple(uuids), worker=launch.worker)
        process.behind = launch.behind
        if self._refuse(process, seat):
            return
        if launch.behind is None:
            self._begin(process)
        elif (side.name, launch.behind) in self.processes:
            self.behind[side.name, attempt] = process
        else:
            self._go_on_after(process, (side.name, launch.worker) in self.workers)

    def _refuse(self, process: Process, idle: Idle | None) -> bool:
        """Answer the launch at once, by an end; a worker that was to run it waits on."""
        aside = random.Random(f"refuse {process.attempt} {self.steps}")
        if self.calm or aside.random() >= self.refusing:
            return False
        self.refused_at_once += 1
        outcome = aside.choice([Interrupted(Quoted("no use"))] * 9 + [NotStarted("no room")])
        for uuid in process.gpus if process.behind is None else ():
            self.cards[uuid].carried.add(process.attempt)  # until the run hears of it
        if idle is not None:
            assert process.worker is not None
            self.workers[process.side.name, process.worker] = idle
        ended = Ended(process.attempt, End(outcome), kept=idle is not None)
        self._say(process.side, ended, process.behind)
        return True

    def _launch_behind(self, side: Side, launch: Launch) -> None:
        """Check that what it is behind runs there, and that nobody told the run otherwise."""
        name = f"Launch({launch.attempt}) behind {launch.behind}"
        leader = self.processes.get((side.name, launch.behind or launch.attempt))
        followed = any(p.behind == launch.behind for p in self.behind.values() if p.side is side)
        assert not followed, f"{name}, which has one behind it"
        if leader is None:
            told = any(isinstance(e, Ended) and e.attempt == launch.behind for e in side.inbox)
            told = told or (side.name, launch.behind) in self.untold
            assert told, f"{name}, which does not run"
            return
        assert leader.started, f"{name}, which has not started"
        assert leader.asked in ("", "old"), f"{name}, which is to end"
        assert (leader.worker or leader.attempt) == launch.worker, f"{name}: {launch.worker}"
        assert set(leader.gpus) == {gpu.uuid for gpu in launch.gpus}, f"{name}: {launch.gpus}"
        assert leader.job.demand.same_seat(launch.job.demand), f"{name}, which is another one's"

    def _go_on_after(self, process: Process, kept: bool) -> None:
        """What a keeper does with it once the attempt before it has ended."""
        side, seat = process.side, process.worker
        assert seat is not None
        if kept and self.rng.random() < 0.95:
            del self.workers[side.name, seat]
            self.followed += 1
            if process.behind is not None:
                side.shares.goes_on(process.attempt, process.behind)
            self._begin(process)
        else:
            outcome = Interrupted(Because("worker_ended"))
            self._say(side, Ended(process.attempt, End(outcome), kept=kept), process.behind)

    def _not_begun(self, process: Process, by: EndCause) -> None:
        del self.behind[process.side.name, process.attempt]
        self._say(process.side, Ended(process.attempt, End(Interrupted(by))), process.behind)

    def _say(
        self,
        side: Side,
        event: Ended | AttemptStarted | WorkerEnded,
        behind: AttemptId | None = None,
        late: bool = False,
    ) -> None:
        """Tell of an attempt, once the end of the one that it is behind is told.

        `late`: this end is told later, as the attempt's cards are looked at before.
        """
        key = None if isinstance(event, WorkerEnded) else (side.name, event.attempt)
        if behind is not None and (side.name, behind) in self.untold:
            self.untold[side.name, behind].append(event)
            if key is not None and isinstance(event, Ended):
                self.untold.setdefault(key, [])
        elif late and key is not None:
            self.told_late += 1
            self.untold[key] = [event]
            long = random.Random(f"long {key} {self.steps}").choice([0.0, 0.0, 0.05])
            self._later(side.name, partial(self._look_done, side, key, self.now + long))
        else:
            side.inbox.append(event)

    def _look_done(self, side: Side, key: tuple[str, AttemptId], until: float) -> None:
        """Tell of an end now that its cards were looked at; a driver may take its time."""
        if self.now < until:
            self._later(side.name, partial(self._look_done, side, key, until))
        else:
            self._tell_untold(side, key)

    def _tell_untold(self, side: Side, key: tuple[str, AttemptId]) -> None:
        for event in self.untold.pop(key, ()):
            side.inbox.append(event)
            if isinstance(event, Ended):
                self._tell_untold(side, (side.name, event.attempt))

    def _begin(self, process: Process) -> None:
        side, attempt = process.side, process.attempt
        for uuid in process.gpus:
            assert self._has(side, self.cards[uuid])
            if process.worker is not None:
                self.cards[uuid].carried.discard(process.worker)
            self.cards[uuid].carried.add(attempt)
        process.until = self.now + self.lasting(attempt)
        self.processes[side.name, attempt] = process
        self.launches[f"{side.name}:{attempt.job}"] += 1
        self._later(side.name, lambda: self._start(process))

    # ── Answers ─────────────────────────────────────────────────────────────────────────────────

    def _later(self, who: str, act: Callable[[], None]) -> None:
        self.pending.append((who, act))

    def _answer_pull(self, side: Side, source: ImageSource) -> None:
        side.inbox.extend(side.pulls.answer(source, self.rng, self.calm))

    def _answer(self, side: Side, place: Place) -> None:
        uuid = place.gpu.uuid
        side.asking.discard(uuid)
        if spent := self._spent(side, place):
            side.inbox.append(Refused(uuid, spent))
            return
        taken = place.holder not in (None, side) or place.handed not in (None, side)
        if taken or place.dead_hold:
            if side not in place.waiters:
                place.waiters.append(side)
            side.inbox.append(Refused(uuid, self._elsewhere(place)))
            return
        if place.sick or place.stranger:
            place.holder = place.handed = None
            why = Sick("fell off the bus") if place.sick else Occupied("user bob (pid 123)")
            self._hand_over(place)
            side.inbox.append(Refused(uuid, why))
            return
        self._take(side, place)
        side.inbox.append(Granted(uuid, self._free(place)))

    def _drained(self, side: Side, place: Place) -> None:
        uuid = place.gpu.uuid
        if place.holder is not side or not place.draining:
            return
        place.draining = False
        if place.sick or (not self.calm and self.rng.random() < 0.02):
            place.sick = True
            place.granted = False
            place.holder = None
            self._hand_over(place)
            side.inbox.append(Refused(uuid, Sick("its memory was not given back")))
            return
        place.dirty = False
        if place.stranger and self.rng.random() < 0.3:  # a desktop, whose memory is not told
            place.granted = False
            place.holder = None
            self._hand_over(place)
            side.inbox.append(Refused(uuid, Occupied("3 GiB are in use there", 4 * 10**9)))
            return
        side.inbox.append(Drained(uuid, self._free(place)))

    def _start(self, process: Process) -> None:
        key = (process.side.name, process.attempt)
        if key not in self.processes or process.asked == "old":
            return
        if not self.calm and self.rng.random() < 0.03:
            self._end(process, NotStarted("no such file"), 0)
            return
        process.started = True
        started = AttemptStarted(process.attempt, self.rng.randrange(2, 9999))
        self._say(process.side, started, process.behind)
        aside = random.Random(f"{process.attempt} {self.steps}")
        process.side.inbox += process.side.shares.grow(process.attempt, process.job, aside)
        if process.job.service is not None:
            self._later(process.side.name, lambda: self._become_ready(process))

    def _become_ready(self, process: Process) -> None:
        if (process.side.name, process.attempt) in self.processes and process.asked != "old":
            aside = random.Random(f"{process.attempt} {self.steps} answers")
            if not self.calm and aside.random() < 0.1:
                silent = Unanswered(process.attempt, "no answer at tcp:8000")
                process.side.inbox.append(silent)
                return
            process.ready = True
            process.side.inbox.append(ServiceReady(process.attempt))

    def _is_to_be_judged(self, side: Side, uuid: str) -> bool:
        """Whether the run holds the end of an attempt on the card, whose promise still counts."""
        held = side.run._state.attempts.held
        return any(card.gpu.uuid == uuid for live in held for card in live.cards)

    def _end(self, process: Process, outcome: Outcome, leftovers: int) -> None:
        key = (process.side.name, process.attempt)
        if key not in self.processes:
            return
        del self.processes[key]
        for uuid in process.gpus:
            place = self.cards[uuid]
            place.dirty = True
            if process.attempt in place.dead_hold:
                place.dead_hold.discard(process.attempt)
                if not place.dead_hold:
                    self._freed(place)
        failure = self._failure(process)
        kept = bool(process.job.demand.worker) and process.asked != "old"
        kept = kept and self.rng.random() < (0.3 if process.asked else 0.8)
        if kept:
            worker = process.worker or process.attempt
            self.workers[process.side.name, worker] = Idle(
                process.job, process.gpus, process.attempt
            )
        free = {} if kept else self._back_at_once(process)
        warned = self._warned(process)
        end = End(outcome, failure, leftovers=leftovers, warned=warned)
        aside = random.Random(f"late {process.attempt} {self.steps}")
        late = process.asked != "old" and aside.random() < 0.3
        if late or (process.side.name, process.behind) in self.untold:
            for uuid in free:  # something else may be there by the time at which that is told
                self.cards[uuid].dirty = True
            free = {}
        self._say(process.side, Ended(process.attempt, end, kept, free), process.behind, late)
        if not self.calm and self.rng.random() < 0.05:
            again = Ended(process.attempt, End(outcome, leftovers=leftovers))
            self._say(process.side, again, process.attempt)
        for key, next in list(self.behind.items()):
            if key[0] == process.side.name and next.behind == process.attempt:
                del self.behind[key]
                self._go_on_after(next, kept)

    def _warned(self, process: Process) -> SentWarning | None:
        """The warning that some have before their end, which is mostly told at once."""
        aside = random.Random(f"{process.attempt} {self.steps}")  # histories stay what they were
        if aside.random() < 0.7:
            return None
        why: Literal["timeout", "stop"] = "stop" if process.gently else "timeout"
        sent = SentWarning(self.instant, 12, aside.randrange(3), why)
        if process.asked != "old" and aside.random() < 0.8:
            process.side.inbox.append(AttemptWarned(process.attempt, sent))
        return sent

    def _back_at_once(self, process: Process) -> dict[str, int]:
        """Some of its cards, on which nothing else is, are seen to have their memory back."""
        free = {}
        for uuid in process.gpus:
            place = self.cards[uuid]
            alone = place.carried == {process.attempt} and not self._on(uuid)
            if alone and self._has(process.side, place) and self.rng.random() < 0.3:
                place.dirty = False
                free[uuid] = self._free(place)
        return free

    def _failure(self, process: Process) -> Failure | None:
        """What was recognised of the end: mostly nothing."""
        if self.calm or self.rng.random() < 0.5:
            return None
        kind = self.rng.choice([*POLICIES, "gpu_lost", "gpu_oom", "crash"])
        gpus = self.rng.sample(process.gpus, self.rng.randint(0, len(process.gpus)))
        told = tuple(gpus) if self.rng.random() < 0.3 else ()
        return Failure(kind, "said so", (Hint(kind),), told, self.rng.random() < 0.2)

    def _outcome(self, process: Process) -> Outcome:
        honest = self.rng.random() < (1.0 if self.calm else 0.9)
        if process.asked == "cancelled" and honest:
            return Cancelled(Signaled(15))
        gently = process.gently and not self.calm
        if process.asked == "interrupted" and gently and self.rng.random() < 0.2:
            return Exited(0)  # it came to its end after the warning
        if process.asked == "interrupted" and honest:
            return Interrupted(process.by)
        if process.asked == "stopped" and honest:
            return Stopped(Signaled(15))
        good: list[Outcome] = [Exited(0)] * 12
        bad: list[Outcome] = [
            Exited(3),
            Signaled(11),
            TimedOut("timeout", 7200.0),
            TimedOut("idle_timeout", 60.0),
            MissingOutput(("pred.cif",)),
            Lost(Quoted("gone")),
        ]
        return self.rng.choice(good if self.calm else good + bad)

    # ── Leases ──────────────────────────────────────────────────────────────────────────────────

    def _on(self, uuid: str) -> list[Process]:
        return [p for p in self.processes.values() if uuid in p.gpus]

    def _idle_on(self, uuid: str, but: AttemptId | None = None) -> list[Idle]:
        return [w for (_, name), w in self.workers.items() if uuid in w.gpus and name != but]

    def _end_worker(self, side: Side, worker: AttemptId) -> None:
        if self.workers.pop((side.name, worker), None):
            side.inbox.append(WorkerEnded(worker))

    def _worker_dies(self) -> None:
        """An idle worker ends by itself, as when somebody kills it."""
        aside = random.Random(f"worker {self.steps} {len(self.log)}")
        if self.calm or not self.workers or aside.random() >= 0.02:
            return
        key = aside.choice(list(self.workers))
        side = next(side for side in self.sides if side.name == key[0])
        if side.asleep or self.workers[key].ending:
            return
        self.workers_died += 1
        self._say(side, WorkerEnded(key[1]), self.workers.pop(key).last)

    def _free(self, place: Place) -> int:
        return place.gpu.memory - place.taken

    def _closed(self, side: Side) -> bool:
        return side.stopped or bool(side.paused) or side.run.ledger.paused is not None

    def _has(self, side: Side, place: Place) -> bool:
        return place.holder is side and place.granted

    def _wants(self, side: Side) -> bool:
        """What a launcher tells the holders of the cards that it waits for: it has use for one, and
        it holds none, or it gathers, and nothing of its own runs on those that it holds."""
        if not side.wants_cards:
            return False
        mine = [uuid for uuid, place in self.cards.items() if place.holder is side]
        return not mine or (self.gatherer is side and not any(self._on(uuid) for uuid in mine))

    def _hand_over(self, place: Place) -> None:
        """To a waiter that wants it, where there is one; else everybody hears of it."""
        wanting = [w for w in place.waiters if self._wants(w) and not w.asleep]
        if wanting and not place.dead_hold:
            side = wanting[0]
            place.waiters.remove(side)
            place.handed = side
            if self.allowance is not None:
                side.inbox.append(AllowanceFreed())
            side.inbox.append(Freed(place.gpu.uuid))
        else:
            self._freed(place)

    def _freed(self, place: Place) -> None:
        if place.dead_hold or place.holder is not None or place.handed is not None:
            return
        waiters, place.waiters = place.waiters, []
        for side in waiters:
            side.inbox.append(Freed(place.gpu.uuid))

    # ── A supervisor that is stopped ────────────────────────────────────────────────────────────

    def suspend(self, side: Side) -> None:
        """SIGSTOP, for so long that jobs of it end. It keeps its cards."""
        side.asleep = True
        for process in list(self.processes.values()):
            if process.side is side and self._may_end(process) and self.rng.random() < 0.5:
                self._end(process, self._outcome(process), self.rng.randrange(3))
        self._describe(side)

    def wake(self, side: Side) -> None:
        """SIGCONT: the side handles what has come meanwhile."""
        side.asleep = False
        self._describe(side)

    def _describe(self, holder: Side) -> None:
        """Those who wait for its cards learn whether it is stopped."""
        for uuid, place in self.cards.items():
            for waiter in place.waiters if place.holder is holder else ():
                waiter.inbox.append(HolderChanged(uuid, self._elsewhere(place).holder))

    def _elsewhere(self, place: Place) -> Elsewhere:
        stopped = place.holder is not None and place.holder.asleep
        return Elsewhere("another launcher" + ", stopped" * stopped)

    # ── One user's sides, which may have so many cards together ─────────────────────────────────

    def _counted(self) -> list[str]:
        places = self.cards.items()
        return [u for u, p in places if p.holder or p.handed or p.dead_hold]

    def _spent(self, side: Side, place: Place) -> AllowanceSpent | None:
        """Why the card would be one too many; `side` then hears of the next one given back."""
        if self.allowance is None or place.holder is side or place.handed is side:
            return None
        for other in self.cards.values():  # the core did not ask for what it was handed
            if other.handed is side and len(self._counted()) >= self.allowance:
                other.handed = None
                self._hand_over(other)
        if len(self._counted()) < self.allowance:
            return None
        self.refused += 1
        for other in self.cards.values():
            if other.holder not in (None, side) and side not in other.waiters:
                other.waiters.append(side)
        mine = [u for u, p in self.cards.items() if p.holder is side]
        side.beside = {u: self._who(u) for u in self._counted() if u not in mine}
        return AllowanceSpent(self.allowance, "/etc/gpulaunch/config.yaml:3")

    def _who(self, uuid: str) -> object:
        place = self.cards[uuid]
        return place.holder or place.handed or frozenset(place.dead_hold)

    def _say_freed(self) -> None:
        """Those that were refused hear when others of them have fewer cards."""
        if self.allowance is None:
            return
        together = self._counted()
        assert len(together) <= self.allowance, f"{together} are held, {self.allowance} allowed"
        for side in self.sides:
            if any(u not in together or self._who(u) != who for u, who in side.beside.items()):
                side.beside = {}
                side.inbox.append(AllowanceFreed())

    def _take(self, side: Side, place: Place) -> None:
        """The lease is its own, and the card was looked at."""
        place.holder, place.granted, place.dirty = side, True, False
        place.carried.clear()
        place.handed = None
        place.waiters = [waiter for waiter in place.waiters if waiter is not side]
        side.told_wanted.pop(place.gpu.uuid, None)

    def _grant_gathering(self) -> None:
        if self.gatherer is None and self.gather_queue:
            side = self.gatherer = self.gather_queue.pop(0)
            self._later(side.name, lambda: self._gathers(side))

    def _gathers(self, side: Side) -> None:
        if self.gatherer is side:
            side.inbox.append(GangGranted())

    def _give_up_gathering(self, side: Side) -> None:
        assert self.gatherer is side
        self.gatherer = None
        self._grant_gathering()

    def say_wanted(self) -> None:
        """What holders notice on their leases' sockets."""
        for place in self.cards.values():
            side = place.holder
            if side is None or not place.granted:
                continue
            wish = any(self._wants(w) for w in place.waiters if w is not side)
            if side.told_wanted.get(place.gpu.uuid, False) != wish:
                side.told_wanted[place.gpu.uuid] = wish
                side.inbox.append(Wanted(place.gpu.uuid, wish))

    # ── Histories ───────────────────────────────────────────────────────────────────────────────

    def step(self) -> bool:
        """Let one thing happen. False when nothing can happen any more but what people do."""
        self.steps += 1
        self.now += 0.001
        self._say_freed()
        self.say_wanted()
        self._worker_dies()
        ready = [side for side in self.sides if side.inbox and not side.asleep]
        if ready and self.rng.random() < 0.6:
            self._deliver(self.rng.choice(ready))
            return True
        asleep = {side.name for side in self.sides if side.asleep}
        acts = [n for n, (who, _) in enumerate(self.pending) if who not in asleep]
        if acts and (self.rng.random() < 0.6 or not self.processes):
            _, act = self.pending.pop(self.rng.choice(acts))
            act()
            return True
        if ready:
            self._deliver(self.rng.choice(ready))
            return True
        mortal = [p for p in self.processes.values() if self._may_end(p)]
        if mortal:
            process = self.rng.choice(mortal)
            self._end(process, self._outcome(process), self.rng.randrange(3))
            return True
        if acts:
            _, act = self.pending.pop(acts[0])
            act()
            return True
        return self._fire_timer()

    def _may_end(self, process: Process) -> bool:
        if process.asked == "old":
            return False
        if not process.started and not process.asked:
            return False
        if process.job.service is None or process.asked:
            return bool(process.asked) or self.now >= process.until
        return not self.calm and self.rng.random() < 0.03

    def _deliver(self, side: Side) -> None:
        """Hand over the oldest events, as many as came in one turn."""
        events = [side.inbox.popleft() for _ in range(turn(self.rng, len(side.inbox)))]
        for event in events:
            if isinstance(event, Ended | WorkerEnded):
                gone = event.attempt if isinstance(event, Ended) else event.worker
                if isinstance(event, Ended) and WorkerEnded(gone) in (*events, *side.inbox):
                    continue  # told again, while its worker is still on the card
                left = [w for (_, w), idle in self.workers.items() if idle.last == gone]
                for place in self.cards.values():
                    if place.holder is side and gone in place.carried:
                        place.carried.discard(gone)
                        place.carried.update(left if isinstance(event, Ended) else ())
        self.tell(side, *events)
        for event in events:
            if isinstance(event, Freed):
                place = self.cards[event.gpu]
                if place.handed is side and event.gpu not in side.asking:
                    place.handed = None
                    self._hand_over(place)

    def _fire_timer(self) -> bool:
        """Nothing else happens: the time comes for the next timer, or for a job's end."""
        awake = [side for side in self.sides if not side.asleep]
        timers = [
            (at, side.name, timer_name(timer), timer)
            for side in awake
            for timer, at in side.timers.items()
        ]
        ends = [p.until for p in self.processes.values() if self._lasts(p)]
        if ends and (not timers or min(ends) <= min(timers)[0]):
            self.now = max(self.now, min(ends))
            return True
        if not timers:
            return False
        at, name, _, timer = min(timers)
        side = next(side for side in self.sides if side.name == name)
        del side.timers[timer]
        self.now = max(self.now, at) + self.rng.choice([0.0, 0.01])
        self.tell(side, TimerFired(timer))
        return True

    def _lasts(self, process: Process) -> bool:
        return process.job.service is None and self.now < process.until

    def disturb(self, side: Side) -> None:
        """Something that people, strangers or the machine do."""
        rng, uuids = self.rng, list(self.cards)
        names = [job.name for job in side.jobs]
        roll = rng.randrange(19)
        if side.asleep:
            if rng.random() < 0.3:
                self.wake(side)
        elif roll == 0:
            self._ask(side, Cancel((rng.choice(names),)))
        elif roll == 1 and rng.random() < 0.3:
            self._ask(side, Cancel(None))
        elif roll in (2, 3):
            if rng.random() < 0.5:
                self.relist(side)
            self._ask(side, Retry(rng.choice([None, (rng.choice(names),)])))
        elif roll in (4, 5):
            gpus = None if rng.random() < 0.3 else (rng.choice(uuids),)
            self._ask(side, DrainGpus(gpus, now=rng.random() < 0.5))
        elif roll in (6, 7):
            self._ask(side, DrainGpus(None, off=True))
        elif roll == 8:
            for by in rng.sample(PAUSES, rng.randint(1, 3)):
                why = None if rng.random() < 0.4 else Quoted("the disk is full")
                self._ask(side, Pause(why, by))
        elif roll == 9 and rng.random() < 0.3:
            self._ask(side, Stop(Quoted("SIGINT"), now=rng.random() < 0.4))
        elif roll in (10, 11):
            self.cards[rng.choice(uuids)].stranger ^= True
        elif roll in (12, 13):
            place = self.cards[rng.choice(uuids)]
            if place.holder is None:
                place.taken = rng.choice([0, 30, 60]) * GIB
        elif roll == 14 and rng.random() < 0.2:
            self.cards[rng.choice(uuids)].sick = True
        elif roll == 15:
            self.tell(side, self._nonsense(side))
        elif roll == 17:
            self._ask(side, GoOn())
        elif roll == 16 and self.processes:
            process = rng.choice(list(self.processes.values()))
            if process.asked != "old" and not process.side.asleep:
                place, kind = rng.choice(uuids), len(self.log) % 4
                event: Event = Misplaced(process.attempt, place, 7, "not its own")
                if kind < 2:
                    said = 60.0, 1 << 30, "used 0 % of its card"
                    event = HeldIdle(process.attempt, *said, ends=kind == 0)
                self.tell(process.side, event)
        elif roll == 18 and rng.random() < 0.5:
            self._report(side, rng.choice(uuids))
        elif rng.random() < 0.3:
            self.ahead += rng.choice([-600.0, -30.0, 1.0, 300.0])  # it is set, or the machine slept
        else:
            self.now += rng.choice([0.5, 5.0, 700.0])

    def relist(self, side: Side) -> None:
        """Somebody changes the list while the run lives."""
        if not side.asleep:
            self.tell(side, side.list.change(self.rng))

    def _nonsense(self, side: Side) -> Event:
        """Events that nothing asked for."""
        uuid = self.rng.choice(list(self.cards))
        attempt = AttemptId(self.rng.choice(side.jobs).name, 99)
        events: list[Event] = [
            TimerFired(Timer("card", "nothing")),
            TimerFired(Timer("retry", attempt.job)),
            TimerFired(Timer("gang")),
            TimerFired(Timer("deadlock")),
            AttemptStarted(attempt, 1),
            Ended(attempt, End(Exited(0))),
            WorkerEnded(attempt),
            ServiceReady(attempt),
            AttemptWarned(attempt, SentWarning(self.instant, 12, 1, "timeout")),
            Granted("GPU-99", 1),
            HolderChanged(uuid, "somebody else"),
            *side.pulls.nonsense(),
        ]
        answered = any(getattr(event, "gpu", None) == uuid for event in side.inbox)
        known = uuid in side.asking
        if self.cards[uuid].holder is not side and not known and not answered:
            sick = Sick("not asked")
            events += [Granted(uuid, 1), Drained(uuid, 1), Refused(uuid, sick)]
        return self.rng.choice(events)

    def _ask(self, side: Side, request: Cancel | Retry | DrainGpus | Pause | Stop) -> None:
        match request:
            case Stop():
                side.stopped = True
            case Pause(why, by):
                (side.paused.discard if why is None else side.paused.add)(by)
            case DrainGpus(gpus, _, off):
                for uuid in gpus or self.cards:
                    (side.drained.discard if off else side.drained.add)(uuid)
        self.tell(side, Asked(request))

    def _report(self, side: Side, uuid: str) -> None:
        """The driver reports something of a card to a run."""
        verdict = self.rng.choice(("lost", "app", "note"))
        if verdict == "lost":
            side.lost.add(uuid)
        self.tell(side, GpuEvent(uuid, 79, "Xid 79", verdict, self.rng.random() < 0.5))

    def refuse_all(self, steps: int) -> None:
        """For so many steps whatever is launched is refused at once."""
        self.refusing = 1.0
        for _ in range(steps):
            if not self.step():
                break
        self.refusing = 0.0

    def quiet_down(self) -> None:
        """From here on nobody interferes, and jobs succeed."""
        self.calm = True
        for place in self.cards.values():
            place.stranger, place.taken = False, 0
        for side in self.sides:
            if side.asleep:
                self.wake(side)
            for by in sorted(side.paused):
                self._ask(side, Pause(None, by))
            if side.drained:
                self._ask(side, DrainGpus(None, off=True))
            self._ask(side, GoOn())

    def run_to_end(self, most: int = 20_000) -> None:
        """Every run must come to its end, in a bounded number of steps."""
        for count in range(most):
            if all(side.run.finished and not side.inbox for side in self.sides):
                break
            if count % 1000 == 999:
                self._go_on()  # timers of what is paused may go on for ever
            moved = self.step() or self._go_on()
            assert moved or all(side.run.finished for side in self.sides), (
                f"stands still: {self.standing()}"
            )
        else:
            raise AssertionError(f"no end after {most} steps: {self.standing()}")
        for side in self.sides:
            self.check_end(side)

    def _go_on(self) -> bool:
        """A person goes on with a run that waits since jobs failed alike; false where none does."""
        tripped = [s for s in self.sides if isinstance(s.run.ledger.paused, FailedAlike)]
        for side in tripped:
            self._ask(side, GoOn())
        return bool(tripped)

    def standing(self) -> str:
        lines = []
        for side in self.sides:
            for name, record in side.run.ledger.jobs.items():
                if record.state in ("waiting", "running"):
                    lines.append(f"{side.name}/{name}: {record.state} {side.run.why_waiting(name)}")
        return "; ".join(lines)

    def check_end(self, side: Side) -> None:
        """No lease is left, and the replayed journal gives the same state, job by job."""
        held = [p.gpu.index for p in self.cards.values() if p.holder is side]
        assert not held, f"{side.name} is finished and holds {held}"
        workers = [worker for name, worker in self.workers if name == side.name]
        assert not workers, f"{side.name} is finished and has the workers {workers}"
        assert self.gatherer is not side, "a finished run has the right to gather"
        live, replayed = side.run.ledger, side.replayed
        assert live.jobs.keys() == replayed.jobs.keys()
        for name, record in live.jobs.items():
            assert record == replayed.jobs[name], f"{name}: replay differs"
        assert live == replayed, "the replayed ledger differs"
        for name, record in live.jobs.items():
            due = record.definition.due
            first = side.dues.get(name)
            assert due is None or due.utc == first, f"{name} is due at {due}, read as {first}"
        state, reason = side.run.outcome()
        if state == "succeeded":
            bad = [n for n in side.jobs if live.jobs[n.name].state != "succeeded"]
            assert not bad, f"succeeded with {bad}"
        else:
            assert reason, f"{state} without a reason"
        for job in side.jobs:
            record = live.jobs[job.name]
            assert not record.vanished, f"{job.name} is in the list, and recorded as gone"
            assert record.reason != Because("not_in_file"), f"{job.name} is in the list"
            if record.state in ("failed", "skipped", "cancelled"):
                assert record.reason, f"{job.name} {record.state} without a reason"
            if record.state == "waiting":
                assert side.run.why_waiting(job.name), f"{job.name} waits without a reason"
