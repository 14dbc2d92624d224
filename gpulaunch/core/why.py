"""Why a job waits; and what ends a deadlock, in which jobs wait and nothing ends by itself.

The reasons look at a run's state and change nothing; only `step` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core import graph, placement
from gpulaunch.core import memory as host
from gpulaunch.core import reasons as r
from gpulaunch.core.attempts import ActiveAttempt, cpus_of
from gpulaunch.core.cards import AskedFor, Away, Card, Draining, Free, InUse, Leased
from gpulaunch.core.causes import Because, RoomFor
from gpulaunch.core.events import SetTimer, Timer
from gpulaunch.core.graph import closure
from gpulaunch.core.jobs import (
    FOCUSED,
    Asking,
    AwaitingImage,
    Blocked,
    Delayed,
    Idle,
    Launched,
    Node,
    NotDue,
    Ready,
    is_extra,
)
from gpulaunch.core.memory import promised
from gpulaunch.core.model import AttemptId, Demand, Instant
from gpulaunch.core.placement import is_kind
from gpulaunch.core.reasons import NeverStarts
from gpulaunch.core.state import InEngineQueue, State

_NEAREST: tuple[r.Nearness, ...] = ("running", "queued", "waiting")


def of(state: State, name: str, now: Instant) -> r.WaitReason | None:
    """Return why the job waits; None for one that does not wait.

    That nothing may start at all goes before the job's own reason. Of a job in the engine's queue,
    it tells only what the engine does not know.
    """
    why = state.closed
    paused = why is not None and why is state.ledger.paused
    if isinstance(why, r.OutsideHours):
        why = r.OutsideHours(why.until, why.until - now.utc)
    node = state.jobs.nodes.get(name)
    if node is None:
        return Because("not_in_file") if name in state.ledger.jobs else None
    closed = None if why is None else r.NothingStarts(why, paused, state.record(node).began)
    if isinstance(node.state, Launched):
        return _queued(state, node, closed) if state.record(node).in_queue else None
    if node.excluded and state.record(node).state == "waiting":
        return Because("left_out")
    if node.settled:
        return None
    due = node.state.at if isinstance(node.state, NotDue) else None
    if closed and not (due and isinstance(why, r.OutsideHours) and due > why.until):
        return closed
    match node.state:
        case Blocked():
            return _blocked(state, node)
        case Delayed(until):
            return r.RetryIn(until - now.mono)
        case NotDue(at):
            return r.NotBefore(at, at - now.utc)
        case AwaitingImage(source):
            return r.NeedsImage(source)
        case Idle():
            return Because("unasked")
        case Asking():
            return r.NeedsReady(
                tuple(each.name for each in node.links.services if not each.answers)
            )
    return _ready(state, node, now)


def _queued(state: State, node: Node, closed: r.NothingStarts | None) -> r.WaitReason | None:
    """Return what a job waits for that was handed over ahead of its needs, or of its turn."""
    live = state.attempts.get(node.attempt) if node.attempt else None
    if live is not None and live.behind is not None:
        return r.NextInWorker(live.behind.id.job)
    after = live.handed.after if live is not None else ()
    open_needs = [
        n for n in node.links.needs if n.attempt in after and isinstance(n.state, Launched)
    ]
    return closed if closed or not open_needs else _end_of(state, open_needs)


def _blocked(state: State, node: Node) -> r.NeedsEnd:
    open_needs = [need for need in node.links.needs if not need.settled]
    if open_needs:
        return _end_of(state, open_needs)
    return _end_of(state, [n for n in node.links.after if not n.settled], after=True)


def _end_of(state: State, nodes: list[Node], after: bool = False) -> r.NeedsEnd:
    first = min(nodes, key=lambda node: _NEAREST.index(_nearness(state, node)))
    return r.NeedsEnd(first.name, _nearness(state, first), len(nodes) - 1, after)


def _nearness(state: State, node: Node) -> r.Nearness:
    if not isinstance(node.state, Launched):
        return "waiting"
    return "running" if state.record(node).state == "running" else "queued"


def _ready(state: State, node: Node, now: Instant) -> r.WaitReason:
    demand, policy = node.job.demand, state.config.placing
    if isinstance(policy, InEngineQueue):
        return _turn(state, policy, demand)
    if short := _token(state, demand):
        return short
    cpus, used = cpus_of(demand), state.attempts.cpus
    if cpus and used + cpus > state.config.cpus:
        return r.NeedsCpus(cpus, used, state.config.cpus)
    if node.lacks == "room":
        return Because("room")
    wanted = host.reserved(state, demand)
    if wanted and host.held(state) + wanted > state.config.memory:
        return _memory(state, wanted)
    if node.lacks == "memory":
        first = state.placing.last.memory_for or state.placing.reserving
        return Because("turn") if first in (None, node) else r.NeedsStart(first.name)
    if state.placing.focus not in (None, node):
        return r.NeedsStart(state.placing.focus.name)
    if not demand.gpus:
        return Because("turn")
    return _allowance(state, demand) or _needs_cards(state, promised(state, demand), now)


def _turn(state: State, policy: InEngineQueue, demand: Demand) -> r.WaitReason:
    """Return why a ready job is not handed to the engine."""
    if len(state.attempts) >= policy.most:
        return r.NeedsTurn(policy.most)
    taken = state.attempts.gpus
    if policy.limit is not None and demand.gpus and taken + demand.gpus > policy.limit:
        return r.NeedsShare(demand.gpus, policy.limit, taken)
    return _token(state, demand) or Because("turn")


def _token(state: State, demand: Demand) -> r.NeedsToken | None:
    for token in dict.fromkeys(demand.uses):
        limit, used = state.config.tokens(token), state.attempts.tokens[token]
        if used + demand.uses.count(token) > limit:
            holders = [live.id.job for live in state.attempts if token in live.demand.uses]
            return r.NeedsToken(token, used, limit, tuple(holders))
    return None


def _memory(state: State, wanted: int) -> r.NeedsMemory:
    holders = [(live.memory, live.id.job) for live in state.attempts]
    for card in state.cards.unified:
        there = (*card.attempts.items(), *card.idle_workers.items())
        holders += [(demand.gpu_memory, attempt.job) for attempt, demand in there]
    holders += [(each.demand.memory, each.id.job) for each in state.idle_workers]
    jobs = dict.fromkeys(job for memory, job in sorted(holders, key=lambda h: -h[0]) if memory)
    return r.NeedsMemory(wanted, host.held(state), state.config.memory, tuple(jobs))


def _allowance(state: State, demand: Demand) -> r.NeedsAllowance | None:
    """Return that the user's launchers hold all the cards they may, where that is what lacks."""
    cards = state.cards
    if cards.spent is None or cards.held() < cards.within or cards.held() >= cards.limit:
        return None
    return r.NeedsAllowance(demand.gpus, cards.spent.limit, cards.held(), cards.spent.source)


def _needs_cards(state: State, demand: Demand, now: Instant) -> r.NeedsCards:
    cards, limit = list(state.cards), state.cards.limit
    limited = state.cards.held() >= limit < len(cards)
    if limited:
        cards = [card for card in cards if card.held]
    fit = [card for card in cards if is_kind(card.gpu, demand)]
    cards = fit if demand.own_gpu else cards
    busy = [card for card in fit if card.attempts and not card.quarantined]
    busy = [card for card in busy if not _shares(card, demand)]
    together = _busy(state, busy, now) if len(busy) > 1 else None
    alike: dict[r.CardNow, list[int]] = {}
    for card in [*busy, *cards] if together else cards:
        shown = together if together and card in busy else _state(state, card, demand, now)
        alike.setdefault(shown, []).append(card.gpu.index)
    parts = (r.CardsAre(tuple(dict.fromkeys(some)), shown) for shown, some in alike.items())
    return r.NeedsCards(
        demand.gpus,
        demand.gpu_memory,
        tuple(parts),
        limit if limited else 0,
        demand.card_kind,
        state.config.limited_by if limited else "",
    )


def _busy(state: State, cards: Sequence[Card], now: Instant) -> r.CardBusy:
    firsts = dict.fromkeys(next(iter(card.attempts)) for card in cards)
    seconds = [_since(state, attempt, now) for attempt in firsts]
    names = dict.fromkeys(attempt.job for card in cards for attempt in card.attempts)
    return r.CardBusy(tuple(names), min(seconds), max(seconds))


def _shares(card: Card, demand: Demand) -> bool:
    """Tell whether the demand could be on the card beside those that are, if memory allowed."""
    there = card.attempts.values()
    return bool(there) and placement.share_card([*there, demand]) and demand.share


def _shared(card: Card) -> r.CardShared:
    names = dict.fromkeys(attempt.job for attempt in card.attempts)
    there = [*card.attempts.values(), *card.idle_workers.values()]
    return r.CardShared(tuple(names), sum(d.promise for d in there), card.look.free or 0)


def _since(state: State, attempt: AttemptId, now: Instant) -> float:
    """Return the seconds since the attempt's start, or its launch where it has not started."""
    record = state.ledger.attempt(attempt)
    return now.mono - (record.started or record.launched).mono


def _state(state: State, card: Card, demand: Demand, now: Instant) -> r.CardNow:
    if card.quarantined:
        return r.CardAway("aside", card.quarantined)
    if not is_kind(card.gpu, demand):
        return r.CardIs("other_kind")
    if card.attempts:
        return _shared(card) if _shares(card, demand) else _busy(state, [card], now)
    if card.idle_workers:
        return r.CardKept(next(iter(card.idle_workers)).job, worker=True)
    if card.drained:
        return r.CardIs("given_back")
    match card.state:
        case Away(holder):
            return r.CardAway("elsewhere", holder)
        case InUse(by):
            return r.CardAway("occupied", by)
        case Draining():
            return r.CardIs("draining")
        case AskedFor():
            return r.CardIs("asking")
        case Leased() if state.placing.reserving is not None:
            return r.CardKept(state.placing.reserving.name, worker=False)
    if card.gpu.uuid in demand.avoid:
        return r.CardIs("avoided")
    if demand.gpu_memory:
        return r.CardFree(card.gpu.memory if card.look.free is None else card.look.free)
    return r.CardIs("free")


# ── The end of a deadlock ─────────────────────────────────────────────────────────────────────────

DEADLOCK_TIMEOUT = 600.0
DEADLOCK_TIMEOUT_JITTER = 300.0
"""Seconds without progress until a deadlock across runs is assumed, and what each run adds."""
GIVING_WAY = 20.0
"""The same where another launcher waits for the card of a service that a job has used already."""


def step(state: State) -> bool:
    """Look for a deadlock; take one step to resolve it, and return whether it did.

    A service runs until no job needs it. So two services can hold the cards that each other's
    dependants need, and an `after` can wait for a service that waits for its dependants. Each step
    starts or settles at least one job, so every run comes to its end.

    Where other launchers have the missing cards, this waits before it stops a service: long, or
    only a moment where another launcher wants the service's card and a job has already used it.
    """
    if not state.jobs.unsettled or _something_moves(state):
        state.standstill.since = None
        return False
    # A card that launchers hand to and fro is no progress: `since` stays as it is.
    if state.idle_workers or any(card.coming for card in state.cards):
        return False
    blocked = [node for node in state.placing.last.blocked if isinstance(node.state, Ready)]
    if blocked:
        return _make_room(state, blocked)
    if state.jobs.dues.waiting:
        return False  # their time comes
    if _stop_unneeded(state):
        return False
    return _settle_one(state)


def _something_moves(state: State) -> bool:
    """Tell whether an attempt will end by itself, a retry's delay or an image's pull."""
    for live in state.attempts:
        service = live.service
        if service is None or live.stopping or live.inherited:
            return True
        if not service.answers and service.dependants:
            return True
    return bool(state.jobs.delayed or state.jobs.images.waiting)


def _make_room(state: State, blocked: list[Node]) -> bool:
    """Make room for the first of these ready jobs, which only services keep from starting."""
    focus = state.placing.focus
    if focus is not None and (not isinstance(focus.state, FOCUSED) or not _may_focus(state, focus)):
        state.placing.focus = None
        return True
    for node in blocked:
        if node.job.demand.avoid and _may_focus(state, node):
            graph.forget_avoided(state, node)
            return True
    targets = [focus] if focus is not None else [_wanting(node) for node in blocked]
    jobs = [node for node in targets if not is_extra(node)]
    if not jobs and _stop_unneeded(state):
        return False
    for node in jobs or targets:
        if _may_focus(state, node):
            _focus_on(state, node)
            return True
    return False


def _focus_on(state: State, node: Node) -> None:
    """Take the next step for this job: only it may start; stop all services; settle it."""
    services = state.attempts.services()
    if state.placing.focus is not node:
        state.placing.focus, state.standstill.cleared = node, False
        if state.placing.reserving not in (None, node):  # what is kept for that is for this one now
            state.placing.reserving = None
            state.placing.gang.pause()
    elif services and not state.standstill.cleared:
        state.standstill.cleared = True
        by = Because("gives_way") if _wanted(services) else RoomFor(node.name)
        for live in services:
            graph.stop(state, live, "interrupted", by)
    else:
        state.placing.focus = None
        unplaceable = Because("unplaceable_beside" if closure(node) else "unplaceable")
        graph.settle(state, node, "failed", unplaceable)


def _may_focus(state: State, node: Node) -> bool:
    return not _waits_for_others(state, node) or _patience_is_over(state)


def _waits_for_others(state: State, node: Node) -> bool:
    """Tell whether others have cards that the job could use, and that may come back.

    So do other launchers of this user, which hold all that they together may.
    """
    demands = [promised(state, each.job.demand) for each in (node, *closure(node))]
    memory = max((d.gpu_memory for d in demands if d.gpus), default=None)
    if memory is None:
        return False
    if state.cards.spent is not None:
        return True
    away = [card for card in state.cards if _is_away(state, card, memory)]
    away = [card for card in away if any(is_kind(card.gpu, d) for d in demands if d.gpus)]
    for card in away:
        state.cards.look_later(card, Demand(gpu_memory=memory))
    return bool(away)


def _is_away(state: State, card: Card, memory: int) -> bool:
    if not card.serves or card.gpu.memory < memory:
        return False
    if isinstance(card.state, Away | InUse) or card.drained:
        return True
    return isinstance(card.state, Free) and card.memory_expected(state.now.mono) < memory


def _patience_is_over(state: State) -> bool:
    """Return True once a deadlock across runs is assumed.

    A service of this run has a card that another launcher waits for, and that launcher has the
    cards that the service's dependants need: it has services too, or reserves a gang.
    """
    services = state.attempts.services()
    if not services:
        return False
    now = state.now.mono
    if state.standstill.since is None:
        state.standstill.since = now
    due = (
        state.standstill.since
        + DEADLOCK_TIMEOUT
        + DEADLOCK_TIMEOUT_JITTER * state.effects.jitter("stuck")
    )
    if _wanted(services) and any(_has_served(state, live) for live in services):
        due = state.standstill.since + GIVING_WAY
    if now < due != state.standstill.due:
        state.standstill.due = due
        state.effects.emit(SetTimer(Timer("deadlock"), due))
    return now >= due


def _has_served(state: State, live: ActiveAttempt) -> bool:
    """Tell whether a job has run beside this service since its start.

    If it were stopped before, again and again, the run might never get anywhere.
    """
    since = state.ledger.attempt(live.id).launched.mono
    dependants = live.service.dependants if live.service else []
    last = [attempt for node in dependants for attempt in state.record(node).attempts[-1:]]
    return any(attempt.ended and attempt.launched.mono >= since for attempt in last)


def _stop_unneeded(state: State) -> bool:
    """Stop services whose dependants are all settled; return whether there was one."""
    services = state.attempts.services()
    unneeded = [live for live in services if live.service and not live.service.serving.open]
    for live in unneeded:
        graph.stop(state, live, "stopped", Because("others_ended"))
    return bool(unneeded)


def _settle_one(state: State) -> bool:
    waiting = [node for node in state.jobs if node.waits]
    waiting.sort(key=lambda node: (node.job.service is not None, node.order))
    for node in waiting[:1]:
        waits = of(state, node.name, state.now)
        assert waits is not None, "a job that waits has a reason"
        graph.settle(state, node, "skipped", NeverStarts(waits))
    return bool(waiting)


def _wanted(services: list[ActiveAttempt]) -> bool:
    return any(card.wanted for live in services for card in live.cards)


def _wanting(node: Node) -> Node:
    """Return the job on whose behalf a service is to start; any other job itself."""
    while node.job.service and node.serving.waiters:
        node = min(node.serving.waiters, key=lambda asker: asker.key)
    return node
