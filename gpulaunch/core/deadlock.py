"""Ends a deadlock: jobs wait, and nothing runs that will end by itself.

A service runs until no job needs it. So two services can hold the cards that each other's
dependants need, and an `after` can wait for a service that waits for its dependants. Each step
starts or settles at least one job, so every run comes to its end.

Where other launchers have the missing cards, the breaker waits before it stops a service: long, or
only a moment where another launcher wants the service's card and a job has already used it.
"""

from __future__ import annotations

from collections.abc import Callable

from gpulaunch.core.active import ActiveAttempt, ActiveAttempts
from gpulaunch.core.admission import FOCUSED, Admission
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.causes import Because, RoomFor
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import DeadlockCheck, SetTimer
from gpulaunch.core.jobs import Jobs, closure
from gpulaunch.core.model import Demand
from gpulaunch.core.reasons import NeverStarts, WaitReason
from gpulaunch.core.waiting import WAITING, Node, is_extra

DEADLOCK_TIMEOUT = 600.0
DEADLOCK_TIMEOUT_JITTER = 300.0
"""Seconds without progress until a deadlock across runs is assumed, and what each run adds."""
GIVING_WAY = 20.0
"""The same where another launcher waits for the card of a service that a job has used already."""


class DeadlockBreaker:
    """Looks for a deadlock after each event; `step` resolves one and returns whether it did."""

    def __init__(
        self,
        effects: Effects,
        cards: Cards,
        jobs: Jobs,
        attempts: ActiveAttempts,
        admission: Admission,
        why: Callable[[str], WaitReason | None],
    ) -> None:
        self._effects = effects
        self._cards = cards
        self._jobs = jobs
        self._attempts = attempts
        self._admission = admission
        self._why = why
        self._still_since: float | None = None
        self._due = 0.0
        self._cleared = False

    def step(self) -> bool:
        if not self._jobs.unsettled or self._something_moves():
            self._still_since = None
            return False
        # A card that launchers hand to and fro is no progress: `_still_since` stays as it is.
        if any(card.state in ("asking", "draining") or card.idle_workers for card in self._cards):
            return False
        blocked = [node for node in self._admission.blocked if node.state == "ready"]
        if blocked:
            return self._make_room(blocked)
        if self._stop_unneeded():
            return False
        return self._settle_one()

    def _something_moves(self) -> bool:
        """Whether an attempt will end by itself, or a retry's delay will."""
        for live in self._attempts:
            service = live.service
            if service is None or live.wish or live.inherited:
                return True
            if not service.ready and service.dependants:
                return True
        return bool(self._jobs.delayed)

    def _make_room(self, blocked: list[Node]) -> bool:
        """Make room for the first of these ready jobs, which only services keep from starting."""
        focus = self._admission.focus
        if focus is not None and (focus.state not in FOCUSED or not self._may_focus(focus)):
            self._admission.focus = None
            return True
        for node in blocked:
            if node.job.demand.avoid and self._may_focus(node):
                self._jobs.forget_avoided(node)
                return True
        targets = [focus] if focus is not None else [_wanting(node) for node in blocked]
        jobs = [node for node in targets if not is_extra(node)]
        if not jobs and self._stop_unneeded():
            return False
        for node in jobs or targets:
            if self._may_focus(node):
                self._focus_on(node)
                return True
        return False

    def _focus_on(self, node: Node) -> None:
        """Take the next step for this job: only it may start; stop all services; settle it."""
        services = self._attempts.services()
        if self._admission.focus is not node:
            self._admission.focus, self._cleared = node, False
        elif services and not self._cleared:
            self._cleared = True
            why = Because("gives_way") if _wanted(services) else RoomFor(node.name)
            for live in services:
                self._attempts.stop(live, "interrupted", why)
        else:
            self._admission.focus = None
            why = Because("unplaceable_beside" if closure(node) else "unplaceable")
            self._jobs.settle(node, "failed", why)

    def _may_focus(self, node: Node) -> bool:
        return not self._waits_for_others(node) or self._patience_is_over()

    def _waits_for_others(self, node: Node) -> bool:
        """Whether others have cards that the job could use, and that may come back."""
        demands = [node.job.demand, *(service.job.demand for service in closure(node))]
        memory = max((d.gpu_memory for d in demands if d.gpus), default=None)
        if memory is None:
            return False
        away = [card for card in self._cards if self._is_away(card, memory)]
        for card in away:
            self._cards.look_later(card, Demand(gpu_memory=memory))
        return bool(away)

    def _is_away(self, card: Card, memory: int) -> bool:
        if not card.serves or card.gpu.memory < memory:
            return False
        if card.state in ("elsewhere", "occupied") or card.drained:
            return True
        return card.state == "free" and card.memory_expected(self._effects.now.mono) < memory

    def _patience_is_over(self) -> bool:
        """True once a deadlock across runs is assumed.

        A service of this run has a card that another launcher waits for, and that launcher has the
        cards that the service's dependants need: it has services too, or reserves a gang.
        """
        services = self._attempts.services()
        if not services:
            return False
        now = self._effects.now.mono
        if self._still_since is None:
            self._still_since = now
        due = (
            self._still_since
            + DEADLOCK_TIMEOUT
            + DEADLOCK_TIMEOUT_JITTER * self._effects.jitter("stuck")
        )
        if _wanted(services) and any(self._has_served(live) for live in services):
            due = self._still_since + GIVING_WAY
        if now < due != self._due:
            self._due = due
            self._effects.emit(SetTimer(DeadlockCheck(), due))
        return now >= due

    def _has_served(self, live: ActiveAttempt) -> bool:
        """Whether a job has run beside this service since its start.

        If it were stopped before, again and again, the run might never get anywhere.
        """
        since = self._effects.ledger.attempt(live.id).launched.mono
        dependants = live.service.dependants if live.service else []
        last = [attempt for node in dependants for attempt in self._jobs.record(node).attempts[-1:]]
        return any(attempt.ended and attempt.launched.mono >= since for attempt in last)

    def _stop_unneeded(self) -> bool:
        """Stop services whose dependants are all settled; return whether there was one."""
        services = self._attempts.services()
        unneeded = [live for live in services if live.service and not live.service.open]
        for live in unneeded:
            self._attempts.stop(live, "stopped", Because("others_ended"))
        return bool(unneeded)

    def _settle_one(self) -> bool:
        waiting = [node for node in self._jobs if node.state in WAITING]
        waiting.sort(key=lambda node: (node.job.service is not None, node.order))
        for node in waiting[:1]:
            why = self._why(node.name)
            assert why is not None, "a job that waits has a reason"
            self._jobs.settle(node, "skipped", NeverStarts(why))
        return bool(waiting)


def _wanted(services: list[ActiveAttempt]) -> bool:
    return any(card.requested for live in services for card in live.cards)


def _wanting(node: Node) -> Node:
    """The job on whose behalf a service is to start; any other job itself."""
    while node.job.service and node.waiters:
        node = min(node.waiters, key=lambda asker: asker.key)
    return node
