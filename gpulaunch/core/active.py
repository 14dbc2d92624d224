"""Attempts that have not ended, what they take, and whether they were asked to end.

Only this module emits Launch, and it counts tokens, CPUs and memory. Cards are taken by
`core.admission`, which decides on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch.core.card import Card
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import Ended, Launch, StopReason
from gpulaunch.core.facts import AttemptLaunched
from gpulaunch.core.ladder import next_step
from gpulaunch.core.model import AttemptId, Demand, Failure
from gpulaunch.core.waiting import Launched, Node

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
