"""Which jobs are handed to an engine that queues and places by itself, and in which order.

    ready job ──room among the handed over, tokens, cards within the run's limit──▶ Launch
                                                        the engine's queue ─▶ Queued ─▶ Started

The passes over the ready jobs are those of `core.admission`, without cards: the engine decides
where an attempt runs, and when its turn comes.

Where all jobs of one demand, and no others, use a token, and all are ready, the engine is handed
all of them at once, with how many it may let run at a time.

With `ahead`, a job is handed over as soon as all that it needs is under way or done: the engine
starts it when that has succeeded, even if no supervisor is alive by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpulaunch.core.active import ActiveAttempt, ActiveAttempts, Share
from gpulaunch.core.admission import Admission
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.causes import Because
from gpulaunch.core.effects import Effects
from gpulaunch.core.idle_workers import IdleWorkers
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.model import AttemptId, Demand, Instant
from gpulaunch.core.placement import tokens_short
from gpulaunch.core.reasons import (
    CardsCapped,
    Impossible,
    NeedsShare,
    NeedsTurn,
    RunReason,
    WaitReason,
)
from gpulaunch.core.waiting import BlockedOn, Key, Node
from gpulaunch.core.why import Why

NO_BOUND = 1 << 60
"""CPUs that jobs without cards may take together where the engine places: no limit."""

AHEAD_OF = 50
"""Needs up to which a job may be handed over ahead of them; with more, it waits for their end."""


class Queueing(Admission):
    """Hands jobs to the engine: at most `most` attempts at once, which take at most `limit` cards.

    `limit`: None for any number. `ahead`: also jobs whose needs are under way. `cards` and
    `idle_workers` are empty.
    """

    def __init__(
        self,
        effects: Effects,
        cards: Cards,
        jobs: Jobs,
        attempts: ActiveAttempts,
        idle_workers: IdleWorkers,
        limits: Mapping[str, int],
        closed: Callable[[], RunReason | None],
        most: int,
        limit: int | None,
        ahead: bool = False,
    ) -> None:
        super().__init__(effects, cards, jobs, attempts, idle_workers, limits, NO_BOUND, closed)
        self.most = max(1, most)
        self.limit = limit
        self.patience = 2 * max(1, limit or 1)
        self._kept_cards = False
        self._ahead = ahead
        self._shares: dict[Demand, Share] = {}
        self._followers: dict[Node, None] = {}
        jobs.on_blocked = self._look_at

    # ── Ahead of what is needed ─────────────────────────────────────────────────────────────────

    def admit(self) -> None:
        super().admit()
        while self._followers and len(self._attempts) < self.most and not self._closed():
            looked_at, self._followers = self._followers, {}
            for node in sorted(looked_at, key=_turn):
                self._hand_over_ahead(node)

    def _look_at(self, node: Node) -> None:
        """Remember a blocked job: perhaps all that blocks it is under way."""
        if self._ahead and len(node.needs) <= AHEAD_OF:
            self._followers[node] = None

    def _hand_over_ahead(self, node: Node) -> None:
        pending = self._under_way(node)
        if pending and len(self._attempts) < self.most:
            self._jobs.leave(node)
            self._attempts.launch(node, (), after=pending)
            self._look_at_dependants(node)
        elif pending:
            self._followers[node] = None

    def _under_way(self, node: Node) -> tuple[AttemptId, ...]:
        """Return the attempts that block the job; none where anything else blocks it as well.

        A job that uses tokens, or counts against a limit of cards, is not handed over ahead: it
        would hold these while it waits.
        """
        scarce = bool(node.job.demand.uses) or self.limit is not None
        due = self._jobs.record(node).not_before or 0.0
        if node.state != "blocked" or scarce or due > self._effects.now.mono:
            return ()
        if node.services or node.job.service:
            return ()
        open_needs = [n for n in node.needs if self._jobs.record(n).state != "succeeded"]
        lives = [self._attempts.get(need.attempt) for need in open_needs if need.attempt]
        pending = tuple(live.id for live in lives if live is not None and not live.wish)
        return pending if len(pending) == len(open_needs) == node.blockers else ()

    def _look_at_dependants(self, node: Node) -> None:
        for other in node.dependants:
            self._look_at(other)

    # ── Ready jobs ──────────────────────────────────────────────────────────────────────────────

    def _pass(self) -> bool:
        self._kept_cards = False
        self._shares = {d: share for d in self._jobs.demands if (share := self._share_of(d))}
        return super()._pass()

    def _share_of(self, demand: Demand) -> Share | None:
        """Return the share under which all jobs of this demand are handed over at once, or None.

        There is one where the engine alone can keep a token's limit: these jobs use no other
        token, no other jobs use it, none of them is under way, all are ready, and they are more
        than may run at once.
        """
        if len(set(demand.uses)) != 1 or self.limit is not None:
            return None
        token, each = demand.uses[0], len(demand.uses)
        at_once = self._limits.get(token, 1) // each
        count = self._jobs.demands[demand]
        if not 0 < at_once < count or self._attempts.tokens[token]:
            return None
        if any(token in other.uses for other in self._jobs.demands if other != demand):
            return None
        ready = sum(node.state == "ready" and node.job.demand == demand for node in self._jobs)
        return Share(token, each, at_once) if ready == count else None

    def _consider(self, node: Node) -> None:
        if never := self._impossible(node):
            self._jobs.settle(node, "failed", never)
            self._settled = True
            return
        node.blocked_on = self.obstacle(node)
        if not node.blocked_on:
            self._start(node, [])
            self._look_at_dependants(node)
            return
        self.blocked.append(node)
        if node.skipped >= self.patience:
            self._kept_tokens.update(node.job.demand.uses)
            self._kept_cards = self._kept_cards or node.blocked_on == "cards"

    def _launch(
        self, node: Node, cards: tuple[Card, ...], worker: AttemptId | None
    ) -> ActiveAttempt:
        return self._attempts.launch(node, (), share=self._shares.get(node.job.demand))

    def _impossible(self, node: Node) -> Impossible | Because | None:
        demand = node.job.demand
        if short := tokens_short(demand, self._limits):
            return short
        if self.limit is not None and demand.gpus > self.limit:
            return CardsCapped(demand.gpus, self.limit)
        return Because("unqueueable") if node.job.service else None

    def obstacle(self, node: Node) -> BlockedOn | None:
        """What keeps a ready job from being handed over."""
        if len(self._attempts) >= self.most:
            return "turn"
        demand = node.job.demand
        taken = self._attempts.gpus + demand.gpus
        if demand.gpus and self.limit is not None and (self._kept_cards or taken > self.limit):
            return "cards"
        return None if demand in self._shares else super().obstacle(node)


def _turn(node: Node) -> tuple[Key, int]:
    return node.key, node.order


class WhyQueueing(Why):
    """Why a job waits, where the engine queues and places by itself."""

    _admission: Queueing

    def _ready(self, node: Node, now: Instant) -> WaitReason:
        most, limit = self._admission.most, self._admission.limit
        if len(self._attempts) >= most:
            return NeedsTurn(most)
        demand, taken = node.job.demand, self._attempts.gpus
        if limit is not None and demand.gpus and taken + demand.gpus > limit:
            return NeedsShare(demand.gpus, limit, taken)
        return self._token(demand) or Because("turn")
