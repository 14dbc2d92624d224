"""What people ask of a run, and two things that its jobs wait for: moments and images.

cancel, retry, drain, pause, go on, finish, stop
a job's turn to wait for its moment ─▶ NotDue ──the clock shows it──▶ what else it waits for
a job's turn to wait for its image ─▶ AwaitingImage ─▶ PullImage ─┬▶ ImageReady: other waits
                                                                  └▶ ImageFailed: forgotten
"""

from __future__ import annotations

from msgspec.structs import replace

from gpulaunch.core import graph
from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.cards import Draining
from gpulaunch.core.causes import Because, EndCause
from gpulaunch.core.events import (
    DrainGpus,
    HoldQueue,
    ImageDigest,
    ImageFailed,
    ImageReady,
    PullImage,
    SetTimer,
    Timer,
)
from gpulaunch.core.facts import (
    AdmissionContinued,
    AdmissionPaused,
    GpuDrained,
    ImageKnown,
    ListClosed,
    PullBegun,
    StopAsked,
)
from gpulaunch.core.jobs import Blocked, Idle, Node, NotDue
from gpulaunch.core.reasons import ImageUnavailable, PausedBy, RunReason
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


# ── Moments of jobs (`not_before:`) ───────────────────────────────────────────────────────────────

LOOK_AGAIN = 60.0
"""Seconds after which the clock on the wall is looked at again, at most: it may be set, and goes on
while the machine sleeps, which timers do not."""


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
    """Interrupt each service with a card whose dependants that are left all wait to be due.

    It starts again when the first of them is due.
    """
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


# ── Images of containers ──────────────────────────────────────────────────────────────────────────


def ask(state: State) -> None:
    """Ask for each image that a job waits for, unless the engine was asked before.

    An image that is there stays so for this supervisor; the next one asks anew. After a failure the
    next job that waits for it asks anew as well. Nothing is asked for while no job may start.
    """
    images = state.jobs.images
    if not images.waiting or state.closed:
        return
    for source in images.waiting:
        if source in images.asked:
            continue
        images.asked[source] = False
        known = state.ledger.images.get(source)
        state.effects.emit(PullImage(source, known.id if known else ""))


def begun(state: State, event: PullBegun) -> None:
    """Record that an image which was asked for is not there, and is being pulled."""
    if state.jobs.images.asked.get(event.source) is False:
        state.jobs.images.asked[event.source] = True
        state.effects.fact(event)


def ready(state: State, event: ImageReady) -> None:
    """Let the jobs go on that wait for this image; record what it is, where that is news."""
    images, source = state.jobs.images, event.source
    if source not in images.asked:
        return
    del images.asked[source]
    images.ready.add(source)
    known = state.ledger.images.get(source)
    if event.pulled or known is None or (known.id, known.digest) != (event.id, event.digest):
        fact = ImageKnown(source, event.id, event.digest, event.engine, event.pulled)
        state.effects.fact(fact)
    for node in images.who_waits(source):
        graph.move_on(state, node)
    for node in state.jobs if state.config.ahead else ():
        container = node.job.container
        if isinstance(node.state, Blocked) and container and container.source == source:
            graph.may_go_ahead(state, node)


def digested(state: State, event: ImageDigest) -> None:
    """Record the digest of an image that is there, where that is news."""
    known = state.ledger.images.get(event.source)
    if known is not None and known.digest != event.digest:
        state.effects.fact(replace(known, digest=event.digest, pulled=False))


def failed(state: State, event: ImageFailed) -> None:
    """Settle the jobs that wait for this image, which cannot be had, as failed."""
    images, source = state.jobs.images, event.source
    if images.asked.pop(source, None) is None:
        return
    for node in images.who_waits(source):
        graph.settle(state, node, "failed", ImageUnavailable(source.image, event.why))
