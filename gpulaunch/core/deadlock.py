"""Ends a deadlock: jobs wait, and nothing runs that will end by itself.

A service runs until no job needs it. So two services can hold the cards that each other's
dependants need, and an `after` can wait for a service that waits for its dependants. Each step
starts or settles at least one job, so every run comes to its end.

Where other launchers have the missing cards, the breaker waits before it stops a service: long, or
only a moment where another launcher wants the service's card and a job has already used it.
"""

from __future__ import annotations

from gpulaunch.core import graph, why
from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.card import Away, Card, Free, InUse
from gpulaunch.core.card_kind import is_kind
from gpulaunch.core.causes import Because, RoomFor
from gpulaunch.core.events import SetTimer, Timer
from gpulaunch.core.graph import closure
from gpulaunch.core.model import Demand
from gpulaunch.core.reasons import NeverStarts
from gpulaunch.core.sharing import promised
from gpulaunch.core.state import State
from gpulaunch.core.waiting import FOCUSED, Node, Ready, is_extra

DEADLOCK_TIMEOUT = 600.0
DEADLOCK_TIMEOUT_JITTER = 300.0
"""Seconds without progress until a deadlock across runs is assumed, and what each run adds."""
GIVING_WAY = 20.0
"""The same where another launcher waits for the card of a service that a job has used already."""


def step(state: State) -> bool:
    """Look for a deadlock; take one step to resolve it, and return whether it did."""
    if not state.jobs.unsettled or _something_moves(state):
        state.standstill.since = None
        return False
    # A card that launchers hand to and fro is no progress: `since` stays as it is.
    if state.idle_workers or any(card.coming for card in state.cards):
        return False
    blocked = [node for node in state.placing.last.blocked if isinstance(node.state, Ready)]
    if blocked:
        return _make_room(state, blocked)
    if state.jobs.dues.waiting:
        return False  # their time comes
    if _stop_unneeded(state):
        return False
    return _settle_one(state)


def _something_moves(state: State) -> bool:
    """Tell whether an attempt will end by itself, a retry's delay or an image's pull."""
    for live in state.attempts:
        service = live.service
        if service is None or live.stopping or live.inherited:
            return True
        if not service.answers and service.dependants:
            return True
    return bool(state.jobs.delayed or state.jobs.images.waiting)


def _make_room(state: State, blocked: list[Node]) -> bool:
    """Make room for the first of these ready jobs, which only services keep from starting."""
    focus = state.placing.focus
    if focus is not None and (not isinstance(focus.state, FOCUSED) or not _may_focus(state, focus)):
        state.placing.focus = None
        return True
    for node in blocked:
        if node.job.demand.avoid and _may_focus(state, node):
            graph.forget_avoided(state, node)
            return True
    targets = [focus] if focus is not None else [_wanting(node) for node in blocked]
    jobs = [node for node in targets if not is_extra(node)]
    if not jobs and _stop_unneeded(state):
        return False
    for node in jobs or targets:
        if _may_focus(state, node):
            _focus_on(state, node)
            return True
    return False


def _focus_on(state: State, node: Node) -> None:
    """Take the next step for this job: only it may start; stop all services; settle it."""
    services = state.attempts.services()
    if state.placing.focus is not node:
        state.placing.focus, state.standstill.cleared = node, False
        if state.placing.reserving not in (None, node):  # what is kept for that is for this one now
            state.placing.reserving = None
            state.placing.gang.pause()
    elif services and not state.standstill.cleared:
        state.standstill.cleared = True
        by = Because("gives_way") if _wanted(services) else RoomFor(node.name)
        for live in services:
            graph.stop(state, live, "interrupted", by)
    else:
        state.placing.focus = None
        unplaceable = Because("unplaceable_beside" if closure(node) else "unplaceable")
        graph.settle(state, node, "failed", unplaceable)


def _may_focus(state: State, node: Node) -> bool:
    return not _waits_for_others(state, node) or _patience_is_over(state)


def _waits_for_others(state: State, node: Node) -> bool:
    """Tell whether others have cards that the job could use, and that may come back.

    So do other launchers of this user, which hold all that they together may.
    """
    demands = [promised(state, each.job.demand) for each in (node, *closure(node))]
    memory = max((d.gpu_memory for d in demands if d.gpus), default=None)
    if memory is None:
        return False
    if state.cards.spent is not None:
        return True
    away = [card for card in state.cards if _is_away(state, card, memory)]
    away = [card for card in away if any(is_kind(card.gpu, d) for d in demands if d.gpus)]
    for card in away:
        state.cards.look_later(card, Demand(gpu_memory=memory))
    return bool(away)


def _is_away(state: State, card: Card, memory: int) -> bool:
    if not card.serves or card.gpu.memory < memory:
        return False
    if isinstance(card.state, Away | InUse) or card.drained:
        return True
    return isinstance(card.state, Free) and card.memory_expected(state.now.mono) < memory


def _patience_is_over(state: State) -> bool:
    """Return True once a deadlock across runs is assumed.

    A service of this run has a card that another launcher waits for, and that launcher has the
    cards that the service's dependants need: it has services too, or reserves a gang.
    """
    services = state.attempts.services()
    if not services:
        return False
    now = state.now.mono
    if state.standstill.since is None:
        state.standstill.since = now
    due = (
        state.standstill.since
        + DEADLOCK_TIMEOUT
        + DEADLOCK_TIMEOUT_JITTER * state.effects.jitter("stuck")
    )
    if _wanted(services) and any(_has_served(state, live) for live in services):
        due = state.standstill.since + GIVING_WAY
    if now < due != state.standstill.due:
        state.standstill.due = due
        state.effects.emit(SetTimer(Timer("deadlock"), due))
    return now >= due


def _has_served(state: State, live: ActiveAttempt) -> bool:
    """Tell whether a job has run beside this service since its start.

    If it were stopped before, again and again, the run might never get anywhere.
    """
    since = state.ledger.attempt(live.id).launched.mono
    dependants = live.service.dependants if live.service else []
    last = [attempt for node in dependants for attempt in state.record(node).attempts[-1:]]
    return any(attempt.ended and attempt.launched.mono >= since for attempt in last)


def _stop_unneeded(state: State) -> bool:
    """Stop services whose dependants are all settled; return whether there was one."""
    services = state.attempts.services()
    unneeded = [live for live in services if live.service and not live.service.serving.open]
    for live in unneeded:
        graph.stop(state, live, "stopped", Because("others_ended"))
    return bool(unneeded)


def _settle_one(state: State) -> bool:
    waiting = [node for node in state.jobs if node.waits]
    waiting.sort(key=lambda node: (node.job.service is not None, node.order))
    for node in waiting[:1]:
        waits = why.of(state, node.name, state.now)
        assert waits is not None, "a job that waits has a reason"
        graph.settle(state, node, "skipped", NeverStarts(waits))
    return bool(waiting)


def _wanted(services: list[ActiveAttempt]) -> bool:
    return any(card.wanted for live in services for card in live.cards)


def _wanting(node: Node) -> Node:
    """Return the job on whose behalf a service is to start; any other job itself."""
    while node.job.service and node.serving.waiters:
        node = min(node.serving.waiters, key=lambda asker: asker.key)
    return node
