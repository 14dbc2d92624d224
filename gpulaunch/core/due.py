"""Jobs that are not to start before a moment (`not_before:`), and whom they keep nothing for.

    a job's turn to wait for its moment ─▶ NotDue ──the clock shows it──▶ what else it waits for

The clock on the wall may be set, and goes on while the machine sleeps, which timers do not: so one
is never longer than `LOOK_AGAIN`, and the clock is looked at anew when it fires. A service that
runs for such jobs alone gives its cards back, and starts again when the first of them is due.
"""

from __future__ import annotations

from gpulaunch.core import graph
from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.causes import Because
from gpulaunch.core.events import SetTimer, Timer
from gpulaunch.core.state import State
from gpulaunch.core.waiting import Blocked, Idle, Node, NotDue

LOOK_AGAIN = 60.0
"""Seconds after which the clock on the wall is looked at again, at most."""


def fired(state: State) -> None:
    """Let the jobs go on whose moment has come; look again when the next one's may have."""
    state.jobs.dues.watched = None
    for node in state.jobs.dues.take(state.now.utc):
        graph.retry_due(state, node.name)
    watch(state)


def watch(state: State) -> None:
    """Set the timer for the job whose moment comes first, unless it is set."""
    dues = state.jobs.dues
    first = dues.first
    if first is None or (dues.watched is not None and dues.watched <= first):
        return
    dues.watched = first
    wait = min(LOOK_AGAIN, max(0.001, first - state.now.utc))
    state.effects.emit(SetTimer(Timer("due"), state.now.mono + wait))


def give_back(state: State) -> None:
    """Interrupt each service with a card whose dependants that are left all wait to be due."""
    if not state.jobs.dues.waiting:
        return
    for live in state.attempts.services():
        if live.stopping or live.inherited or not live.cards or _is_used(state, live):
            continue
        service = live.service
        if service is not None and _nobody_is_near(service, {}):
            graph.stop(state, live, "interrupted", Because("not_due"))


def _is_used(state: State, service: ActiveAttempt) -> bool:
    return any(
        other.node is not None and service.node in other.node.links.services
        for other in state.attempts
    )


def _nobody_is_near(service: Node, known: dict[Node, bool]) -> bool:
    """Tell whether jobs that need the service are left, and all of them wait to be due."""
    left = [node for node in service.dependants if not node.settled]
    return bool(left) and all(_is_far(node, known) for node in left)


def _is_far(node: Node, known: dict[Node, bool]) -> bool:
    """Tell whether the job waits until it is due, or for one that does."""
    if node not in known:
        known[node] = False  # of jobs that wait for each other by way of a service
        match node.state:
            case NotDue():
                known[node] = True
            case Blocked():
                ahead = (*node.links.needs, *node.links.after)
                known[node] = any(_is_far(one, known) for one in ahead if not one.settled)
            case Idle():
                known[node] = _nobody_is_near(node, known)
    return known[node]
