"""What jobs that share a card are promised of its memory, and what `gpu_memory: auto` learns.

    Ended, MemoryPeaked ─▶ the most that a job of this kind took ─▶ and a margin ─▶ `promised`

A kind is an entry of the job file, by what it runs as typed, or the jobs that were added by one
name. Until something is known of a kind, each of its jobs has a card alone; once it is, others join
those that run. A job that succeeded teaches what it took; any other end can only raise that. One
that ran out of memory beside others took more than it was promised, so that as much is what its
kind takes.

INVARIANT: what is learned follows from the jobs and the attempts on record: a resume knows it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.card import Card
from gpulaunch.core.card_kind import is_kind
from gpulaunch.core.events import MemoryPeaked
from gpulaunch.core.model import Demand
from gpulaunch.core.placement import with_learned
from gpulaunch.core.records import AttemptRecord
from gpulaunch.core.state import State
from gpulaunch.core.waiting import Node


def promised(state: State, demand: Demand) -> Demand:
    """Return the demand with what its kind is promised now; a card alone while that is unknown."""
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
    """Learn from what is on record of these jobs, and from earlier runs of their file."""
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
