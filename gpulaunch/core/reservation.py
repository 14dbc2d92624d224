"""Keeps cards for a job that was overtaken too often, or that needs several which come one by one.

    blocked too often ──▶ `reserving` ──each card as it comes free──▶ enough ──▶ start
                              └── several cards: only with the right of `GangReservation`

One job at a time. Shared cards let nothing new start where it needs one of them.
"""

from __future__ import annotations

from gpulaunch.core import memory
from gpulaunch.core.cards import Away, Card, Free
from gpulaunch.core.jobs import Node, Ready
from gpulaunch.core.model import Demand
from gpulaunch.core.on_cards import (
    attainable,
    claim,
    fits_beside_services,
    obstacle,
    sought,
    start,
    start_in,
)
from gpulaunch.core.placement import best, is_kind, suits_now
from gpulaunch.core.state import State


def reserve(state: State) -> None:
    """Keep cards for the job `reserving` as they come free; start it once it has enough."""
    node = state.placing.reserving
    if node is None:
        return
    demand = sought(state, node)
    if not isinstance(node.state, Ready) or not fits_beside_services(state, demand):
        state.placing.reserving = None
        return
    if obstacle(state, node):
        return
    resident = state.idle_workers.fit(demand)
    usable = memory.usable_cards(state, demand)
    here = best((c for c in usable if suits_now(c, demand)), demand.gpus)
    if resident is not None:
        start_in(state, resident, node)
        state.placing.gang.succeed()
    elif len(here) == demand.gpus:
        start(state, node, here)
        state.placing.gang.succeed()
    elif demand.gpus == 1 or state.placing.gang.granted:
        chosen = (here + attainable(state, demand))[: demand.gpus]
        claim(state, chosen, demand)
        closed = _close_shared(state, demand.gpus - len(chosen), demand)
        state.placing.last.reserved = True
        if len(chosen) + closed >= demand.gpus:  # else it may wait for other launchers, for long
            memory.keep_for(state, node)
        if demand.gpus > 1:
            state.placing.gang.keep(here)


def _close_shared(state: State, count: int, demand: Demand) -> int:
    """Let nothing new start on `count` shared cards, the emptiest first: they then empty.

    Returns how many there are.
    """
    shared = [c for c in state.cards if c.leased and c.attempts and not c.reservations]
    shared = [c for c in shared if not c.drained and c.gpu.memory >= demand.gpu_memory]
    shared = [c for c in shared if c.gpu.uuid not in demand.avoid and is_kind(c.gpu, demand)]
    closed = sorted(shared, key=lambda c: (len(c.attempts), c.gpu.index))[:count]
    for card in closed:
        card.reserved = True
    return len(closed)


def choose_reserving(state: State) -> bool:
    """Choose the job to keep cards for; return whether another pass may start more."""
    node = state.placing.reserving
    done = node is not None and not isinstance(node.state, Ready)
    if node is None or done or (node.job.demand.gpus > 1 and not _in_reach(state)):
        node = next((n for n in state.placing.last.blocked if _should_reserve(state, n)), None)
    chosen, state.placing.reserving = node is not state.placing.reserving, node
    if node is None or node.job.demand.gpus == 1:
        state.placing.gang.give_up()
        return done
    state.placing.gang.ask()
    return done or (chosen and state.placing.gang.granted)


def _should_reserve(state: State, node: Node) -> bool:
    demand, overtaken = sought(state, node), node.skipped >= state.placing.patience
    if node.lacks != "cards" or not (overtaken or demand.gpus > 1):
        return False
    if not fits_beside_services(state, demand):
        return False
    if demand.gpus > 1 and (state.placing.gang.pausing or not _in_reach(state)):
        return False
    if overtaken:
        return True
    # Another launcher has some of the job's cards, while others are free: only who has the
    # right to reserve a gang may keep the free ones until the rest comes.
    usable = [card for card in state.cards if not card.drained and not card.reservations]
    usable = [card for card in usable if is_kind(card.gpu, demand)]
    elsewhere = any(isinstance(card.state, Away) for card in usable)
    elsewhere = elsewhere or state.cards.spent is not None
    spare = any(isinstance(card.state, Free) for card in usable)
    return elsewhere and spare


def _in_reach(state: State) -> bool:
    """Tell whether the run has a card or can have one to begin a gang with.

    If not, the right to reserve a gang is of more use to another launcher.
    """
    room = state.cards.room()
    reachable = (c for c in state.cards if c.held or (room and isinstance(c.state, Free)))
    return any(not card.drained for card in reachable)


def gang_timeout(state: State) -> None:
    """Release an overdue gang reservation, unless a card of this run is about to be free."""
    if not state.placing.gang.overdue:
        return
    if any(_comes_free(state, card) for card in state.cards):
        state.placing.gang.wait_on()
    else:
        state.placing.reserving = None
        state.placing.gang.pause()


def _comes_free(state: State, card: Card) -> bool:
    """Tell whether the run has the card, and all that is on it ends by itself."""
    lives = [state.attempts.get(attempt) for attempt in card.attempts]
    if any(live is None or (live.service and not live.stopping) for live in lives):
        return False
    return bool(lives or card.idle_workers) or card.coming


# ── Preemption ────────────────────────────────────────────────────────────────────────────────────
