"""What a run's job file makes of the graph of jobs: at the start, after a resume, at a retry.

jobs, and what is recorded of them ─▶ nodes ─▶ links ─▶ who waits (queued by `core.graph`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gpulaunch.core import graph
from gpulaunch.core.causes import Because
from gpulaunch.core.facts import JobAdded, JobRequeued, JobVanished
from gpulaunch.core.mending import settlement
from gpulaunch.core.model import SETTLED_STATES, AttemptId, Job
from gpulaunch.core.state import State
from gpulaunch.core.waiting import SETTLED, Delayed, Launched, Links, Node, Settled


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
            graph.enqueue(state, node)
    return open_attempts


def retire_unneeded(state: State) -> None:
    """Stop or settle the services whose dependants an earlier supervisor settled."""
    for node in state.jobs:
        if node.job.service and node.links.dependants and not node.serving.open:
            graph.retire(state, node)


def redefine(state: State, jobs: Iterable[Job], gone: Iterable[str]) -> None:
    """Give settled and delayed jobs their new definition; mark those of `gone` as vanished."""
    for job in jobs:
        node = state.jobs.nodes.get(job.name)
        if node is None or not isinstance(node.state, Settled | Delayed):
            continue
        node.demand_asked = job.demand
        if isinstance(node.state, Delayed):
            graph.redemand(state, node, job.demand)
        links = node.job
        node.job = replace(job, needs=links.needs, after=links.after, service=links.service)
        _add(state, node.job)
    for name in sorted(state.jobs.nodes.keys() & gone):
        node = state.jobs.nodes[name]
        if graph.is_bad(state, node) and not state.record(node).vanished:
            state.jobs.failed.pop(node, None)
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
    known = state.ledger.jobs.get(job.name)
    if known is None or known.vanished or known.definition != fact:
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
    """Tell whether the file has the need, or it has succeeded before it vanished."""
    record = state.ledger.jobs.get(need)
    return need in state.jobs.nodes or (record is not None and record.state == "succeeded")


def _resume(state: State, node: Node, running: AttemptId | None, again: frozenset[str]) -> bool:
    """Set the node's state from what is recorded of it; return whether the job waits."""
    record = state.record(node)
    node.fresh_from = len(record.attempts) + 1
    if record.state == "running" and not running and (fact := settlement(record)):
        state.effects.fact(fact)
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


def _know_services(state: State) -> None:
    """Find, for each service, the demands and the other services that run beside it."""
    known: dict[tuple[Node, ...], frozenset[Node]] = {}
    for node in state.jobs:
        if node.links.services and node.links.services not in known:
            known[node.links.services] = frozenset(graph.closure(node))
            for service in known[node.links.services]:
                service.serving.companions |= known[node.links.services] - {service}
        if not node.settled:
            graph.count(state, node, +1)
