"""Places ready jobs on the run's cards: which start, which cards are asked for and given back.

INVARIANT: after a pass no leased card is idle unless it is claimed: by a job that waits for the
answer to an Acquire or for the end of a Drain, or by the one job that may gather cards.

A worker that an attempt has left goes to the next job of its key before its cards go to another
one of the same priority; what overtakes so is counted as everywhere, so that a job that waits long
enough has the cards reserved. A worker that no job takes in a pass is ended, unless jobs for it are
still to come and no other job waits for cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from gpulaunch.core import graph, memory
from gpulaunch.core.attempts import ActiveAttempt, IdleWorker, cpus_of, may_go_on
from gpulaunch.core.cards import AskedFor, Card, Draining, Free, InUse, Leased
from gpulaunch.core.events import TakeBack
from gpulaunch.core.graph import closure, demands_beside
from gpulaunch.core.jobs import HELD_BY_WORKERS, BlockedOn, Node, Ready, is_extra
from gpulaunch.core.memory import promised
from gpulaunch.core.model import Demand, Gpu
from gpulaunch.core.placement import (
    Worth,
    best,
    fit_together,
    has_room,
    impossible,
    is_kind,
    share_card,
    sharers,
    suits_now,
    suits_soon,
    together,
    worth,
)
from gpulaunch.core.state import State

# ── The next attempt of a worker, behind the one that runs ────────────────────────────────────────


def launch(state: State, node: Node) -> bool:
    """Launch the ready job behind an attempt whose worker suits it; return whether there is one.

    The keeper has it before the attempt that runs there (L) has ended.

    no card for a ready job ─▶ Launch(behind=L) ─▶ L ends ─┬▶ kept: it has L's cards, and has begun
                                  │                        └▶ not kept: Ended(Interrupted), unbegun
                                  └─TakeBack─▶ Ended(Interrupted), unless it has begun

    INVARIANT: it is behind one attempt, which has started, and alone there. It is the first of the
    ready jobs that wait for these cards, and could have no others; where that changes, or nothing
    may start any more, it is taken back.
    """
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
    if memory.is_kept_from(state, node):
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


# ── Ready jobs ────────────────────────────────────────────────────────────────────────────────────


def consider(state: State, node: Node) -> None:
    """Start the job, ask for cards for it, or count it among the blocked; or settle it."""
    demand, found = node.job.demand, state.placing.last
    kept_for = node is state.placing.reserving and found.reserved
    lacks = "cards" if kept_for else obstacle(state, node) or _begin(state, node, demand)
    if lacks == "memory":
        launch(state, node)  # in a worker that has it
    if not isinstance(node.state, Ready):
        return
    reserves = demand.memory or state.cards.unified
    never = (reserves and memory.memory_short(state, demand)) or impossible(
        demand, state.cards.all, state.cards.limit, state.config.limits
    )
    if never:
        if demand.avoid:
            graph.forget_avoided(state, node)
        else:
            graph.settle(state, node, "failed", never)
        found.settled = True
        return
    node.lack(lacks)
    if lacks is None:
        return
    found.blocked.append(node)
    if kept_for:
        return
    if lacks == "room":
        _park(state, node)
    if node.skipped >= state.placing.patience and fits_beside_services(state, demand):
        found.kept_tokens.update(demand.uses)
        found.kept_cpus = found.kept_cpus or lacks == "cpus"
        if lacks == "memory":
            memory.gather_for(state, node)


def _begin(state: State, node: Node, demand: Demand) -> BlockedOn | None:
    """Start the job where only cards can keep it from starting; return what it lacks."""
    resident = state.idle_workers.fit(demand)
    if resident is not None:
        start_in(state, resident, node)
    elif not demand.gpus:
        start(state, node, [])
    else:
        return _place(state, node, sought(state, node))
    return None


def obstacle(state: State, node: Node) -> BlockedOn | None:
    """Return what, other than cards, keeps a ready job from starting; None for nothing."""
    demand = node.job.demand
    if state.lacks_tokens(demand):
        return "tokens"
    service = node.job.service is not None
    if service and not _room_for(state, node):
        return "room"
    if (demand.memory or state.cards.unified) and memory.lacks_memory(state, demand):
        return "memory"
    if service or demand.gpus:  # neither counts for the CPUs
        return None
    cpus, taken = cpus_of(demand), state.attempts.cpus
    # A job that wants more than is allowed runs, alone.
    if cpus and (state.placing.last.kept_cpus or (taken and taken + cpus > state.config.cpus)):
        return "cpus"
    return None


def _place(state: State, node: Node, demand: Demand) -> BlockedOn | None:
    """Start the job, or claim cards that may soon all be leased for it, or leave it blocked."""
    if demand.shares_card and node.job.service is None and _spread(state, node, demand):
        return None
    usable = memory.usable_cards(state, demand) if state.cards.unified else state.cards.all
    here = best((c for c in usable if suits_now(c, demand)), demand.gpus)
    if len(here) == demand.gpus:
        start(state, node, here)
        return None
    there = [card for card in attainable(state, demand) if not _is_spoken_for(state, card, node)]
    missing = demand.gpus - len(here)
    if len(there) < missing:
        return None if launch(state, node) else "cards"
    _await_cards(state, node, _gathered(state, demand, here, there), demand)
    return None


def _await_cards(state: State, node: Node, cards: list[Card], demand: Demand) -> None:
    """Claim the cards, which can all be had in a moment; keep for the job what else it takes."""
    claim(state, cards, demand)
    memory.keep_for(state, node)
    state.placing.last.kept_tokens.update(demand.uses)
    _park(state, node)


def _gathered(state: State, demand: Demand, here: list[Card], there: list[Card]) -> list[Card]:
    """Return the cards to claim: of those that can be had at once, the ones nearest each other.

    Of equal sets that of cards which the run has, or has asked for. Where too few can be had at
    once, the surest, wherever they are: nothing waits for a better set.
    """
    surest = (here + there)[: demand.gpus]
    if demand.gpus == 1:
        return surest
    now = state.now.mono
    held = here + [card for card in there if isinstance(card.state, AskedFor)]
    free = [card for card in state.cards if card.to_ask_for and not _doubtful(card, demand)]
    free = [card for card in free if suits_soon(card, demand, now)]
    free.sort(key=lambda c: (c.gpu.memory, c.gpu.index))
    if len(held) + len(free) < demand.gpus:
        return surest
    chosen, room = together(held + free, demand.gpus), state.cards.limit - state.cards.held()
    own = together(held, demand.gpus)
    if len(own) == demand.gpus and _apart(own) <= _apart(chosen):
        return own
    return chosen if sum(card.to_ask_for for card in chosen) <= room else surest


def _apart(cards: list[Card]) -> Worth:
    return worth([card.gpu for card in cards])


def _spread(state: State, node: Node, demand: Demand) -> bool:
    """Start a job that shares where the fewest jobs are, or claim cards; False: none has room.

    Work is done sooner on more cards. So a card that can be had in a moment counts like one that
    is had: if fewer jobs are on it than on any other card, the job waits for that moment, which
    the answer to an Acquire, a Drain or an EndWorker ends. Of the cards with nothing on them, as
    many are left as ready jobs need alone. A service is not spread: it leaves cards to the jobs
    that it serves.
    """
    here = [card for card in memory.usable_cards(state, demand) if suits_now(card, demand)]
    coming = [card for card in attainable(state, demand) if card not in here]
    coming = [card for card in coming if not _is_spoken_for(state, card, node)]
    cards = sorted(here + coming, key=partial(_spread_order, here))
    empty = [card for card in cards if not _jobs_on(card)]
    left = empty[max(0, len(empty) - _needed_by_others(state, demand, empty)) :]
    chosen = together([card for card in cards if card not in left], demand.gpus)
    if len(chosen) < demand.gpus:
        return False
    if all(card in here for card in chosen):
        start(state, node, chosen)
    else:
        _await_cards(state, node, chosen, demand)
    return True


def _spread_order(here: list[Card], card: Card) -> tuple[int, int, int, int, int]:
    """Order the cards: by the jobs on each, then by how soon a job can start there."""
    ending = isinstance(card.state, Draining | Leased)
    wait = 0 if card in here else 2 if ending else 1
    return card.gpu.rank, _jobs_on(card), wait, card.gpu.memory, card.gpu.index


def _jobs_on(card: Card) -> int:
    """Return how many jobs have or await a part of the card, idle workers included."""
    return len(card.attempts) + len(card.reservations) + len(card.idle_workers)


def _needed_by_others(state: State, demand: Demand, empty: list[Card]) -> int:
    """Return how many of these empty cards ready jobs need that cannot be beside this demand.

    Only jobs without a claim in this pass, which could start on so many of the cards, count.
    """
    now, wanted = state.now.mono, 0
    for other, count in state.jobs.waiting.unclaimed():
        if not other.gpus or share_card([demand, other]) or state.lacks_tokens(other):
            continue
        if (other.memory or state.cards.unified) and memory.lacks_memory(state, other):
            continue
        fit = sum(has_room(card, other, card.memory_expected(now)) for card in empty)
        groups = -(-count // sharers(other, other.promise, [card.gpu for card in empty]))
        wanted += other.gpus * min(groups, fit // other.gpus)
    return wanted


def sought(state: State, node: Node) -> Demand:
    """Return the job's demand, with what its kind is promised of a card's memory.

    A service avoids the cards that it would keep from the jobs that it serves: it would sit on them
    for ever.
    """
    demand = promised(state, node.job.demand)
    if node.job.service is None:
        return demand
    served = [promised(state, each) for each in node.serving.demands]
    if state.cards.limit > 1:
        theirs = _only_for(state, served)
    elif demand.shares_card:  # with the jobs that it serves, on a card that holds them beside it
        together = demand.gpu_memory + max((each.promise for each in served), default=0)
        theirs = {card.gpu.uuid for card in state.cards if card.gpu.memory < together}
    else:
        return demand
    avoiding = replace(demand, avoid=demand.avoid | theirs) if theirs else demand
    return avoiding if len(_serving(state, avoiding)) >= demand.gpus else demand


def _only_for(state: State, demands: list[Demand]) -> set[str]:
    """Return the cards that one of these demands cannot do without."""
    fitting = ((demand, _serving(state, demand)) for demand in demands)
    return {c.gpu.uuid for demand, cards in fitting if len(cards) <= demand.gpus for c in cards}


def _serving(state: State, demand: Demand) -> list[Card]:
    """Return the run's cards that could serve the demand, if they were free."""
    cards = [c for c in state.cards if c.serves and c.gpu.uuid not in demand.avoid]
    return [c for c in cards if c.gpu.memory >= demand.gpu_memory and is_kind(c.gpu, demand)]


def could_start(state: State, demand: Demand) -> bool:
    """Tell whether a worker or cards could be had for this demand, beside what runs."""
    if state.idle_workers.fit(demand) is not None:
        return True
    if memory.lacks_memory(state, demand):
        return False
    demand = promised(state, demand)
    here = sum(suits_now(card, demand) for card in memory.usable_cards(state, demand))
    return here + len(attainable(state, demand)) >= demand.gpus


def attainable(state: State, demand: Demand) -> list[Card]:
    """Cards that may soon suit the demand, the surest first, within the run's limit.

    Leased cards that still give memory back come last: another may be had sooner.
    """
    now = state.now.mono
    usable = memory.usable_cards(state, demand) if state.cards.unified else state.cards.all
    suited = [card for card in usable if suits_soon(card, demand, now)]
    if not suited:
        return suited
    room = state.cards.room()
    asked = [card for card in suited if isinstance(card.state, AskedFor)]
    draining = [card for card in suited if isinstance(card.state, Draining | Leased)]
    others = [card for card in suited if not card.held]
    others.sort(key=lambda c: (_doubtful(c, demand), c.gpu.rank, c.gpu.memory, c.gpu.index))
    return asked + others[:room] + draining


def claim(state: State, cards: list[Card], demand: Demand) -> None:
    """Reserve these cards for a job in this pass, and ask for those that are not leased.

    Doubtful ones are asked for first: if they are refused, the others would be given back.
    """
    wanted = [card for card in cards if card.to_ask_for]
    doubtful = [card for card in wanted if _doubtful(card, demand)]
    for card in cards:
        card.reservations.append(demand)
    for card in doubtful or wanted:
        state.cards.acquire(card)


def _is_spoken_for(state: State, card: Card, node: Node) -> bool:
    """Tell whether an idle worker on the card goes on with another job of this priority or more."""
    return any(
        card in resident.cards and _has_next(state, resident, node)
        for resident in state.idle_workers
    )


def _has_next(state: State, resident: IdleWorker, node: Node) -> bool:
    if state.placing.focus is not None:
        return False
    following = state.jobs.waiting.first_like(resident.demand)
    return any(
        other is not node
        and other.job.priority >= node.job.priority
        and resident.suits(other.job.demand)
        and not obstacle(state, other)
        for other in following
    )


def start_in(state: State, resident: IdleWorker, node: Node) -> None:
    """Start the job in the idle worker's process, on the worker's cards."""
    state.idle_workers.take(resident)
    start(state, node, list(resident.cards), resident)


def start(state: State, node: Node, cards: list[Card], resident: IdleWorker | None = None) -> None:
    state.placing.last.starts(node.job.demand)
    graph.leave(state, node)
    ordered = sorted(cards, key=lambda c: (c.gpu.index, c.gpu.uuid))
    seat, turn = (None, 1) if resident is None else (resident.id, resident.turns + 1)
    held = promised(state, node.job.demand)
    live = state.attempts.launch(node, tuple(ordered), seat, turn=turn, promised=held)
    for card in cards:
        state.cards.occupy(card, live.id, held)


def _park(state: State, node: Node) -> None:
    if state.placing.focus is None:
        state.jobs.waiting.park(node)


# ── Cards back ──────────────────────────────────────────────────────────────────────────────────


def forget_claims(state: State) -> None:
    for card in state.cards:
        card.reservations.clear()
        card.reserved = card.wanted and bool(card.attempts or card.idle_workers)


def give_wanted(state: State) -> None:
    for card in state.cards:
        if card.idle and card.wanted and not card.reservations:
            state.cards.release(card)


def look_again(state: State, node: Node) -> None:
    """Set timers to look again at cards with strangers' processes: nothing tells their end.

    A service that lacks room may lack a card for the jobs that need it, of whatever kind.
    """
    demand, for_others = sought(state, node), node.lacks == "room"
    wanted = [card for card in state.cards if card.to_ask_for]
    for card in [card for card in wanted if for_others or is_kind(card.gpu, demand)]:
        state.cards.look_later(card, demand)
        due = isinstance(card.state, InUse) and card.not_before <= state.now.mono
        if not for_others or not due or card.drained:
            continue
        if state.cards.room():
            claim(state, [card], demand)


def let_go(state: State) -> bool:
    idle = [card for card in state.cards if card.idle and not card.reservations]
    for card in idle:
        state.cards.release(card)
    return state.idle_workers.end_idle(partial(_are_to_come, state)) or bool(idle)


def _are_to_come(state: State, demand: Demand) -> bool:
    """Tell whether jobs for this demand's worker will come, while no job waits for cards."""
    if state.closed or state.placing.focus is not None or state.placing.reserving is not None:
        return False
    if any(node.lacks in HELD_BY_WORKERS for node in state.placing.last.blocked):
        return False
    alike = [known for known in state.jobs.demands if known.same_seat(demand)]
    begun = (live for live in state.attempts if live.behind is None)
    running = sum(live.demand.same_seat(demand) for live in begun)
    far = (state.jobs.dues.waiting, *state.jobs.images.waiting.values())
    running += sum(node.job.demand.same_seat(demand) for nodes in far for node in nodes)
    return sum(state.jobs.demands[known] for known in alike) > running


def hold_out_over(state: State, name: str) -> None:
    """Let the job have a card that it avoids, as no other card has come free for long."""
    node = state.jobs.nodes.get(name)
    avoid = node.job.demand.avoid if node is not None else frozenset()
    if node is None or not isinstance(node.state, Ready) or not avoid:
        return
    if any(card.gpu.uuid in avoid and isinstance(card.state, Free) for card in state.cards):
        graph.forget_avoided(state, node)
    else:
        graph.hold_out(state, node)


# ── Services ────────────────────────────────────────────────────────────────────────────────────


def fits_beside_services(state: State, demand: Demand) -> bool:
    """Tell whether the demand fits beside all running services.

    If not, cards kept for it would starve every other job, and never be enough.
    """
    services = state.attempts.services()
    tokens = Counter(token for live in services for token in live.demand.uses)
    tokens.update(demand.uses)
    if any(tokens[token] > state.config.limits.get(token, 1) for token in demand.uses):
        return False
    if not memory.fits_together(state, (demand, *(live.demand for live in services))):
        return False
    kept = {card.gpu.uuid for live in services for card in live.cards}
    usable = [c for c in state.cards if c.serves and not c.drained]
    usable = [c for c in usable if c.gpu.uuid not in kept | demand.avoid]
    usable = [c for c in usable if c.gpu.memory >= demand.gpu_memory and is_kind(c.gpu, demand)]
    return demand.gpus <= min(len(usable), state.cards.limit - len(kept))


def _room_for(state: State, service: Node) -> bool:
    """Tell whether this service and all running ones fit together with each job they serve.

    A service that left no room for the jobs that need it would keep its card for nothing.
    """
    kept_for = state.placing.reserving
    if kept_for not in (None, service) and service not in closure(kept_for):
        return False
    running = {live.service for live in state.attempts.services() if live.service}
    if state.placing.focus is not None:
        beside = {state.placing.focus.job.demand}
        services = running | {service, *closure(state.placing.focus)} - {state.placing.focus}
    else:
        companions = {s for s in service.serving.companions if s.waits}
        services = running | companions | {service}
        beside = demands_beside(services)
        if is_extra(service):
            beside |= state.jobs.demands.keys()
    demands = [promised(state, s.job.demand) for s in services]
    variants = [[*demands, promised(state, demand)] for demand in beside] or [demands]
    return all(
        memory.fits_together(state, variant)
        and fit_together(variant, _cards_for(state, variant), state.config.limits)
        for variant in variants
    )


def _cards_for(state: State, demands: list[Demand]) -> list[Gpu]:
    """Return as many cards as the run may have, those first that suit most, then the largest."""
    gpus = [card.gpu for card in state.cards if not card.away]
    suited = {gpu.uuid: sum(is_kind(gpu, demand) for demand in demands) for gpu in gpus}
    gpus.sort(key=lambda gpu: (-suited[gpu.uuid], -gpu.memory))
    return gpus[: state.cards.limit]


def _doubtful(card: Card, demand: Demand) -> bool:
    """Tell whether the card could not be had for this demand when it was last looked at."""
    short = card.look.free is not None and card.look.free < demand.gpu_memory
    return isinstance(card.state, InUse) or short
