"""Memory: what attempts and idle workers hold of the host's, and what is learned of the cards'.

    Ended, MemoryPeaked ─▶ the most that a job of this kind took ─▶ and a margin ─▶ `promised`

INVARIANT: what this supervisor's attempts and workers hold together is no more than the run may
reserve. A worker's memory is held from its first attempt until it is gone; it serves one attempt
after the other. Workers that are idle are ended as soon as a job waits for memory.

The memory of a unified card is the host's. What an attempt is promised of such a card, its
`gpu_memory`, is reserved like its `memory`, so that nothing is promised twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.cards import Card
from gpulaunch.core.events import MemoryPeaked
from gpulaunch.core.jobs import Node
from gpulaunch.core.ledger import AttemptRecord
from gpulaunch.core.model import Demand
from gpulaunch.core.placement import is_kind, reserved_on, with_learned
from gpulaunch.core.reasons import MemoryShort
from gpulaunch.core.state import State


def promised(state: State, demand: Demand) -> Demand:
    """Return the demand with what its kind is promised now; a card alone while that is unknown.

    A kind is an entry of the job file, by what it runs as typed, or the jobs that were added by one
    name. Once something is known of a kind, its jobs join those that run.
    """
    if demand.kind is None:
        return demand
    peak = state.learned.peaks.get(demand.kind, 0)
    # What it took on larger cards must not keep it from these for ever.
    cards = [card for card in state.cards if card.serves and is_kind(card.gpu, demand)]
    cards = [card for card in cards if card.gpu.uuid not in demand.avoid]
    # Of unified memory, its `memory` is taken first.
    largest = max(
        (_of_an_empty_one(card) - (demand.memory if card.gpu.unified else 0) for card in cards),
        default=peak,
    )
    return with_learned(demand, min(peak, largest))


def _of_an_empty_one(card: Card) -> int:
    """Return the bytes that a job has on the card at least, if it has it alone.

    The driver and a desktop take a part, which is known once the card was looked at; what is more
    than a tenth is somebody's who goes again.
    """
    free = card.gpu.memory if card.look.free is None else card.look.free
    return max(min(free, card.gpu.memory), card.gpu.memory * 9 // 10)


def submitted(state: State, nodes: Iterable[Node]) -> None:
    """Learn from what is on record of these jobs, and from earlier runs of their file.

    INVARIANT: what is learned follows from the jobs and the attempts on record: a resume knows it.
    """
    known = [node for node in nodes if node.job.demand.kind is not None]
    for node in known:
        _learn(state, node.job.demand.kind, node.job.learned)
    attempts = [(node, attempt) for node in known for attempt in state.record(node).attempts]
    for certain in (True, False):
        for node, attempt in attempts:
            if _is_certain(attempt) == certain:
                _take_in(state, node.job.demand.kind, attempt)


def peaked(state: State, event: MemoryPeaked) -> None:
    """Take note of what an attempt takes; beside others at once, if that is more than promised."""
    live = state.attempts.get(event.attempt)
    if live is None or event.memory <= live.peak:
        return
    live.peak = event.memory
    if live.demand.kind in state.learned.peaks and live.peak > live.promised.promise:
        _learn(state, live.demand.kind, live.peak)


def ended(state: State, live: ActiveAttempt) -> None:
    """Learn from an attempt whose end is on record."""
    if live.demand.kind is not None:
        _take_in(state, live.demand.kind, state.ledger.attempt(live.id))


def _take_in(state: State, kind: int | None, attempt: AttemptRecord) -> None:
    """Learn from a recorded attempt: success teaches what it took, any other end only raises that.

    If a job ran out of memory beside others, it took more than it was promised: its kind takes that
    much.
    """
    took = attempt.end.gpu_memory if attempt.end is not None else 0
    if attempt.failure == "gpu_oom":
        took = max(took, attempt.promised)
    if _is_certain(attempt) or kind in state.learned.peaks:
        _learn(state, kind, took)


def _is_certain(attempt: AttemptRecord) -> bool:
    return attempt.state == "succeeded"


def _learn(state: State, kind: int | None, took: int) -> None:
    """Take in what a job of this kind took. It holds for those that run, and for idle workers.

    Of the first ones, each alone on its card, one may have ended while another takes more already.
    """
    if kind is None or took <= state.learned.peaks.get(kind, 0):
        return
    running = [live for live in state.attempts if live.demand.kind == kind]
    state.learned.peaks[kind] = max([took, *(live.peak for live in running)])
    for live in running:
        live.promised = promised(state, live.demand)
        for card in live.cards:
            card.attempts[live.id] = live.promised
    for resident in state.idle_workers:
        if resident.demand.kind == kind:
            for card in resident.cards:
                card.idle_workers[resident.id] = promised(state, resident.demand)


# ── The host's memory ─────────────────────────────────────────────────────────────────────────────


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
