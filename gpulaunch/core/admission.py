"""Starts ready jobs: passes over them after every event, on cards or into an engine's queue.

    reserve ─▶ yield ─▶ each ready job in order ─▶ let go ─▶ whom to reserve for
                          start | ask for cards | blocked

What a pass does with one job is the policy's: `core.on_cards`, `core.in_queue`. A run whose engine
queues has no cards of its own, so that all that concerns cards finds none there.
"""

from __future__ import annotations

from gpulaunch.core import in_queue, on_cards, one_ahead, preemption, reserving
from gpulaunch.core.graph import closure
from gpulaunch.core.state import InEngineQueue, Pass, State
from gpulaunch.core.waiting import FOCUSED, Node, Ready


def admit(state: State) -> None:
    """Start all jobs that can start now, in passes until one changes nothing.

    This ends, because each pass but the last starts a job or gives cards back.
    """
    while not state.closed and _pass(state):
        pass
    policy = state.config.placing
    if not isinstance(policy, InEngineQueue):
        one_ahead.review(state, on_cards.could_start)
    if state.closed:
        _close(state)
    elif isinstance(policy, InEngineQueue):
        in_queue.go_ahead(state, policy)


def _close(state: State) -> None:
    state.placing.last.blocked, state.placing.reserving = [], None
    on_cards.forget_claims(state)
    on_cards.let_go(state)
    state.placing.gang.give_up()


def _pass(state: State) -> bool:
    """Make one pass over the ready jobs; return whether another may start more."""
    placing, policy = state.placing, state.config.placing
    placing.last = found = Pass(unified=bool(state.cards.unified))
    if isinstance(policy, InEngineQueue):
        found.shares = in_queue.shares(state, policy)
    preemption.ask_for_cards(state)
    on_cards.forget_claims(state)
    if placing.focus is not None and not isinstance(placing.focus.state, FOCUSED):
        placing.focus = None
    reserving.reserve(state)
    on_cards.give_wanted(state)
    for node in _focused(placing.focus) if placing.focus else state.jobs.waiting.heads():
        if isinstance(policy, InEngineQueue):
            in_queue.consider(state, policy, node)
        else:
            on_cards.consider(state, node)
        if state.closed:
            break
    state.jobs.waiting.unpark()
    again = on_cards.let_go(state) and bool(found.blocked)
    again = reserving.choose_reserving(state) or again or found.settled
    for node in found.blocked:
        if node.lacks in ("cards", "room"):
            on_cards.look_again(state, node)
    if placing.focus is not None and not isinstance(placing.focus.state, FOCUSED):
        placing.focus, again = None, True
    return again


def _focused(focus: Node) -> list[Node]:
    """Return the ready jobs among the focused job and its services: only these may start now."""
    return [node for node in (*closure(focus), focus) if isinstance(node.state, Ready)]
