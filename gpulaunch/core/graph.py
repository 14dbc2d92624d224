"""The graph of jobs: its links, when each job is ready (needs, after, services, delays), its ends.

This module queues ready jobs and settles those that cannot run. It starts none, and knows nothing
of cards.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Literal, TypeGuard, TypeVar

from msgspec.structs import replace

from gpulaunch.core.attempts import ActiveAttempt
from gpulaunch.core.causes import Because, EndCause
from gpulaunch.core.events import SetTimer, StopAttempt, StopReason, Timer
from gpulaunch.core.facts import JobRequeued, JobSettled
from gpulaunch.core.jobs import (
    IDLE,
    NO_LINKS,
    READY,
    SETTLED,
    UNKNOWN,
    Asking,
    AwaitingImage,
    Blocked,
    Delayed,
    Idle,
    Launched,
    Links,
    Node,
    NotDue,
    Ready,
    Settled,
)
from gpulaunch.core.model import BAD_STATES, Demand, JobState
from gpulaunch.core.reasons import JobReason, NeededBy, NeedUnmet
from gpulaunch.core.state import State

T = TypeVar("T", bound=Hashable)


def reached(start: Iterable[T], onward: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """Return `start` and all that `onward` leads to, each once, in the order of finding them."""
    found = dict.fromkeys(start)
    todo = list(found)
    while todo:
        more = dict.fromkeys(one for one in onward(todo.pop()) if one not in found)
        found |= more
        todo += more
    return found


HOLD_OUT = 120.0
"""Seconds for which a job waits for another card while one that it avoids is free."""
IN_VAIN = 5
"""Attempts in vain, in a row, after which the next launch waits. An attempt is in vain if it costs
the job nothing and ends within a second of its launch."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds for which the next launch waits then. Each further attempt in vain doubles the pause."""
AHEAD_OF = 50
"""Needs up to which a job may be handed over ahead of them; with more, it waits for their end."""


def count(state: State, node: Node, step: int) -> None:
    """Count the job, when it is no longer settled (`step` 1) or is from now on (-1)."""
    for service in node.links.services:
        service.serving.open += step
    if not node.job.service:
        _step(state.jobs.demands, node.job.demand, step)
        for service in closure(node):
            _step(service.serving.demands, node.job.demand, step)


# ── Waiting jobs ────────────────────────────────────────────────────────────────────────────


def enqueue(state: State, node: Node) -> None:
    """Set what a waiting job waits for: others, a delay, services, cards; or settle it."""
    unknown = node.links.unknown
    bad = NeedUnmet(unknown, "unknown") if unknown else None
    for need in node.links.required:
        end = state.record(need).state
        if _ended_badly(end):
            bad = bad or NeedUnmet(need.name, end)
        elif need.excluded and end != "succeeded":
            bad = bad or NeedUnmet(need.name, "excluded")
        elif end == "succeeded" and need.job.service and need.withdrawn:
            bad = bad or NeedUnmet(need.name, "unknown")
        elif end == "succeeded" and need.job.service:
            requeue(state, [need], NeededBy(node.name))
    if node.settled:
        return  # by the end of a service that it would have needed again
    if bad:
        settle(state, node, "skipped", bad)
        return
    if node.job.service and node.dependants and not node.serving.open:
        retire(state, node)
        return
    blockers = sum(state.record(need).state != "succeeded" for need in node.links.needs)
    blockers += sum(not other.settled for other in node.links.after)
    node.become(Blocked(blockers))
    if not blockers:
        _advance(state, node)
    else:
        may_go_ahead(state, node)


def may_go_ahead(state: State, node: Node) -> None:
    """Remember a blocked job: perhaps all that blocks it is under way."""
    if state.config.ahead and len(node.links.needs) <= AHEAD_OF:
        state.jobs.perhaps_ahead[node] = None


def _advance(state: State, node: Node) -> None:
    """Move on a job whose needs are met: to what else it waits for, or ready."""
    if early := too_early(state, node):
        _wait(state, node, early)
        return
    if node.job.service and node.dependants and not node.serving.waiters:
        node.become(IDLE)
        return
    if source := state.jobs.images.lacked_by(node):
        node.become(AwaitingImage(source))
        state.jobs.images.add(node, source)
        return
    missing = tuple(service for service in node.links.services if not service.answers)
    if missing:
        node.become(Asking(missing))
        for service in missing:
            service.serving.waiters.add(node)
            _ask(state, service, node)
        return
    node.become(READY)
    state.jobs.waiting.push(node)


def move_on(state: State, node: Node) -> None:
    """Let a job go on to what else it waits for, as what it waited for may be there."""
    leave(state, node)
    _advance(state, node)


def too_early(state: State, node: Node) -> NotDue | Delayed | None:
    """Return what the job waits for before all else: the later of its retry's delay and its moment.

    None where both have come. One may come later than it seemed, as the clock may be set.
    """
    record, now = state.record(node), state.now
    due = record.definition.due
    delay = 0.0 if record.not_before is None else record.not_before - now.mono
    if record.attempts:
        delay = max(delay, pause(state, node))
    if due is not None and due.utc - now.utc > max(delay, 0.0):
        return NotDue(due.utc)
    return Delayed(now.mono + delay) if delay > 0.0 else None


def pause(state: State, node: Node) -> float:
    """Return for how many seconds the job is not launched again, after attempts in vain.

    INVARIANT: whatever the engine answers, no job is launched without end within one moment.
    """
    record, count = state.record(node), 0
    # A request starts afresh. What requeues a service may be such an attempt's end.
    since = node.fresh_from if node.job.service else max(node.fresh_from, record.budget_from)
    for attempt in reversed(record.attempts):
        ended = attempt.ended
        if attempt.id.number < since or attempt.charged or ended is None:
            break
        if ended.mono - attempt.launched.mono >= 1.0:
            break
        count += 1
    if count < IN_VAIN:
        return 0.0
    last = record.attempts[-1].ended
    assert last is not None
    seconds = FIRST_PAUSE * 2.0 ** min(count - IN_VAIN, 30)
    return last.mono + min(seconds, LONGEST_PAUSE) - state.now.mono


def _wait(state: State, node: Node, early: NotDue | Delayed) -> None:
    node.become(early)
    if isinstance(early, NotDue):
        state.jobs.dues.add(node, early.at)
    else:
        state.jobs.delayed += 1
        state.effects.emit(SetTimer(Timer("retry", node.name), early.until))


def _ask(state: State, service: Node, asker: Node) -> None:
    # A service waits with the priority of the most urgent job that asks for it.
    better = asker.key < service.key or len(service.serving.waiters) == 1
    if better:
        service.serving.borrowed_key = asker.key
    if isinstance(service.state, Idle):
        _advance(state, service)
    elif isinstance(service.state, Ready) and better:
        state.jobs.waiting.push(service)


def leave(state: State, node: Node) -> None:
    """Undo what the job's present way of waiting counts, before its state changes."""
    if isinstance(node.state, Ready):
        state.jobs.waiting.remove(node)
    if isinstance(node.state, Delayed):
        state.jobs.delayed -= 1
    if isinstance(node.state, NotDue):
        del state.jobs.dues.waiting[node]
    if isinstance(node.state, AwaitingImage):
        state.jobs.images.remove(node, node.state.source)
    if isinstance(node.state, Asking):
        for service in node.state.services:
            service.serving.waiters.discard(node)
            if not service.serving.waiters and isinstance(
                service.state, Ready | Asking | AwaitingImage
            ):
                leave(state, service)
                service.become(IDLE)


def retry_due(state: State, name: str) -> None:
    """Let a job go on whose retry's delay is over, or which is due."""
    node = state.jobs.nodes.get(name)
    if node is not None and isinstance(node.state, Delayed | NotDue):
        move_on(state, node)


def service_ready(state: State, service: Node) -> None:
    assert service.attempt is not None
    service.become(Launched(service.attempt, answers=True))
    for node in sorted(service.serving.waiters, key=lambda asker: asker.order):
        move_on(state, node)
    service.serving.waiters.clear()


def service_down(state: State, service: Node) -> None:
    """Mark a service that ends, or is about to, as not ready: its dependants wait again."""
    if not (isinstance(service.state, Launched) and service.state.answers):
        return
    service.become(Launched(service.state.attempt))
    for node in service.dependants:
        if isinstance(node.state, Ready):
            move_on(state, node)


# ── Ends and new beginnings ─────────────────────────────────────────────────────────────────


def settle(state: State, node: Node, end: JobState, reason: JobReason | None = None) -> None:
    """Settle the job, and skip every waiting job that needs it unless it succeeded."""
    first = node
    todo: deque[tuple[Node, JobState, JobReason | None]] = deque([(node, end, reason)])
    unneeded: dict[Node, None] = {}
    while todo:
        node, end, reason = todo.popleft()
        if node.settled:
            continue
        leave(state, node)
        node.become(SETTLED)
        state.jobs.unsettled -= 1
        state.effects.fact(JobSettled(node.name, end, reason))
        if end == "failed" and not node.withdrawn:
            state.jobs.failed[node] = None
        count(state, node, -1)
        unneeded.update(
            {service: None for service in node.links.services if not service.serving.open}
        )
        for follower in node.followers:
            _unblock(state, follower)
        for dependant in node.dependants:
            if _ended_badly(end):
                if dependant.waits:
                    todo.append((dependant, "skipped", NeedUnmet(node.name, end)))
            elif end == "succeeded" and not node.job.service:
                _unblock(state, dependant)
    for service in unneeded:
        if not service.serving.open:
            retire(state, service)
    _wake(state, first)


def _wake(state: State, service: Node) -> None:
    """Requeue a service that has just stopped if a waiting job needs it.

    One that the list has no more stays as it is, and those jobs are skipped.
    """
    if not service.job.service or state.record(service).state != "succeeded":
        return
    waiting = [node for node in service.dependants if node.waits]
    if not service.withdrawn and waiting:
        requeue(state, [service], Because("needed_again"))
    for node in waiting if service.withdrawn else ():
        settle(state, node, "skipped", NeedUnmet(service.name, "unknown"))


def _unblock(state: State, node: Node) -> None:
    if not isinstance(node.state, Blocked):
        return
    node.become(Blocked(node.state.by - 1))
    if node.state == Blocked(0):
        _advance(state, node)
    else:
        may_go_ahead(state, node)


def retire(state: State, service: Node) -> None:
    """Stop a service that no unsettled job needs, or settle it where it waits."""
    if isinstance(service.state, Launched):
        live = state.attempts.get(service.state.attempt)
        if live is not None:
            stop(state, live, "stopped", Because("unneeded"))
    elif service.waits:
        states = {state.record(node).state for node in service.dependants}
        if "succeeded" in states or state.record(service).attempts:
            settle(state, service, "succeeded")
        else:
            settle(state, service, "skipped", Because("never_needed"))


def redemand(state: State, node: Node, demand: Demand) -> None:
    """Set the demand of the job's next attempt. A ready job has to be queued again after it."""
    counted = not node.settled
    if counted:
        count(state, node, -1)
    node.job = replace(node.job, demand=demand)
    if counted:
        count(state, node, +1)


def hold_out(state: State, node: Node, delay: float = 0.0) -> None:
    """Set the timer until which the job waits for a card that it does not avoid."""
    at = state.now.mono + delay + HOLD_OUT
    state.effects.emit(SetTimer(Timer("hold_out", node.name), at))


def forget_avoided(state: State, node: Node) -> None:
    """Let a ready job use the cards that it was to avoid, as it can have no other."""
    leave(state, node)
    redemand(state, node, replace(node.job.demand, avoid=frozenset()))
    _advance(state, node)


def requeue(
    state: State, nodes: Iterable[Node], why: JobReason, avoid: frozenset[str] = frozenset()
) -> None:
    """Let settled and delayed jobs wait again, with a fresh budget of retries.

    `avoid`: UUIDs of cards that they are not to run on, where there are others.
    """
    nodes = [node for node in nodes if isinstance(node.state, Settled | Delayed)]
    # Beforehand: a delayed job is blocked as soon as one that it comes after waits again.
    delayed = {node for node in nodes if isinstance(node.state, Delayed)}
    for node in nodes:
        leave(state, node)
        node.become(UNKNOWN)
        node.excluded = False
        state.jobs.failed.pop(node, None)
        state.effects.fact(JobRequeued(node.name, why))
        demand = replace(node.demand_asked, avoid=avoid)
        if node in delayed:
            redemand(state, node, demand)
            continue
        node.job = replace(node.job, demand=demand)
        state.jobs.unsettled += 1
        count(state, node, +1)
        for follower in node.followers:
            _block(state, follower)
    for node in nodes:
        if isinstance(node.state, Blocked):
            enqueue(state, node)


def leave_be(state: State, node: Node) -> None:
    """Take an excluded job, whose attempt has ended, out of the count: it is not run again."""
    node.become(SETTLED)
    state.jobs.unsettled -= 1
    count(state, node, -1)


def _block(state: State, node: Node) -> None:
    if node.waits:
        by = node.state.by if isinstance(node.state, Blocked) else 0
        leave(state, node)
        node.become(Blocked(by + 1))


def to_retry(state: State, names: tuple[str, ...] | None) -> list[Node]:
    """Return the jobs that a retry of `names` requeues, in the order of the file.

    These are the jobs themselves (None: all that failed), what keeps them from running, and
    what was skipped because of any of these.
    """
    if names is None:
        asked = [node for node in state.jobs if state.record(node).state == "failed"]
    else:
        asked = [state.jobs.nodes[name] for name in names if name in state.jobs.nodes]

    def skipped(node: Node) -> bool:
        return state.record(node).state == "skipped"

    def obstacles(node: Node) -> list[Node]:
        return [n for n in node.links.required if skipped(node) and is_bad(state, n)]

    over = [node for node in asked if isinstance(node.state, Delayed) or is_bad(state, node)]
    above = reached(over, obstacles)
    found = reached(above, lambda node: filter(skipped, node.dependants))
    there = (node for node in found if not state.record(node).vanished)
    return sorted(there, key=lambda node: node.order)


def is_bad(state: State, node: Node) -> bool:
    """Tell whether the job has ended without success."""
    return node.settled and state.record(node).state in BAD_STATES


def has_bad_need(state: State, node: Node) -> Node | None:
    """Return a need or service of the job that has ended without success, None for none."""
    return next((n for n in node.links.required if is_bad(state, n)), None)


def stop(
    state: State,
    live: ActiveAttempt,
    reason: StopReason,
    by: EndCause,
    now: bool = False,
    service: Node | None = None,
    gently: bool = False,
) -> None:
    """Ask the engine to end the attempt, unless it was asked as much before.

    `by`: who or what asked; `now`: KILL at once; `service`: it has ended, and the
    attempt needs it; `gently`: its warning goes ahead.
    """
    asked = live.stop(reason, now, service, gently)
    if asked is None:
        return
    if live.service:
        service_down(state, live.service)
    if not live.inherited and live.held is None:
        state.effects.emit(StopAttempt(live.id, asked.reason, by, asked.now, asked.gently))


def closure(node: Node) -> list[Node]:
    """Return the services that must run beside this job: its own, and those that they need."""
    return list(reached(node.links.services, lambda service: service.links.services))


def demands_beside(services: Iterable[Node]) -> set[Demand]:
    """Return the demands of all unsettled jobs that need one of these services."""
    return {demand for service in services for demand in service.serving.demands}


def _ended_badly(state: JobState) -> TypeGuard[Literal["failed", "cancelled", "skipped"]]:
    return state in BAD_STATES


def _step(counted: Counter[Demand], demand: Demand, step: int) -> None:
    counted[demand] += step
    if not counted[demand]:
        del counted[demand]


# ── Links ─────────────────────────────────────────────────────────────────────────────────────────


def tie(state: State, nodes: Iterable[Node]) -> None:
    """Link each job with those that its definition names and the list has, in both directions.

    The state remembers who names others, which may still join (`Jobs.missed`).
    """
    for node in nodes:
        for name in (*node.job.needs, *node.job.after):
            if not _is_there(state, name):
                state.jobs.missed.setdefault(name, {})[node] = None
        needs = list(_there(state, node.job.needs))
        unknown = [name for name in node.job.needs if not _is_known(state, name)]
        node.links = Links(
            tuple(need for need in needs if need.job.service is None),
            tuple(need for need in needs if need.job.service is not None),
            tuple(_there(state, node.job.after)),
            unknown[-1] if unknown else "",
        )
        for need in node.links.required:
            need.dependants = _with(need.dependants, node)
        for other in node.links.after:
            other.followers = _with(other.followers, node)


def untie(nodes: Collection[Node]) -> None:
    """Undo what `tie` did for these jobs. Others stay linked to them."""
    leaving = set(nodes)
    for need in {need: None for node in nodes for need in node.links.required}:
        need.dependants = [other for other in need.dependants if other not in leaving]
    for other in {other: None for node in nodes for other in node.links.after}:
        other.followers = [each for each in other.followers if each not in leaving]
    for node in nodes:
        node.links = NO_LINKS


def uncount(state: State, nodes: Iterable[Node]) -> None:
    """Take jobs that have not ended out of the count, before they are linked or defined anew."""
    if not state.jobs.services:
        for node in nodes:
            if not node.settled:
                count(state, node, -1)


def recount(state: State, nodes: Iterable[Node]) -> None:
    """Count those of these jobs that have not ended, as they are linked and defined now.

    Where there are services, all jobs are counted anew: whom one serves depends on all links.
    """
    services = state.jobs.services
    if services:
        nodes = state.jobs
        state.jobs.demands.clear()
        for service in services:
            service.serving.forget_whom()
    for node in nodes:
        if not node.settled:
            count(state, node, +1)
    if services:
        _know_companions(nodes)


def _know_companions(nodes: Iterable[Node]) -> None:
    """Note for each service that one of these jobs needs which others it then runs beside."""
    known: set[tuple[Node, ...]] = set()
    for node in nodes:
        if node.links.services and node.links.services not in known:
            known.add(node.links.services)
            beside = frozenset(closure(node))
            for service in beside:
                service.serving.companions |= beside - {service}


def _there(state: State, names: Iterable[str]) -> Iterator[Node]:
    """Yield the jobs of these names that the list has, each once."""
    for name in dict.fromkeys(names):
        if _is_there(state, name):
            yield state.jobs.nodes[name]


def _is_there(state: State, name: str) -> bool:
    node = state.jobs.nodes.get(name)
    return node is not None and not node.withdrawn


def _is_known(state: State, need: str) -> bool:
    """Tell whether the list has the need, or it has succeeded before it vanished."""
    if _is_there(state, need):
        return True
    record = state.ledger.jobs.get(need)
    return record is not None and record.state == "succeeded" and not record.definition.service


def _with(nodes: Collection[Node], node: Node) -> list[Node]:
    if not isinstance(nodes, list):
        return [*nodes, node]
    nodes.append(node)
    return nodes
