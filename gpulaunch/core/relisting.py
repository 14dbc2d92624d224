"""What a change of the list makes of the graph of jobs while the run lives.

    new ─────────▶ a node, which waits
    changed ─────▶ waits, or has ended: as it is now;  runs: once its attempt has ended
    gone ────────▶ waits: cancelled;  runs, or has ended: stays, and is not tried again
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from gpulaunch.core import graph, links, submission
from gpulaunch.core.causes import Because
from gpulaunch.core.facts import JobVanished
from gpulaunch.core.model import Job
from gpulaunch.core.state import State
from gpulaunch.core.waiting import UNKNOWN, Launched, Node

_WITHDRAWN = Because("not_in_file")


def relist(state: State, jobs: Sequence[Job], gone: Collection[str] = ()) -> None:
    """Add the new ones of these jobs, redefine those that are otherwise now, withdraw `gone`."""
    nodes = state.jobs.nodes
    there = [job for job in jobs if job.name in nodes]
    known = [(nodes[job.name], _of_its_kind(nodes[job.name], job)) for job in there]
    again = _back_in_the_list(state, [node for node, _ in known])
    fresh = _new_nodes(state, [job for job in jobs if job.name not in nodes])
    changed = [(node, job) for node, job in known if differs(node, job)]
    for node, job in changed:
        if isinstance(node.state, Launched):
            _put_off(state, node, job)
    waiting = _redefine(state, [pair for pair in changed if not isinstance(pair[0].state, Launched)])
    links.tie(state, fresh)
    links.recount(state, fresh)
    for node in (*waiting, *fresh):
        if node.waits:
            graph.enqueue(state, node)
    graph.requeue(state, again, Because("taken_up"))
    for name in sorted(nodes.keys() & set(gone)):
        _withdraw(state, nodes[name])
    submission.retire_unneeded(state)


def take_up(state: State, node: Node) -> None:
    """Give a job whose attempt has ended the definition that it was to have from then on."""
    if node.renewed is not None:
        job, node.renewed = node.renewed, None
        _redefine(state, [(node, job)])


def differs(node: Node, job: Job) -> bool:
    """Tell whether the job's newest definition is another one than the node's."""
    newest = node.renewed or replace(node.job, demand=node.demand_asked)
    return newest != job


def _new_nodes(state: State, jobs: Sequence[Job]) -> list[Node]:
    """Return a node for each job, which waits, or goes on with what is recorded of it."""
    going = {live.id.job: live for live in state.attempts if live.node is None}
    fresh = []
    for job in jobs:
        node = state.jobs.add(job)
        fresh.append(node)
        submission.record(state, job)
        live = going.get(job.name)
        again = state.record(node).state != "succeeded"
        submission.go_on(state, node, live.id if live else None, again)
        if live is not None:
            live.node = node
    return fresh


def _of_its_kind(node: Node, job: Job) -> Job:
    """Return the definition without what a live run cannot take up: to be a service, or none."""
    same = (job.service is None) == (node.job.service is None)
    return job if same else replace(job, service=node.job.service)


def _back_in_the_list(state: State, nodes: Sequence[Node]) -> list[Node]:
    """Record which of these the list has again; return those of them that are to run again."""
    back = [node for node in nodes if node.withdrawn]
    for node in back:
        node.withdrawn = False
        submission.record(state, node.job)
    over = [node for node in back if node.settled and not node.excluded]
    return [node for node in over if state.record(node).state != "succeeded"]


def _put_off(state: State, node: Node, job: Job) -> None:
    """Have a job that runs defined anew once its attempt has ended.

    An attempt that waits in an engine's queue, or behind another one, is taken from there.
    """
    node.renewed = job
    submission.record(state, job)
    live = state.attempts.get(node.attempt) if node.attempt else None
    if live is None or not state.ledger.attempt(live.id).in_queue:
        return
    if live.behind is not None:
        state.attempts.take_back(live)
    else:
        graph.stop(state, live, "interrupted", Because("redefined"))


def _redefine(state: State, pairs: Sequence[tuple[Node, Job]]) -> list[Node]:
    """Give jobs that do not run their new definitions; return those that have to be queued."""
    nodes = [node for node, _ in pairs]
    waiting = [node for node in nodes if node.waits]
    links.uncount(state, nodes)
    for node in waiting:
        graph.leave(state, node)
        node.become(UNKNOWN)
    links.untie(nodes)
    for node, job in pairs:
        node.job, node.demand_asked = job, job.demand
        submission.record(state, job)
    links.tie(state, nodes)
    links.recount(state, nodes)
    return waiting


def _withdraw(state: State, node: Node) -> None:
    """Let a job that the list has no more come to its end, and not be tried again."""
    if node.withdrawn:
        return
    node.withdrawn = True
    live = state.attempts.get(node.attempt) if node.attempt else None
    if node.waits:
        graph.settle(state, node, "cancelled", _WITHDRAWN)
    elif live is not None and state.ledger.attempt(live.id).in_queue:
        graph.stop(state, live, "interrupted", _WITHDRAWN)
    state.jobs.failed.pop(node, None)
    state.effects.fact(JobVanished(node.name))
