"""Attempts that have not ended, what they take, and whether they were asked to end.

Only this module emits Launch and StopAttempt, and it counts tokens and CPUs. Cards are taken by
`core.admission`, which decides on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpulaunch.core.cards import Card
from gpulaunch.core.causes import EndCause
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import Launch, StopAttempt
from gpulaunch.core.facts import AttemptLaunched
from gpulaunch.core.model import AttemptId, Demand, Failure
from gpulaunch.core.waiting import Node

Wish: TypeAlias = Literal["", "stopped", "interrupted", "cancelled"]
_RANK: dict[Wish, int] = {"": 0, "stopped": 1, "interrupted": 2, "cancelled": 3}


@dataclass(slots=True, eq=False)
class Share:
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


@dataclass(slots=True, eq=False)
class ActiveAttempt:
    """An attempt that has not ended. `wish` is the strongest way in which it was asked to end.

    `node` is None when the job is no longer in the file. `killed`: it is to end by KILL at once.
    `inherited`: an earlier supervisor started it; its keeper ends it by itself, and its cards are
    not this run's. `adopted`: an earlier supervisor handed it to the engine's queue, where it
    outlives supervisors; this one treats it like its own. `cause`: the service whose end
    interrupted it. `misplaced`: the failure, if it was seen on a card that is not its own.
    `worker`: the attempt that started the worker in which this one runs. `after`: it starts once
    these have succeeded. `share`: the attempts with which it shares its tokens.
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
        """CPUs that the attempt takes of the run's: attempts with cards and services take none."""
        return 0 if self.service else cpus_of(self.demand)


class ActiveAttempts:
    """All attempts of the run that have not ended, with the tokens, CPUs and cards they take.

    `queueing`: the engine places attempts by itself, and they outlive a supervisor.
    """

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
        """Take up an attempt that has no end on record and was launched by an earlier supervisor.

        `node`: None where its job is no longer in the file.
        """
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
        """Launch the job's next attempt on these cards and return the attempt.

        `worker`: the idle worker that runs it. `after`: attempts that must succeed before it
        starts. `share`: the attempts with which it shares its tokens.
        """
        number = len(self._effects.ledger.jobs[node.name].attempts) + 1
        live = ActiveAttempt(
            AttemptId(node.name, number), node, node.job.demand, cards, worker=worker
        )
        live.after, live.share = after, share
        self._begin(live)
        gpus = tuple(card.gpu for card in cards)
        uuids = tuple(gpu.uuid for gpu in gpus)
        self._effects.fact(AttemptLaunched(live.id, uuids, worker, self._queueing, after))
        token_limit = (share.token, share.at_once) if share else None
        self._effects.emit(Launch(live.id, node.job, gpus, worker, after, token_limit))
        return live

    def _begin(self, live: ActiveAttempt) -> None:
        self._live[live.id] = live
        self._count_tokens(live, +1)
        self.cpus += live.cpus
        self.gpus += live.demand.gpus
        if live.node is not None:
            live.node.state, live.node.attempt = "running", live.id
            live.node.skipped, live.node.blocked_on = 0, None

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

    def stop(self, live: ActiveAttempt, wish: Wish, by: EndCause, now: bool = False) -> None:
        """Ask the engine to end the attempt. A weaker wish after a stronger one changes nothing.

        `by`: who or what asked; `now`: KILL at once.
        """
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
    """The CPUs that an attempt of this demand reserves: 0 with cards, else 1 where unstated."""
    if demand.gpus:
        return 0
    return 1 if demand.cpus is None else demand.cpus
