"""Attempts that have not ended, and workers without one: what they take, and if they are to end.

Only this module emits Launch and EndWorker, and it counts tokens, CPUs and memory. It does not
decide which job runs where, or in which worker: the modules that decide that take the cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch.core.cards import Card, Effects
from gpulaunch.core.events import Ended, EndWorker, Launch, SetTimer, StopReason, Timer
from gpulaunch.core.facts import AttemptLaunched, WorkerGone, WorkerLeft
from gpulaunch.core.jobs import Launched, Node
from gpulaunch.core.ledger import next_step
from gpulaunch.core.model import AttemptId, Demand, Failure

_RANK: dict[StopReason | None, int] = {None: 0, "stopped": 1, "interrupted": 2, "cancelled": 3}

Origin: TypeAlias = Literal["own", "inherited", "adopted"]
"""Who launched an attempt. `own`: this supervisor. `inherited`: an earlier one; its keeper ends it
by itself, and its cards are not this run's. `adopted`: an earlier one handed it to the engine's
queue, where it outlives supervisors; this one treats it like its own."""


class Going(Struct, frozen=True):
    """Nobody has asked the attempt to end."""


class Stopping(Struct, frozen=True):
    """The attempt was asked to end. `reason` is the strongest that was given; `now`: by KILL.

    `service`: the one whose end interrupted it. `gently`: its warning goes ahead.
    """

    reason: StopReason
    now: bool = False
    gently: bool = False
    service: Node | None = None


GOING = Going()
TRANSITIONS = {Going: (Stopping,), Stopping: (Stopping,)}
"""The legal transitions of an active attempt's state."""


class Share(Struct, eq=False):
    """Attempts of one demand of which the engine itself lets at most `at_once` run at a time.

    Each uses `each` tokens; `lives` of the attempts have not ended.
    """

    token: str
    each: int
    at_once: int
    lives: int = 0

    @property
    def taken(self) -> int:
        """Tokens that these attempts take together: those of at most `at_once` attempts."""
        return self.each * min(self.at_once, self.lives)


class Handed(Struct, frozen=True):
    """How an attempt was handed to an engine that queues.

    `after`: it starts once these have succeeded. `share`: those with which it shares its tokens.
    """

    after: tuple[AttemptId, ...] = ()
    share: Share | None = None


_HANDED_ALONE = Handed()


class ActiveAttempt(Struct, eq=False):
    """An attempt that has not ended.

    `node` is None when the job is no longer in the file. `seat`: the attempt for which its process
    was started, its own or that of an earlier one of the same worker; it is the `turn`th of these.
    `behind`: the attempt that it is to follow in that worker; it has no card until then.
    `follower`: the attempt that is behind this one. `taken_back`: TakeBack was emitted for it.
    `misplaced`: the failure, if it was seen on a card that is not its own. `promised`: the demand
    with what the attempt is promised of its card's memory. `peak`: bytes that it was seen to take
    of it at most. `ended_for`: the failure for which it is being ended, if it held its cards'
    memory and computed nothing for too long, or is a service that did not answer. `held`: its end,
    which is not judged before `held_until` (monotonic seconds). `unending`: the processes that
    cannot be killed, once the engine has said that the attempt does not end.
    """

    id: AttemptId
    node: Node | None
    demand: Demand
    seat: AttemptId
    cards: tuple[Card, ...] = ()
    origin: Origin = "own"
    handed: Handed = _HANDED_ALONE
    state: Going | Stopping = GOING
    misplaced: Failure | None = None
    ended_for: Failure | None = None
    held: Ended | None = None
    held_until: float = 0.0
    turn: int = 1
    behind: ActiveAttempt | None = None
    follower: ActiveAttempt | None = None
    taken_back: bool = False
    promised: Demand = Demand()
    peak: int = 0
    unending: tuple[int, ...] | None = None

    @property
    def inherited(self) -> bool:
        return self.origin == "inherited"

    @property
    def adopted(self) -> bool:
        return self.origin == "adopted"

    @property
    def stopping(self) -> StopReason | None:
        """The strongest reason for which it was asked to end; None: nobody asked."""
        return self.state.reason if isinstance(self.state, Stopping) else None

    @property
    def service(self) -> Node | None:
        return self.node if self.node is not None and self.node.job.service else None

    @property
    def cpus(self) -> int:
        """CPUs that the attempt takes of the run's: attempts with cards and services take none."""
        return 0 if self.service else cpus_of(self.demand)

    @property
    def memory(self) -> int:
        """Bytes of the host's memory that are reserved for the attempt's process.

        None for one that is behind another: they are that one's, until this one has its worker.
        """
        return 0 if self.behind is not None else self.demand.memory

    def become(self, state: Going | Stopping) -> None:
        """Change what the attempt was asked: the only door, which tests watch."""
        self.state = state

    def stop(
        self, reason: StopReason, now: bool, service: Node | None, gently: bool = False
    ) -> Stopping | None:
        """Note that it is to end so; return that, or None where it was asked as much before.

        A weaker reason after a stronger one changes nothing.
        """
        before = self.state if isinstance(self.state, Stopping) else Stopping(reason, gently=gently)
        more = _RANK[reason] > _RANK[self.stopping] or (now and not before.now)
        more = more or (before.gently and not gently)
        strongest = max(reason, before.reason, key=_RANK.__getitem__)
        gently = before.gently and gently
        stop = Stopping(strongest, before.now or (more and now), gently, service or before.service)
        if more or service is not None:
            self.become(stop)
        return stop if more else None


class ActiveAttempts:
    """All attempts of the run that have not ended, and the tokens, CPUs, memory, cards they take.

    `queueing`: the engine places attempts by itself, and they outlive a supervisor. `held`: those
    that have ended, and whose end is not judged yet.
    """

    def __init__(self, effects: Effects, queueing: bool = False) -> None:
        self._effects = effects
        self._queueing = queueing
        self._live: dict[AttemptId, ActiveAttempt] = {}
        self.tokens: Counter[str] = Counter()
        self.cpus = 0
        self.memory = 0
        self.gpus = 0
        self.held: list[ActiveAttempt] = []

    def __iter__(self) -> Iterator[ActiveAttempt]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def get(self, attempt: AttemptId) -> ActiveAttempt | None:
        return self._live.get(attempt)

    def inherit(self, attempt: AttemptId, node: Node | None) -> None:
        """Take up an attempt that has no end on record and was launched by an earlier supervisor.

        `node`: None where its job is no longer in the file.
        """
        if self._queueing:
            self._adopt(attempt, node)
            return
        demand = node.job.demand if node is not None else Demand(gpus=0, cpus=0)
        self._begin(ActiveAttempt(attempt, node, demand, attempt, origin="inherited"))

    def _adopt(self, attempt: AttemptId, node: Node | None) -> None:
        record = self._effects.ledger.jobs[attempt.job]
        demand = Demand(gpus=record.definition.gpus, cpus=0)
        if node is not None:
            demand, node.fresh_from = node.job.demand, attempt.number
        handed = Handed(self._effects.ledger.attempt(attempt).after)
        self._begin(ActiveAttempt(attempt, node, demand, attempt, (), "adopted", handed))

    def join(self, live: ActiveAttempt, node: Node) -> None:
        """Take note that the list has the job of an attempt again, whose node this is."""
        self._count(live, -1)
        live.node, live.demand = node, node.job.demand
        self._count(live, +1)

    def launch(
        self,
        node: Node,
        cards: tuple[Card, ...],
        worker: AttemptId | None = None,
        handed: Handed = _HANDED_ALONE,
        turn: int = 1,
        promised: Demand | None = None,
        behind: ActiveAttempt | None = None,
    ) -> ActiveAttempt:
        """Launch the job's next attempt on these cards and return the attempt.

        `worker`: the worker that runs it, as its `turn`th attempt: an idle one, or that of the
        attempt `behind`, which has these cards until it has ended. `promised`: its demand with what
        it is promised of the cards' memory; None: what the demand itself says.
        """
        id, demand = self.next_of(node), node.job.demand
        live = ActiveAttempt(id, node, demand, worker or id, handed=handed, turn=turn)
        live.promised, live.behind = promised or demand, behind
        if behind is None:
            live.cards = cards
        else:
            behind.follower = live
        self._begin(live)
        gpus = tuple(card.gpu for card in cards)
        uuids = tuple(gpu.uuid for gpu in gpus)
        after, share = handed.after, handed.share
        step, promise = next_step(self._effects.ledger, node.job), share_of(live.promised)
        first, queued = None if behind is None else behind.id, self._queueing
        fact = AttemptLaunched(id, uuids, worker, queued, after, first, step, promise)
        self._effects.fact(fact)
        token_limit = (share.token, share.at_once) if share else None
        launch = Launch(id, node.job, gpus, worker, after, token_limit, first, step, promise)
        self._effects.emit(launch)
        return live

    def next_of(self, node: Node) -> AttemptId:
        """Return the name of the job's next attempt."""
        return AttemptId(node.name, len(self._effects.ledger.jobs[node.name].attempts) + 1)

    def _begin(self, live: ActiveAttempt) -> None:
        self._live[live.id] = live
        self._count(live, +1)
        if live.node is not None:
            live.node.become(Launched(live.id))

    def end(self, live: ActiveAttempt) -> None:
        del self._live[live.id]
        self._count(live, -1)
        for card in live.cards:
            del card.attempts[live.id]
        if live.behind is not None and live.behind.follower is live:
            live.behind.follower = None

    def _count(self, live: ActiveAttempt, step: int) -> None:
        self._count_tokens(live, step)
        self.cpus += step * live.cpus
        if live.demand.memory:
            self.memory += step * live.memory
        self.gpus += step * live.demand.gpus

    def _count_tokens(self, live: ActiveAttempt, step: int) -> None:
        share = live.handed.share
        if share is not None:
            before, share.lives = share.taken, share.lives + step
            self.tokens[share.token] += share.taken - before
        elif not live.demand.uses:
            return
        elif step > 0:
            self.tokens.update(live.demand.uses)
        else:
            self.tokens.subtract(live.demand.uses)

    def services(self) -> list[ActiveAttempt]:
        return [live for live in self._live.values() if live.service]


def share_of(demand: Demand) -> int:
    """Return the bytes of its card's memory that a demand is promised beside others."""
    return demand.promise if demand.shares_card else 0


def cpus_of(demand: Demand) -> int:
    """Return how many CPUs a demand reserves: 0 with cards, else 1 where unstated."""
    if demand.gpus:
        return 0
    return 1 if demand.cpus is None else demand.cpus


# ── Idle workers ──────────────────────────────────────────────────────────────────────────────────

LINGER = 60.0
"""Seconds for which an idle worker may keep its cards for later jobs: loading again may cost more
than cards that are idle, but not for long."""


class IdleWorker(Struct, eq=False):
    """A worker without an attempt. `id` is the attempt that the worker was started with.

    `turns`: the attempts that it has run.
    `until`: the monotonic time at which it is ended at the latest. `lingers`: a timer for that is
    set. `ending`: EndWorker was emitted; `killed`: with KILL at once. `unending` as of an attempt.
    """

    id: AttemptId
    demand: Demand
    cards: tuple[Card, ...]
    until: float
    turns: int = 1
    lingers: bool = False
    ending: bool = False
    killed: bool = False
    unending: tuple[int, ...] | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(card.gpu.uuid for card in self.cards)

    def suits(self, demand: Demand) -> bool:
        """Tell whether an attempt of this demand may start in the worker at once."""
        if self.ending or not self.demand.same_seat(demand):
            return False
        return self.may_stay and not any(card.gpu.uuid in demand.avoid for card in self.cards)

    @property
    def may_stay(self) -> bool:
        """True while another attempt may start on all of the worker's cards."""
        return all(may_go_on(card) for card in self.cards)


class IdleWorkers:
    """All workers without an attempt. Cards carry them, as they carry attempts.

    Ended(kept) ─▶ idle ──a job of its key is ready──▶ Launch(worker=...)
                     └──none to come, or its cards are wanted──▶ EndWorker ─▶ WorkerEnded ─▶ drain

    INVARIANT: once an event has been handled, a worker that is not being ended has jobs of its key
    to come, nobody known wants its cards, and LINGER seconds are not over. A worker's memory is
    never beside a job that is not its own.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._by_id: dict[AttemptId, IdleWorker] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[IdleWorker]:
        return iter(list(self._by_id.values()))

    @property
    def memory(self) -> int:
        """Bytes of the host's memory that are reserved for these workers."""
        return sum(resident.demand.memory for resident in self._by_id.values())

    def stay(self, live: ActiveAttempt) -> None:
        """Add the worker of an attempt that has ended."""
        until = self._effects.now.mono + LINGER
        resident = IdleWorker(live.seat, live.demand, live.cards, until, live.turn)
        self._by_id[live.seat] = resident
        for card in live.cards:
            card.idle_workers[live.seat] = live.promised

    def get(self, worker: AttemptId) -> IdleWorker | None:
        return self._by_id.get(worker)

    def fit(self, demand: Demand) -> IdleWorker | None:
        """Return the idle worker for this demand whose card has the lowest index."""
        if not demand.worker or not self._by_id:
            return None
        found = [resident for resident in self._by_id.values() if resident.suits(demand)]
        return min(found, key=_place, default=None)

    def take(self, resident: IdleWorker) -> None:
        """Remove the worker, as an attempt starts in it, or nothing is left of it."""
        del self._by_id[resident.id]
        for card in resident.cards:
            del card.idle_workers[resident.id]

    def end(self, resident: IdleWorker, now: bool = False) -> None:
        if not resident.ending:
            self._effects.fact(WorkerLeft(resident.id, resident.gpus))
        if not resident.ending or (now and not resident.killed):
            resident.ending = True
            resident.killed = resident.killed or now
            self._effects.emit(EndWorker(resident.id, resident.killed))

    def end_idle(self, to_come: Callable[[Demand], bool]) -> bool:
        """End the workers that may not wait any longer; return whether there was one.

        `to_come`: whether a worker of that demand may wait for jobs that are not ready yet.
        """
        ended = False
        for resident in self:
            if resident.ending:
                continue
            early = self._effects.now.mono < resident.until
            if not (early and resident.may_stay and to_come(resident.demand)):
                self.end(resident)
                ended = True
            elif not resident.lingers:
                resident.lingers = True
                self._effects.emit(SetTimer(Timer("worker", str(resident.id)), resident.until))
        return ended

    def gone(self, worker: AttemptId) -> tuple[Card, ...]:
        """Remove a worker that is gone, and return its cards; none for an unknown worker."""
        resident = self._by_id.get(worker)
        if resident is None:
            return ()
        self.take(resident)
        if resident.ending:
            self._effects.fact(WorkerGone(resident.id, resident.gpus))
        return resident.cards


def may_go_on(card: Card) -> bool:
    """Tell whether another attempt may follow on the card once the one there has ended."""
    if not card.leased or card.drained or card.reserved or card.failing or card.wanted:
        return False
    return not card.reservations


def _place(resident: IdleWorker) -> tuple[tuple[int, ...], AttemptId]:
    return tuple(card.gpu.index for card in resident.cards), resident.id
