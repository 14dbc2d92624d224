"""The host's memory: what attempts and idle workers hold of it, and whether more may be had.

INVARIANT: what this supervisor's attempts and workers hold together is no more than the run may
reserve. A worker's memory is held from its first attempt until it is gone; it serves one attempt
after the other. Workers that are idle are ended as soon as a job waits for memory.

The memory of a unified card is the host's. What an attempt is promised of such a card, its
`gpu_memory`, is reserved like its `memory`, so that nothing is promised twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulaunch.core.card import Card
from gpulaunch.core.card_kind import reserved_on
from gpulaunch.core.model import Demand
from gpulaunch.core.reasons import MemoryShort
from gpulaunch.core.sharing import promised
from gpulaunch.core.state import State
from gpulaunch.core.waiting import Node


def held(state: State) -> int:
    """Return the bytes that attempts and idle workers hold, on unified cards as well."""
    return state.attempts.memory + state.idle_workers.memory + sum(map(_on, state.cards.unified))


def _on(card: Card) -> int:
    """Return the bytes that are promised to those on a unified card."""
    return sum(d.gpu_memory for d in (*card.attempts.values(), *card.idle_workers.values()))


def reserved(state: State, demand: Demand) -> int:
    """Return the bytes of the host's memory that the demand reserves, wherever it is placed."""
    if not state.cards.unified:
        return demand.memory
    cards = [card.gpu for card in state.cards if card.serves]
    return reserved_on(cards, promised(state, demand))


def usable_cards(state: State, demand: Demand) -> Sequence[Card]:
    """Return the run's cards without the unified ones whose memory others have reserved.

    Cards of both kinds in one machine are told apart here: a job that does not fit on a unified
    card may start on another.
    """
    if not (state.cards.unified and demand.gpu_memory):
        return state.cards.all
    taken = held(state) + state.placing.last.kept_memory + demand.memory
    wanted = min(demand.gpus, len(state.cards.unified)) * demand.gpu_memory
    fits = taken + wanted <= state.config.memory
    return [card for card in state.cards if fits or not card.gpu.unified]


def lacks_memory(state: State, demand: Demand) -> bool:
    """Tell whether the demand's memory is not to be had now, or is kept for another job.

    An idle worker that suits it has its memory already. It may not go on with that where the job
    that memory is kept for lacks it.
    """
    if not (more := reserved(state, demand)):
        return False
    if state.idle_workers.fit(demand) is not None:
        more = 0
    return held(state) + state.placing.last.kept_memory + more > state.config.memory


def keep_for(state: State, node: Node) -> None:
    """Keep memory for the job: later jobs of the pass leave it that much."""
    state.placing.last.kept_memory += reserved(state, node.job.demand)


def gather_for(state: State, node: Node) -> None:
    """Keep memory for a job that lacks it and was overtaken too often, until it is enough."""
    keep_for(state, node)
    state.placing.last.memory_for = state.placing.last.memory_for or node


def is_kept_from(state: State, node: Node) -> bool:
    """Tell whether memory is gathered for a job whose turn is before this one's.

    No worker that has some goes on with this one then.
    """
    first = state.placing.last.memory_for
    return first is not None and reserved(state, node.job.demand) > 0 and first.key < node.key


def memory_short(state: State, demand: Demand) -> MemoryShort | None:
    """Return why the run never has the memory that the demand reserves; None if it can."""
    wanted, limit = reserved(state, demand), state.config.memory
    return MemoryShort(wanted, limit) if wanted > limit else None


def fits_together(state: State, demands: Iterable[Demand]) -> bool:
    """Tell whether all demands may have their memory at once."""
    return sum(reserved(state, demand) for demand in demands) <= state.config.memory
