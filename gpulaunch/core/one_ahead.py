"""The next attempt of a worker, which is with its keeper before the one that runs there has ended.

    no card for a ready job ─▶ Launch(behind=L) ─▶ L ends ─┬▶ kept: it has L's cards, and has begun
                                  │                        └▶ not kept: Ended(Interrupted), unbegun
                                  └─TakeBack─▶ Ended(Interrupted), unless it has begun

INVARIANT: it is behind one attempt, which has started, and alone there. It is the first of the
ready jobs that wait for these cards, and could have no others; where that changes, or nothing may
start any more, it is taken back.
"""

from __future__ import annotations

from collections.abc import Callable

from gpulaunch.core import graph, host
from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.events import TakeBack
from gpulaunch.core.idle_workers import may_go_on
from gpulaunch.core.model import Demand
from gpulaunch.core.sharing import promised
from gpulaunch.core.state import State
from gpulaunch.core.waiting import HELD_BY_WORKERS, Node


def launch(state: State, node: Node) -> bool:
    """Launch the ready job behind an attempt whose worker suits it; return whether there is one."""
    demand = node.job.demand
    # What is scarce is not held ahead: another job could use the tokens now.
    if not demand.worker or demand.uses or not _is_first(state, node):
        return False
    leader = next((live for live in state.attempts if _leads(state, live, demand, node)), None)
    if leader is None or not _enough_are_left(state, demand):
        return False
    state.placing.last.starts(demand)
    graph.leave(state, node)
    seat, turn, promise = leader.seat, leader.turn + 1, promised(state, demand)
    state.attempts.launch(node, leader.cards, seat, turn=turn, promised=promise, behind=leader)
    return True


def take_back(state: State, live: ActiveAttempt) -> None:
    """Ask for an attempt that is behind another, unless it has begun by now."""
    if not live.taken_back:
        live.taken_back = True
        state.effects.emit(TakeBack(live.id))


def review(state: State, could_start: Callable[[State, Demand], bool]) -> None:
    """Take back attempts if a more urgent job waits, or if they could start on other cards.

    Of those that could start on other cards, one at a time: the one behind the newest attempt,
    because it would probably wait the longest.
    """
    behind = [live.follower for live in state.attempts if live.follower is not None]
    behind = [live for live in behind if not live.stopping]
    for live in behind:
        if not _may_stay(state, live):
            take_back(state, live)
    for live in reversed(behind):
        alike = (other for other in behind if other.demand.same_seat(live.demand))
        if any(other.taken_back for other in alike):
            continue
        if not state.closed and could_start(state, live.demand):
            take_back(state, live)


def _may_stay(state: State, live: ActiveAttempt) -> bool:
    """Tell whether an attempt that is behind another may begin there."""
    assert live.behind is not None
    assert live.node is not None
    if state.closed or not _is_first(state, live.node):
        return False
    return all(may_go_on(card) for card in live.behind.cards)


def stayed(state: State, live: ActiveAttempt) -> None:
    """Give the cards to the attempt behind this one, whose worker stays; or mark it as idle."""
    live.promised, follower = promised(state, live.demand), live.follower
    if follower is None:
        state.idle_workers.stay(live)
        return
    follower.behind, follower.cards, follower.promised = None, live.cards, live.promised
    state.attempts.memory += follower.memory
    for card in live.cards:
        state.cards.occupy(card, follower.id, follower.promised)


def _is_first(state: State, node: Node) -> bool:
    """Tell whether no more urgent job waits for cards or memory, and neither is kept for any."""
    placing = state.placing
    if placing.focus is not None or placing.reserving is not None:
        return False
    if host.is_kept_from(state, node):
        return False
    waiting = (other for other in placing.last.blocked if other.lacks in HELD_BY_WORKERS)
    return not any(_urgency(other) > _urgency(node) for other in waiting)


def _enough_are_left(state: State, demand: Demand) -> bool:
    """Tell whether each other worker for this demand finds a job as well when it is done.

    If not, the first of them would wait for a job that is behind another worker's.
    """
    alike = (live for live in state.attempts if live.behind is None)
    workers = sum(live.demand.same_seat(demand) for live in alike)
    return state.jobs.waiting.count_like(demand) >= workers


def _urgency(node: Node) -> int:
    """Return the priority with which the job waits; a service may have that of another job."""
    return -node.key[0]


def _leads(state: State, live: ActiveAttempt, demand: Demand, node: Node) -> bool:
    if live.follower is not None or live.behind is not None or live.stopping or live.misplaced:
        return False
    if live.held is not None:
        return False
    if live.origin != "own" or not live.cards or not live.demand.same_seat(demand):
        return False
    worker = node.job.worker
    if worker is not None and worker.items is not None and live.turn >= worker.items:
        return False
    if state.ledger.attempt(live.id).started is None:
        return False
    return all(may_go_on(card) and card.gpu.uuid not in demand.avoid for card in live.cards)
