"""What people ask of a run: cancel, retry, drain, pause, go on, finish, stop."""

from __future__ import annotations

from gpulaunch.core import graph
from gpulaunch.core.card import Draining
from gpulaunch.core.causes import Because, EndCause
from gpulaunch.core.events import DrainGpus, HoldQueue
from gpulaunch.core.facts import (
    AdmissionContinued,
    AdmissionPaused,
    GpuDrained,
    ListClosed,
    StopAsked,
)
from gpulaunch.core.reasons import PausedBy, RunReason
from gpulaunch.core.state import State


def cancel(state: State, names: tuple[str, ...] | None) -> None:
    nodes = (
        list(state.jobs)
        if names is None
        else [state.jobs.nodes[name] for name in names if name in state.jobs.nodes]
    )
    for node in nodes:
        if node.waits:
            graph.settle(state, node, "cancelled", Because("cancelled"))
    for live in state.attempts:
        # An adopted attempt whose job is no longer in the file has no node, only a name.
        gone = live.adopted and (names is None or live.id.job in names)
        if live.node in nodes or gone:
            graph.stop(state, live, "cancelled", Because("cancelled"))


def finish(state: State) -> None:
    if not state.ledger.complete:
        state.effects.fact(ListClosed())


def retry(state: State, names: tuple[str, ...] | None) -> None:
    go_on(state)
    graph.requeue(state, graph.to_retry(state, names), Because("retried"))


def drain_gpus(state: State, request: DrainGpus) -> None:
    for card in state.cards:
        if request.gpus is not None and card.gpu.uuid not in request.gpus:
            continue
        on = not request.off
        if card.drained != on:
            card.drained = on
            state.effects.fact(GpuDrained(card.gpu.uuid, on))
        if on and request.now:
            for attempt in list(card.attempts):
                live = state.attempts.get(attempt)
                if live is not None:
                    graph.stop(state, live, "interrupted", Because("gave_back"))


def trip(state: State) -> None:
    """Pause the run for a person, where jobs are left to start."""
    left = (node for node in state.jobs if not node.settled)
    if any(state.record(node).state == "waiting" for node in left):
        assert state.health.breaker.tripped is not None
        pause(state, state.health.breaker.tripped, "breaker")
    else:
        state.health.breaker.reset()


def go_on(state: State) -> None:
    pause(state, None, "breaker")
    state.health.breaker.reset()


def pause(state: State, why: RunReason | None, by: PausedBy) -> None:
    """Start nothing for this reason; None: no longer for that of `by`, but perhaps for others'."""
    pauses = state.ledger.pauses
    closed = bool(pauses)
    if why is not None and pauses.get(by) != why:
        state.effects.fact(AdmissionPaused(why, by))
    elif why is None and by in pauses:
        state.effects.fact(AdmissionContinued(by))
    if state.config.queues and closed != bool(pauses):
        state.effects.emit(HoldQueue(bool(pauses)))


def stop(state: State, why: EndCause, now: bool) -> None:
    state.course.killing = state.course.killing or now
    if state.ledger.stopping is None or now:
        state.effects.fact(StopAsked(why, now))
    for live in state.attempts:
        graph.stop(state, live, "interrupted", why, now)
    for resident in state.idle_workers:
        state.idle_workers.end(resident, now)
    for card in state.cards if now else ():
        if isinstance(card.state, Draining):
            state.cards.release(card)
