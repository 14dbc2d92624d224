"""What a run's list makes of the graph of jobs: at the start, and after a resume.

jobs, and what is recorded of them ─▶ nodes ─▶ links ─▶ who waits (queued by `core.graph`)
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gpulaunch.core import graph, links, sharing
from gpulaunch.core.causes import Because
from gpulaunch.core.facts import JobAdded, JobRequeued, JobSettled, JobVanished
from gpulaunch.core.model import SETTLED_STATES, AttemptId, DueTime, Job
from gpulaunch.core.records import JobRecord
from gpulaunch.core.state import State
from gpulaunch.core.waiting import SETTLED, Launched, Node


def submit(
    state: State, jobs: Sequence[Job], again: frozenset[str], left: frozenset[str] = frozenset()
) -> list[AttemptId]:
    """Add the jobs, queue those that wait, and return the attempts without a recorded end."""
    ledger = state.ledger
    open_attempts = [record.id for record in ledger.open_attempts()]
    _record(state, jobs)
    for job in jobs:
        state.jobs.add(as_first_read(state, job))
    links.tie(state, state.jobs)
    sharing.submitted(state, state.jobs)
    for name in left & state.jobs.nodes.keys() - again:
        state.jobs.nodes[name].excluded = True
    running = {attempt.job: attempt for attempt in open_attempts}
    waiting: list[Node] = []
    for node in state.jobs:
        settle_what_ended(state, node, running.get(node.name))
        if go_on(state, node, running.get(node.name), node.name in again):
            waiting.append(node)
    links.recount(state, state.jobs)
    for node in waiting:
        if node.waits:
            graph.enqueue(state, node)
    return open_attempts


def retire_unneeded(state: State) -> None:
    """Stop or settle the services whose dependants an earlier supervisor settled."""
    for node in state.jobs.services:
        if node.dependants and not node.serving.open:
            graph.retire(state, node)


def _record(state: State, jobs: Sequence[Job]) -> None:
    for job in jobs:
        record(state, job)
    names = {job.name for job in jobs}
    for known in list(state.ledger.jobs.values()):
        if known.name not in names and not known.vanished:
            state.effects.fact(JobVanished(known.name))


def as_first_read(state: State, job: Job) -> Job:
    """Return the job with the moment that its `not_before` meant when the run first read it."""
    due = _due(state.ledger.jobs.get(job.name), job.not_before)
    return job if due == job.not_before else replace(job, not_before=due)


def _due(known: JobRecord | None, due: DueTime | None) -> DueTime | None:
    """Return the moment that the job file's words meant when they were read first."""
    before = None if known is None else known.definition.due
    same = before is not None and due is not None and before.words == due.words
    return before if same else due


def record(state: State, job: Job) -> None:
    """Record the job's definition where it is new."""
    known = state.ledger.jobs.get(job.name)
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
        job.given,
        _due(known, job.not_before),
        job.learned if job.demand.kind is not None else 0,
    )
    if known is None or known.vanished or known.definition != fact:
        state.effects.fact(fact)


def settle_what_ended(state: State, node: Node, running: AttemptId | None) -> None:
    """Settle a job that succeeded or was cancelled, if its attempt's end is the last on record.

    The supervisor died before it recorded the job's own end, or that line is damaged.
    """
    known = state.record(node)
    if known.state != "running" or running:
        return
    match known.attempts[-1].state:
        case "succeeded":
            state.effects.fact(JobSettled(node.name, "succeeded"))
        case "cancelled":
            state.effects.fact(JobSettled(node.name, "cancelled", Because("cancelled")))


def go_on(state: State, node: Node, running: AttemptId | None, again: bool) -> bool:
    """Set the node's state from what is recorded of it; return whether the job waits.

    `running`: its attempt without a recorded end; `again`: it waits though it has ended.
    """
    known = state.record(node)
    node.fresh_from = len(known.attempts) + 1
    if known.state in SETTLED_STATES and not again:
        node.become(SETTLED)
        return False
    if node.excluded and not running:
        node.become(SETTLED)
        if known.state == "running":
            state.effects.fact(JobRequeued(node.name, Because("cut_short")))
        return False
    state.jobs.unsettled += 1
    if running:
        node.become(Launched(running))
        return False
    if known.state != "waiting" or known.charged or known.not_before is not None:
        state.effects.fact(JobRequeued(node.name, Because("taken_up")))
    return True
