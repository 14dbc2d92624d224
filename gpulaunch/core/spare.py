"""Spare jobs give their cards up to launchers that hold none, and wait without taking from others.

    pressed card, spare jobs alone on it ─▶ stop them ─▶ drain ─▶ handed over ─▶ PAUSE ─▶ the next

One card at a time: a launcher waits at every card that it could use, so that how many are wanted
shows only once one has been given. What runs there is interrupted, is not charged, and waits again.
A run that waits with spare jobs alone says so, and nothing is interrupted for it: two of them would
take the card from each other for ever. Nor is it for one that has no use for a card just now.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core import graph
from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.card import Away, Card, Draining
from gpulaunch.core.causes import Because
from gpulaunch.core.events import SetTimer, Timer, WaitGently
from gpulaunch.core.state import State

PAUSE = 2.0
"""Seconds that a launcher which was handed a card has to take its wish back elsewhere."""


def give_way(state: State) -> None:
    """Stop the spare attempts on one card that is pressed, unless a wanted one comes free."""
    if not any(card.pressed for card in state.cards) or any(
        _comes_free(state, card) for card in state.cards
    ):
        return
    held = [lives for card in state.cards if card.pressed and (lives := _spare_on(state, card))]
    due = state.cards.handed_at + PAUSE
    if held and state.now.mono < due:
        state.effects.emit(SetTimer(Timer("spare"), due))
        return
    for live in min(held, key=lambda lives: _loss(state, lives), default=()):
        graph.stop(state, live, "interrupted", Because("gives_way"), gently=True)


def wait(state: State) -> None:
    """Tell other launchers whether a job that is not spare waits for their cards.

    Where this run waits for none, that it waits gently is said before it asks for a card, and to
    launchers that it asked before: they hear of it whenever it holds no card.
    """
    if state.config.queues:
        return
    heads = [node for node in state.jobs.waiting.heads() if node.job.demand.gpus]
    lacking = [node for node in heads if node.lacks not in ("tokens", "cpus", "memory")]
    gently = all(node.job.demand.spare for node in lacking)
    heard = bool(heads) or any(isinstance(card.state, Away) for card in state.cards)
    if gently != state.placing.gently and (heard or not gently):
        state.placing.gently = gently
        state.effects.emit(WaitGently(gently))


def _comes_free(state: State, card: Card) -> bool:
    """Tell whether the card is wanted, and will be given once what is on it has ended."""
    if not card.wanted:
        return False
    lives = [state.attempts.get(attempt) for attempt in card.attempts]
    return isinstance(card.state, Draining) or all(live and live.stopping for live in lives)


def _spare_on(state: State, card: Card) -> Sequence[ActiveAttempt]:
    """Return the attempts on the card if all of them are spare; none where one is not."""
    lives = [live for attempt in card.attempts if (live := state.attempts.get(attempt))]
    return lives if all(live.demand.spare and not live.inherited for live in lives) else ()


def _loss(state: State, lives: Sequence[ActiveAttempt]) -> tuple[float, ...]:
    """Return what is lost by stopping these: the least is stopped first, then the youngest."""
    priority = max(live.node.job.priority if live.node else 0 for live in lives)
    began = min(state.ledger.attempt(live.id).launched.mono for live in lives)
    return priority, sum(len(live.cards) for live in lives), len(lives), -began
