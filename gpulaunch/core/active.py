"""Attempts that run now, what they take, and what was asked of them. Launch and stop are told here.

Cards are taken by whoever decided on them (`core.admission`); tokens and CPUs are counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core.cards import Card
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import Launch, StopAttempt
from gpulaunch.core.facts import AttemptLaunched
from gpulaunch.core.model import AttemptId, Demand, Failure
from gpulaunch.core.waiting import Node

Wish: TypeAlias = Literal["", "stopped", "interrupted", "cancelled"]
_RANK: dict[Wish, int] = {"": 0, "stopped": 1, "interrupted": 2, "cancelled": 3}


@dataclass(slots=True, eq=False)
class Share:
    """Attempts of one demand that an engine was handed together, to let no more than `at_once` of
    them run at a time: together they take the tokens of so many. `lives`: how many have not ended.
    """

    token: str
    each: int
    at_once: int
    lives: int = 0

    @property
    def taken(self) -> int:
        """Tokens that they take."""
        return self.each * min(self.at_once, self.lives)


@dataclass(slots=True, eq=False)
class ActiveAttempt:
    """An attempt that has not ended. `wish` is what was asked of it, the strongest so far.

    `inherited`: an earlier supervisor started it; its keeper ends it by itself, and its cards are
    not ours. `node` is None when the job is no longer in the file. `cause`: the service that went.
    `misplaced`: it was seen on a card that is not its own. `worker`: the attempt whose process goes
    on with this one. `adopted`: an earlier supervisor handed it to the engine's queue: it goes on
    without, and is ours as any other. `after`: it starts once these have succeeded. `share`: with
    whom it shares its tokens.
    """

    id: AttemptId
    node: Node | None
    demand: Demand
    cards: tuple[Card, ...] = ()
    inherited: bool = False
    wish: Wish = ""
    killed: bool = False
    cause: Node | None = None
    misplaced: Failure | None = None
    worker: AttemptId | None = None
    adopted: bool = False
    after: tuple[AttemptId, ...] = ()
    share: Share | None = None

    @property
    def service(self) -> Node | None:
        return self.node if self.node is not None and self.node.job.service else None

    @property
    def cpus(self) -> int:
        """CPUs that it takes from those allowed: jobs with cards and services take none."""
        return 0 if self.service else cpus_of(self.demand)


class ActiveAttempts:
    """`queueing`: the engine places them by itself, and they outlive a supervisor."""

    def __init__(self, effects: Effects, queueing: bool = False) -> None:
        self._effects = effects
        self._queueing = queueing
        self._live: dict[AttemptId, ActiveAttempt] = {}
        self.tokens: Counter[str] = Counter()
        self.cpus = 0
        self.gpus = 0
        self.on_service_stopping: Callable[[Node], None] = lambda service: None

    def __iter__(self) -> Iterator[ActiveAttempt]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def get(self, attempt: AttemptId) -> ActiveAttempt | None:
        return self._live.get(attempt)

    def inherit(self, attempt: AttemptId, node: Node | None) -> None:
        """Take up one that an earlier supervisor left without an end. `node`: None where its job
        is no longer in the file."""
        if self._queueing:
            self._adopt(attempt, node)
            return
        demand = node.job.demand if node is not None else Demand(gpus=0, cpus=0)
        self._begin(ActiveAttempt(attempt, node, demand, inherited=True))

    def _adopt(self, attempt: AttemptId, node: Node | None) -> None:
        record = self._effects.ledger.jobs[attempt.job]
        demand = Demand(gpus=record.gpus, cpus=0)
        if node is not None:
            demand, node.fresh_from = node.job.demand, attempt.number
        after = self._effects.ledger.attempt(attempt).after
        self._begin(ActiveAttempt(attempt, node, demand, adopted=True, after=after))

    def launch(
        self,
        node: Node,
        cards: tuple[Card, ...],
        worker: AttemptId | None = None,
        after: tuple[AttemptId, ...] = (),
        share: Share | None = None,
    ) -> ActiveAttempt:
        """Start the job's next attempt on these cards, which suit it; in an idle worker's process
        where one is named. `after`: once these have succeeded; `share`: as one of these."""
        number = len(self._effects.ledger.jobs[node.name].attempts) + 1
        live = ActiveAttempt(
            AttemptId(node.name, number), node, node.job.demand, cards, worker=worker
        )
        live.after, live.share = after, share
        self._begin(live)
        gpus = tuple(card.gpu for card in cards)
        uuids = tuple(gpu.uuid for gpu in gpus)
        self._effects.fact(AttemptLaunched(live.id, uuids, worker, self._queueing, after))
        told = (share.token, share.at_once) if share else None
        self._effects.emit(Launch(live.id, node.job, gpus, worker, after, told))
        return live

    def _begin(self, live: ActiveAttempt) -> None:
        self._live[live.id] = live
        self._count_tokens(live, +1)
        self.cpus += live.cpus
        self.gpus += live.demand.gpus
        if live.node is not None:
            live.node.state, live.node.attempt = "running", live.id
            live.node.skipped, live.node.blocked_on = 0, ""

    def end(self, live: ActiveAttempt) -> None:
        del self._live[live.id]
        self._count_tokens(live, -1)
        self.cpus -= live.cpus
        self.gpus -= live.demand.gpus
        for card in live.cards:
            del card.attempts[live.id]
        if live.node is not None:
            live.node.attempt = None

    def _count_tokens(self, live: ActiveAttempt, step: int) -> None:
        share = live.share
        if share is not None:
            before, share.lives = share.taken, share.lives + step
            self.tokens[share.token] += share.taken - before
        elif step > 0:
            self.tokens.update(live.demand.uses)
        else:
            self.tokens.subtract(live.demand.uses)

    def stop(self, live: ActiveAttempt, wish: Wish, by: str, now: bool = False) -> None:
        """Ask for its end. A weaker wish after a stronger one changes nothing."""
        if _RANK[wish] <= _RANK[live.wish] and not (now and not live.killed):
            return
        live.wish = max(wish, live.wish, key=_RANK.__getitem__)
        live.killed = live.killed or now
        if live.service:
            self.on_service_stopping(live.service)
        if not live.inherited and live.wish:
            self._effects.emit(StopAttempt(live.id, live.wish, by, live.killed))

    def services(self) -> list[ActiveAttempt]:
        return [live for live in self._live.values() if live.service]


def cpus_of(demand: Demand) -> int:
    """CPUs reserved while it runs; a job with cards is never held back by them."""
    if demand.gpus:
        return 0
    return 1 if demand.cpus is None else demand.cpus
