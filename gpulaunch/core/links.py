"""The links between jobs: what each waits for, and who waits for it.

definitions, by name ─tie─▶ Links of a job ◀─▶ `dependants` and `followers` of the others
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gpulaunch.core import graph
from gpulaunch.core.state import State
from gpulaunch.core.waiting import NO_LINKS, Links, Node


def tie(state: State, nodes: Iterable[Node]) -> None:
    """Link each job with those that its definition names and the list has.

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
                graph.count(state, node, -1)


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
            graph.count(state, node, +1)
    if services:
        _know_companions(nodes)


def _know_companions(nodes: Iterable[Node]) -> None:
    """Note for each service that one of these jobs needs which others it then runs beside."""
    known: set[tuple[Node, ...]] = set()
    for node in nodes:
        if node.links.services and node.links.services not in known:
            known.add(node.links.services)
            beside = frozenset(graph.closure(node))
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
