"""The graph of jobs: when each is ready (needs, after, services, delays), and what its end causes.

This module queues ready jobs and settles those that cannot run. It starts none, and knows nothing
of cards.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeGuard

from gpulaunch.core.active import ActiveAttempt
from gpulaunch.core.causes import Because, EndCause
from gpulaunch.core.events import HoldOutOver, RetryDue, SetTimer, StopAttempt, StopReason
from gpulaunch.core.facts import JobAdded, JobRequeued, JobSettled, JobVanished
from gpulaunch.core.ledger import JobRecord
from gpulaunch.core.model import SETTLED_STATES, AttemptId, Demand, Job, JobState
from gpulaunch.core.reasons import JobReason, NeededBy, NeedUnmet
from gpulaunch.core.state import State
from gpulaunch.core.waiting import (
    IDLE,
    READY,
    SETTLED,
    UNKNOWN,
    Asking,
    Blocked,
    Delayed,
    Idle,
    Launched,
    Links,
    Node,
    Ready,
    Settled,
)

HOLD_OUT = 120.0
"""Seconds for which a job waits for another card while one that it avoids is free."""
AHEAD_OF = 50
"""Needs up to which a job may be handed over ahead of them; with more, it waits for their end."""
_BAD: frozenset[JobState] = frozenset({"failed", "cancelled", "skipped"})


# ── The job file ────────────────────────────────────────────────────────────────────────────


def submit(
    state: State, jobs: Sequence[Job], again: frozenset[str], left: frozenset[str] = frozenset()
) -> list[AttemptId]:
    """Add the jobs, queue those that wait, and return the attempts without a recorded end."""
    ledger = state.ledger
    open_attempts = [record.id for record in ledger.open_attempts()]
    _record(state, jobs)
    state.jobs.nodes = {job.name: Node.of(job, order) for order, job in enumerate(jobs)}
    _link(state)
    for name in left & state.jobs.nodes.keys() - again:
        state.jobs.nodes[name].excluded = True
    running = {attempt.job: attempt for attempt in open_attempts}
    waiting = [node for node in state.jobs if _resume(state, node, running.get(node.name), again)]
    _know_services(state)
    for node in waiting:
        if node.waits:
            enqueue(state, node)
    return open_attempts


def retire_unneeded(state: State) -> None:
    """Stop or settle the services whose dependants an earlier supervisor settled."""
    for node in state.jobs:
        if node.job.service and node.links.dependants and not node.serving.open:
            _retire(state, node)


def redefine(state: State, jobs: Iterable[Job], gone: frozenset[str]) -> None:
    """Give settled and delayed jobs their new definition; mark those of `gone` as vanished."""
    for job in jobs:
        node = state.jobs.nodes.get(job.name)
        if node is None or not isinstance(node.state, Settled | Delayed):
            continue
        node.demand_asked = job.demand
        if isinstance(node.state, Delayed):
            redemand(state, node, job.demand)
        links = node.job
        node.job = replace(job, needs=links.needs, after=links.after, service=links.service)
        _add(state, node.job)
    for name in sorted(gone & state.jobs.nodes.keys()):
        if (
            is_bad(state, state.jobs.nodes[name])
            and not state.record(state.jobs.nodes[name]).vanished
        ):
            state.jobs.failed.pop(state.jobs.nodes[name], None)
            state.effects.fact(JobVanished(name))


def _record(state: State, jobs: Sequence[Job]) -> None:
    ledger = state.ledger
    for job in jobs:
        _add(state, job)
    names = {job.name for job in jobs}
    for record in list(ledger.jobs.values()):
        if record.name not in names and not record.vanished:
            state.effects.fact(JobVanished(record.name))


def _add(state: State, job: Job) -> None:
    fact = JobAdded(
        job.name,
        job.group,
        job.demand.gpus,
        job.digest,
        job.params,
        job.cost,
        job.service is not None,
        job.expected,
        job.demand.gpu_memory,
    )
    if not _same(state.ledger.jobs.get(job.name), fact):
        state.effects.fact(fact)


def _link(state: State) -> None:
    """Give each job its neighbours."""
    nodes = state.jobs.nodes
    ahead: dict[Node, list[Node]] = {}
    dependants: defaultdict[Node, list[Node]] = defaultdict(list)
    followers: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in state.jobs:
        ahead[node] = [nodes[name] for name in dict.fromkeys(node.job.needs) if name in nodes]
        for need in ahead[node]:
            dependants[need].append(node)
        for name in dict.fromkeys(node.job.after):
            if name in nodes:
                followers[nodes[name]].append(node)
    for node, known in ahead.items():
        unknown = [name for name in node.job.needs if not _is_known(state, name)]
        node.links = Links(
            tuple(need for need in known if need.job.service is None),
            tuple(need for need in known if need.job.service is not None),
            tuple(nodes[name] for name in dict.fromkeys(node.job.after) if name in nodes),
            tuple(dependants.get(node, ())),
            tuple(followers.get(node, ())),
            unknown[-1] if unknown else "",
        )


def _is_known(state: State, need: str) -> bool:
    """Whether the file has the need, or it has succeeded before it vanished."""
    record = state.ledger.jobs.get(need)
    return need in state.jobs.nodes or (record is not None and record.state == "succeeded")


def _resume(state: State, node: Node, running: AttemptId | None, again: frozenset[str]) -> bool:
    """Set the node's state from what is recorded of it; return whether the job waits."""
    record = state.record(node)
    node.fresh_from = len(record.attempts) + 1
    if record.state == "running" and not running:
        _settle_recorded(state, node, record)
    if record.state in SETTLED_STATES and node.name not in again:
        node.become(SETTLED)
        return False
    if node.excluded and not running:
        node.become(SETTLED)
        if record.state == "running":
            state.effects.fact(JobRequeued(node.name, Because("cut_short")))
        return False
    state.jobs.unsettled += 1
    if running:
        node.become(Launched(running))
        return False
    if record.state != "waiting" or record.charged or record.not_before is not None:
        state.effects.fact(JobRequeued(node.name, Because("taken_up")))
    return True


def _settle_recorded(state: State, node: Node, record: JobRecord) -> None:
    # The supervisor died between recording an attempt's end and settling its job: a job that
    # succeeded or was cancelled is not run again.
    last = record.attempts[-1]
    if last.state == "succeeded":
        state.effects.fact(JobSettled(node.name, "succeeded"))
    elif last.state == "cancelled":
        state.effects.fact(JobSettled(node.name, "cancelled", Because("cancelled")))


def _know_services(state: State) -> None:
    """Find, for each service, the demands and the other services that run beside it."""
    known: dict[tuple[Node, ...], frozenset[Node]] = {}
    for node in state.jobs:
        if node.links.services and node.links.services not in known:
            known[node.links.services] = frozenset(closure(node))
            for service in known[node.links.services]:
                service.serving.companions |= known[node.links.services] - {service}
        if not node.settled:
            _count(state, node, +1)


def _count(state: State, node: Node, step: int) -> None:
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
    for need in (*node.links.needs, *node.links.services):
        end = state.record(need).state
        if _ended_badly(end):
            bad = bad or NeedUnmet(need.name, end)
        elif need.excluded and end != "succeeded":
            bad = bad or NeedUnmet(need.name, "excluded")
        elif end == "succeeded" and need.job.service:
            requeue(state, [need], NeededBy(node.name))
    if bad:
        settle(state, node, "skipped", bad)
        return
    if node.job.service and node.links.dependants and not node.serving.open:
        _retire(state, node)
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
    """Move on a job whose needs are met: to delayed, idle, asking for services, or ready."""
    not_before = state.record(node).not_before
    if not_before is not None and not_before > state.now.mono:
        node.become(Delayed(not_before))
        state.jobs.delayed += 1
        state.effects.emit(SetTimer(RetryDue(node.name), not_before))
        return
    if node.job.service and node.links.dependants and not node.serving.waiters:
        node.become(IDLE)
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
    if isinstance(node.state, Delayed):
        state.jobs.delayed -= 1
    if isinstance(node.state, Asking):
        for service in node.state.services:
            service.serving.waiters.discard(node)
            if not service.serving.waiters and isinstance(service.state, Ready | Asking):
                leave(state, service)
                service.become(IDLE)


def retry_due(state: State, name: str) -> None:
    node = state.jobs.nodes.get(name)
    if node is not None and isinstance(node.state, Delayed):
        leave(state, node)
        _advance(state, node)


def service_ready(state: State, service: Node) -> None:
    assert service.attempt is not None
    service.become(Launched(service.attempt, answers=True))
    for node in sorted(service.serving.waiters, key=lambda asker: asker.order):
        leave(state, node)
        _advance(state, node)
    service.serving.waiters.clear()


def service_down(state: State, service: Node) -> None:
    """Mark a service that ends, or is about to, as not ready: its dependants wait again."""
    if not (isinstance(service.state, Launched) and service.state.answers):
        return
    service.become(Launched(service.state.attempt))
    for node in service.links.dependants:
        if isinstance(node.state, Ready):
            leave(state, node)
            _advance(state, node)


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
        if end == "failed":
            state.jobs.failed[node] = None
        _count(state, node, -1)
        unneeded.update(
            {service: None for service in node.links.services if not service.serving.open}
        )
        for follower in node.links.followers:
            _unblock(state, follower)
        for dependant in node.links.dependants:
            if _ended_badly(end):
                if dependant.waits:
                    todo.append((dependant, "skipped", NeedUnmet(node.name, end)))
            elif end == "succeeded" and not node.job.service:
                _unblock(state, dependant)
    for service in unneeded:
        if not service.serving.open:
            _retire(state, service)
    _wake(state, first)


def _wake(state: State, service: Node) -> None:
    """Requeue a service that has just stopped if a waiting job needs it."""
    if not service.job.service or state.record(service).state != "succeeded":
        return
    if any(node.waits for node in service.links.dependants):
        requeue(state, [service], Because("needed_again"))


def _unblock(state: State, node: Node) -> None:
    if not isinstance(node.state, Blocked):
        return
    node.become(Blocked(node.state.by - 1))
    if node.state == Blocked(0):
        _advance(state, node)
    else:
        may_go_ahead(state, node)


def _retire(state: State, service: Node) -> None:
    if isinstance(service.state, Launched):
        live = state.attempts.get(service.state.attempt)
        if live is not None:
            stop(state, live, "stopped", Because("unneeded"))
    elif service.waits:
        states = {state.record(node).state for node in service.links.dependants}
        if "succeeded" in states or state.record(service).attempts:
            settle(state, service, "succeeded")
        else:
            settle(state, service, "skipped", Because("never_needed"))


def redemand(state: State, node: Node, demand: Demand) -> None:
    """Set the demand of the job's next attempt. A ready job has to be queued again after it."""
    counted = not node.settled
    if counted:
        _count(state, node, -1)
    node.job = replace(node.job, demand=demand)
    if counted:
        _count(state, node, +1)


def hold_out(state: State, node: Node, delay: float = 0.0) -> None:
    """Set the timer until which the job waits for a card that it does not avoid."""
    at = state.now.mono + delay + HOLD_OUT
    state.effects.emit(SetTimer(HoldOutOver(node.name), at))


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
    for node in nodes:
        was = node.state
        leave(state, node)
        node.become(UNKNOWN)
        node.excluded = False
        state.jobs.failed.pop(node, None)
        state.effects.fact(JobRequeued(node.name, why))
        if isinstance(was, Settled):
            node.job = replace(node.job, demand=replace(node.demand_asked, avoid=avoid))
        else:
            redemand(state, node, replace(node.demand_asked, avoid=avoid))
        if isinstance(was, Settled):
            state.jobs.unsettled += 1
            _count(state, node, +1)
            for follower in node.links.followers:
                _block(state, follower)
    for node in nodes:
        if isinstance(node.state, Blocked):
            enqueue(state, node)


def leave_be(state: State, node: Node) -> None:
    """Take an excluded job, whose attempt has ended, out of the count: it is not run again."""
    node.become(SETTLED)
    state.jobs.unsettled -= 1
    _count(state, node, -1)


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
    found: dict[Node, None] = {}
    up = [node for node in asked if isinstance(node.state, Delayed) or is_bad(state, node)]
    down = list(up)
    while up:
        node = up.pop()
        found[node] = None
        if state.record(node).state == "skipped":
            more = [n for n in (*node.links.needs, *node.links.services) if is_bad(state, n)]
            up += [n for n in more if n not in found]
    down += found
    while down:
        node = down.pop()
        found[node] = None
        down += [
            n
            for n in node.links.dependants
            if n not in found and state.record(n).state == "skipped"
        ]
    there = (node for node in found if not state.record(node).vanished)
    return sorted(there, key=lambda node: node.order)


def is_bad(state: State, node: Node) -> bool:
    """Whether the job has ended without success."""
    return node.settled and state.record(node).state in _BAD


def has_bad_need(state: State, node: Node) -> Node | None:
    """Return a need or service of the job that has ended without success, None for none."""
    return next((n for n in (*node.links.needs, *node.links.services) if is_bad(state, n)), None)


def stop(
    state: State,
    live: ActiveAttempt,
    reason: StopReason,
    by: EndCause,
    now: bool = False,
    service: Node | None = None,
) -> None:
    """Ask the engine to end the attempt, unless it was asked as much before.

    `by`: who or what asked; `now`: KILL at once; `service`: it has ended, and the
    attempt needs it.
    """
    asked = live.stop(reason, now, service)
    if asked is None:
        return
    if live.service:
        service_down(state, live.service)
    if not live.inherited:
        state.effects.emit(StopAttempt(live.id, asked.reason, by, asked.now))


def closure(node: Node) -> list[Node]:
    """Return the services that must run beside this job: its own, and those that they need."""
    found: dict[Node, None] = dict.fromkeys(node.links.services)
    todo = list(found)
    while todo:
        for service in todo.pop().links.services:
            if service not in found:
                found[service] = None
                todo.append(service)
    return list(found)


def demands_beside(services: Iterable[Node]) -> set[Demand]:
    """Return the demands of all unsettled jobs that need one of these services."""
    return {demand for service in services for demand in service.serving.demands}


def _ended_badly(state: JobState) -> TypeGuard[Literal["failed", "cancelled", "skipped"]]:
    return state in _BAD


def _step(counted: Counter[Demand], demand: Demand, step: int) -> None:
    counted[demand] += step
    if not counted[demand]:
        del counted[demand]


def _same(record: JobRecord | None, fact: JobAdded) -> bool:
    return record is not None and not record.vanished and record.definition == fact
