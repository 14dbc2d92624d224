"""What one run knows: its configuration, its jobs, cards and attempts, and what it remembers.

    RunConfig ─▶ State ◀─ functions of (state, ...): graph, on_cards, completion, why ...
                │
                └─ Effects: the facts and instructions of the event in hand

Containers guard what they hold (`Cards` alone emits Acquire, Release and Drain); all decisions are
functions over the whole, in the modules above this one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from gpulaunch.core.attempts import ActiveAttempts, IdleWorkers, Share, cpus_of
from gpulaunch.core.cards import Cards, Effects, GangReservation
from gpulaunch.core.jobs import Jobs, Node, Ready
from gpulaunch.core.ledger import JobRecord, Ledger
from gpulaunch.core.model import AttemptId, Demand, Gpu, Instant, Outcome
from gpulaunch.core.reasons import AttemptEnd, FailedAlike, RunReason, TooManyFailed
from gpulaunch.core.values import Tagged

# ── The breaker: many jobs in a row that fail fast and alike ──────────────────────────────────────

FAST_FAILURE_SECONDS = 60.0
"""Seconds below which a failed attempt counts: it has hardly begun its work."""

_VARIES = re.compile(r"0x[0-9a-f]+|\d+")
MIN_BREAKER = 3
"""Characters that a job's value needs to be taken out of a text: shorter ones are in any text."""


class Breaker:
    """A count of jobs that failed alike. `tripped`: why nothing more starts; None: it may.

    `limit`: so many jobs trip it; None: never. It counts different jobs, with no success and no
    other kind of failure between them. A job counts once it has failed for good, or once it has
    failed again: a first failure that is about to be repeated says little, and neither does one
    whose repeat changes something (`core.completion`).

    Stopping a list that would have gone well costs a night, running one that fails at once costs
    little: so the limit has to be a number that chance does not reach. The count is lost with its
    supervisor, and `core.run` decides what follows from a trip.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._alike: tuple[Outcome, str] | None = None
        self._jobs: set[str] = set()
        self.tripped: FailedAlike | None = None

    def worked(self) -> None:
        self._jobs.clear()

    def failed(
        self,
        job: str,
        end: AttemptEnd,
        evidence: str,
        params: Iterable[str],
        seconds: float,
        counts: bool = True,
    ) -> None:
        """Note a failed attempt that ran for `seconds`; trip once `limit` jobs failed alike.

        `evidence` shows why it ended so; `params` are the job's values, which differ from job to
        job. `counts`: the job counts by it; otherwise it goes again and may do better.
        """
        if self._limit is None or seconds >= FAST_FAILURE_SECONDS:
            self._jobs.clear()
            return
        alike = (end.outcome, without_own(evidence, (job, *params)))
        if alike != self._alike:
            self._alike = alike
            self._jobs.clear()
        if counts:
            self._jobs.add(job)
        if len(self._jobs) >= self._limit and not self.tripped:
            shown = AttemptEnd(end.outcome, evidence, end.service)
            self.tripped = FailedAlike(len(self._jobs), FAST_FAILURE_SECONDS, shown)

    def reset(self) -> None:
        self._jobs.clear()
        self.tripped = None


def without_own(text: str, params: Iterable[str]) -> str:
    """Return the text with the job's own values as `*` and every number as 0."""
    for value in sorted(params, key=len, reverse=True):
        if len(value) >= MIN_BREAKER:
            text = text.replace(value, "*")
    return _VARIES.sub("0", text)


# ── What a run knows ──────────────────────────────────────────────────────────────────────────────

NO_BOUND = 1 << 60
"""CPUs that jobs without cards may take together, and bytes that all may reserve, where that has
no limit: the engine places."""


class OnCards(Tagged, frozen=True, tag="on_cards"):
    """The run places its jobs on cards.

    `limit`: cards held at once, None: all; `cpus`: CPUs that jobs without cards may take together;
    `memory`: bytes of the host's that all attempts may reserve together, None: any. `limited_by`:
    the place that sets `limit` for all launchers of the user; empty: it is the run's alone.
    """

    limit: int | None = None
    cpus: int = 1
    memory: int | None = None
    limited_by: str = ""


class InEngineQueue(Tagged, frozen=True, tag="in_engine_queue"):
    """An engine queues and places by itself; attempts handed over by an earlier supervisor go on.

    `most`: attempts that may be with it at once. `limit`: cards that they may take together, None
    for any number. `ahead`: it is also handed jobs whose needs are under way, to start them once
    those have succeeded.
    """

    most: int
    limit: int | None = None
    ahead: bool = False


class RunConfig(Struct, frozen=True):
    """How a run is to be carried out.

    `limits`: tokens by name (1 where nothing is said). `max_failures`: failed jobs after which
    nothing new is started (`fail_fast`: 1). `breaker`: jobs that fail fast and alike in a row,
    after which nothing new is started; the run then waits for a person (`patient`), or ends.
    `pinned`: an attempt that is seen on a card of others fails; else that is only noted.
    """

    placing: OnCards | InEngineQueue = OnCards()
    limits: Mapping[str, int] = field(default_factory=dict)
    max_failures: int | None = None
    fail_fast: bool = False
    breaker: int | None = None
    patient: bool = False
    pinned: bool = True

    @property
    def queues(self) -> bool:
        """True where an engine queues and places by itself."""
        return isinstance(self.placing, InEngineQueue)

    @property
    def limited_by(self) -> str:
        """The place that limits the cards of all launchers of the user; empty: none does."""
        return self.placing.limited_by if isinstance(self.placing, OnCards) else ""

    @property
    def ahead(self) -> bool:
        return isinstance(self.placing, InEngineQueue) and self.placing.ahead

    @property
    def cpus(self) -> int:
        """The CPUs that jobs without cards may take together."""
        return max(1, self.placing.cpus) if isinstance(self.placing, OnCards) else NO_BOUND

    @property
    def memory(self) -> int:
        """The bytes of the host's memory that all attempts may reserve together."""
        placing = self.placing
        most = placing.memory if isinstance(placing, OnCards) else None
        return NO_BOUND if most is None else most

    def tokens(self, name: str) -> int:
        return self.limits.get(name, 1)


class Pass(Struct):
    """What one pass over the ready jobs found.

    `blocked`: ready jobs that it could not start. `kept_*`: what later jobs of the pass may not
    take, as a job that was overtaken too often waits for it, or has cards on their way;
    `memory_for`: the first one for which memory is gathered. `reserved`: cards are claimed for the
    job that cards are kept for. `settled`: it settled a job, so that another pass may start more.
    `unified`: the run has cards whose memory is the host's.
    """

    blocked: list[Node] = field(default_factory=list)
    kept_tokens: Counter[str] = field(default_factory=Counter)
    kept_cpus: bool = False
    kept_memory: int = 0
    memory_for: Node | None = None
    kept_cards: bool = False
    reserved: bool = False
    settled: bool = False
    unified: bool = False
    shares: Mapping[Demand, Share] = field(default_factory=dict)

    def starts(self, demand: Demand) -> None:
        """Count the start of a job of this demand against the jobs whose turn it was before."""
        for node in self.blocked:
            if _takes_what_it_lacks(demand, node, self.unified):
                node.become(Ready(node.skipped + 1, node.lacks))


class Placing(Struct):
    """What admission remembers from one event to the next.

    `patience`: overtakes after which a job has what it waits for kept. `reserving`: the job for
    which cards are kept as they come free, a wide one with the right of `gang`; `focus`: the only
    job that may start now, with its services. `wants_cards`: as the engine
    was last told.
    """

    gang: GangReservation
    patience: int
    last: Pass = field(default_factory=Pass)
    wants_cards: bool = True
    reserving: Node | None = None
    focus: Node | None = None


class FailureStreak(Struct):
    """Jobs that failed on a card since the last success there, each with its class.

    `cleared` are those of these jobs that have succeeded elsewhere since. `good` and `bad` count
    all successes and failures on other cards since.
    """

    failed: dict[str, str] = field(default_factory=dict)
    cleared: set[str] = field(default_factory=set)
    good: int = 0
    bad: int = 0


class FailureCounts(Struct):
    """What ends of attempts say of cards (by UUID) and of the list.

    `failed_on`: the card that each job failed on first; `tried`: jobs that had one more try on a
    card's account.
    """

    breaker: Breaker
    streaks: dict[str, FailureStreak] = field(default_factory=dict)
    failed_on: dict[str, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)


class DeadlockWatch(Struct):
    """Since when nothing moves, until when the run waits for other launchers, and whether the
    services were stopped for the focused job."""

    since: float | None = None
    due: float = 0.0
    cleared: bool = False


class Course(Struct):
    """How far the run is. `killing`: it is to end at once; `out_of_reach`: why it is given up.

    `unending`: the engine has said of an attempt or a worker that it does not end. `reported`:
    reports of the driver that are on record.
    """

    submitted: bool = False
    killing: bool = False
    out_of_reach: RunReason | None = None
    unending: bool = False
    reported: set[tuple[str, str, tuple[AttemptId, ...]]] = field(default_factory=set)


class LearnedMemory(Struct):
    """What `gpu_memory: auto` has learned. `peaks`: the most that jobs of a kind took, in bytes."""

    peaks: dict[int, int] = field(default_factory=dict)


class State(Struct):
    """Everything that a run's decisions rest on. Only `Effects` changes the ledger."""

    config: RunConfig
    effects: Effects
    jobs: Jobs
    cards: Cards
    attempts: ActiveAttempts
    idle_workers: IdleWorkers
    placing: Placing
    health: FailureCounts
    standstill: DeadlockWatch
    course: Course
    learned: LearnedMemory

    @classmethod
    def new(
        cls, ledger: Ledger, gpus: Sequence[Gpu] = (), config: RunConfig | None = None
    ) -> State:
        """Return the state of a run whose jobs are not submitted yet."""
        config = config or RunConfig()
        effects = Effects(ledger)
        width = len(gpus) if not config.queues else config.placing.limit or 1
        return cls(
            config,
            effects,
            Jobs(),
            Cards(gpus, config.placing.limit, effects),
            ActiveAttempts(effects, config.queues),
            IdleWorkers(effects),
            Placing(GangReservation(effects), 2 * max(1, width)),
            FailureCounts(Breaker(config.breaker)),
            DeadlockWatch(),
            Course(),
            LearnedMemory(),
        )

    @property
    def ledger(self) -> Ledger:
        return self.effects.ledger

    @property
    def now(self) -> Instant:
        """The time of the event in hand."""
        return self.effects.now

    @property
    def closed(self) -> RunReason | None:
        """Why nothing new is started; None while jobs may start."""
        ledger = self.effects.ledger
        return ledger.stopping or self.halted or ledger.paused

    @property
    def halted(self) -> RunReason | None:
        """Why failures keep the run from starting anything new; None while they do not."""
        config, failed, tripped = self.config, self.jobs.failed, self.health.breaker.tripped
        if not (failed or tripped):
            return None  # asked many times in every turn
        if tripped and not config.patient:
            return tripped
        if config.fail_fast:
            return TooManyFailed(next(iter(failed)).name, None) if failed else None
        if config.max_failures is None or len(failed) < config.max_failures:
            return None
        return TooManyFailed(next(reversed(failed)).name, config.max_failures)

    def record(self, node: Node) -> JobRecord:
        return self.effects.ledger.jobs[node.name]

    def lacks_tokens(self, demand: Demand) -> bool:
        """Tell whether the demand's tokens are not to be had now, or are kept for another job."""
        return bool(demand.uses) and any(
            self.attempts.tokens[token] + self.placing.last.kept_tokens[token] + count
            > self.config.tokens(token)
            for token, count in Counter(demand.uses).items()
        )


def _takes_what_it_lacks(demand: Demand, other: Node, unified: bool) -> bool:
    """Tell whether a job of this demand takes what `other`, which is blocked, waits for.

    `unified`: the memory of cards is the host's.
    """
    match other.lacks:
        case "cards":
            return demand.gpus > 0
        case "tokens":
            return bool(set(demand.uses) & set(other.job.demand.uses))
        case "cpus":
            return cpus_of(demand) > 0
        case "memory":
            return demand.memory > 0 or (unified and demand.gpu_memory > 0)
    return False
