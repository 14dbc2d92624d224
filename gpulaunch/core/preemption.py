"""Stops preemptible jobs for launchers that hold no card, and decides when this run asks for cards.

    a wanted card, only preemptible jobs on it ─▶ stop them ─▶ drain ─▶ hand over ─▶ HANDED_OVER
                     ▲                                                                    │
                     └──────────────────────── still wanted: the next card ◀──────────────┘

Cards are given one at a time: a launcher waits at every card that it could use, so that how many
are wanted shows only after one was given. The jobs are interrupted, not charged, and wait again.

INVARIANT: a preemptible job never pushes another one out. A run that waits only with preemptible
jobs, or that has no use for a card now, asks nobody: it takes a card that nobody holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core import graph
from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.cards import HANDED_OVER, Away, Card, Draining
from gpulaunch.core.causes import Because
from gpulaunch.core.events import WantCards
from gpulaunch.core.state import State


def give_way(state: State) -> None:
    """Stop the preemptible attempts on one wanted card, unless a wanted card comes free anyway.

    A launcher that was just handed a card has HANDED_OVER seconds to take its other wishes back.
    The timer of that card then brings the next call.
    """
    wanted = [card for card in state.cards if card.wanted]
    if state.now.mono < state.cards.handed_at + HANDED_OVER:
        return
    if any(_is_ending(state, card) for card in wanted):
        return
    held = [lives for card in wanted if (lives := _preemptible_on(state, card))]
    for live in min(held, key=lambda lives: _loss(state, lives), default=()):
        graph.stop(state, live, "interrupted", Because("gives_way"), gently=True)


def ask_for_cards(state: State) -> None:
    """Tell the engine whether other launchers are to give their cards to this run.

    Call this before cards are asked for, so that a launcher never hears of a wish too many. While
    this run waits for no card, nobody hears of its wishes.
    """
    if state.config.queues:
        return
    heads = [node for node in state.jobs.waiting.heads() if node.job.demand.gpus]
    usable = [node for node in heads if node.lacks not in ("tokens", "cpus", "memory")]
    wants = not state.closed and not all(node.job.demand.preemptible for node in usable)
    heard = bool(heads) or any(isinstance(card.state, Away) for card in state.cards)
    if wants != state.placing.wants_cards and heard:
        state.placing.wants_cards = wants
        state.effects.emit(WantCards(wants))


def _is_ending(state: State, card: Card) -> bool:
    """Return True if everything on a wanted card is ending, so that the card is given next."""
    lives = [state.attempts.get(attempt) for attempt in card.attempts]
    return isinstance(card.state, Draining) or all(live and live.stopping for live in lives)


def _preemptible_on(state: State, card: Card) -> Sequence[ActiveAttempt]:
    """Return the attempts on the card if all of them are preemptible; otherwise nothing."""
    lives = [live for attempt in card.attempts if (live := state.attempts.get(attempt))]
    return lives if all(live.demand.preemptible and not live.inherited for live in lives) else ()


def _loss(state: State, lives: Sequence[ActiveAttempt]) -> tuple[float, ...]:
    """Return a sort key: the attempts with the least to lose first, then the youngest."""
    priority = max(live.node.job.priority if live.node else 0 for live in lives)
    began = min(state.ledger.attempt(live.id).launched.mono for live in lives)
    return priority, sum(len(live.cards) for live in lives), len(lives), -began
