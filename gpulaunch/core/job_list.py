"""What a run's list makes of the graph of jobs: at the start, after a resume, when it changes.

start    jobs, and what is recorded of them ─▶ nodes ─▶ links ─▶ who waits (`core.graph` queues)
new      ─▶ a node, which waits
changed  ─▶ waits, or has ended: as it is now;  runs: once its attempt has ended
gone     ─▶ waits: cancelled;  runs, or has ended: stays, and is not tried again
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core import graph, memory, on_cards
from gpulaunch.core.causes import Because
from gpulaunch.core.facts import JobAdded, JobRequeued, JobSettled, JobVanished
from gpulaunch.core.jobs import SETTLED, UNKNOWN, Launched, Node
from gpulaunch.core.ledger import JobRecord
from gpulaunch.core.model import SETTLED_STATES, AttemptId, DueTime, Job
from gpulaunch.core.state import State


def submit(
    state: State, jobs: Sequence[Job], again: frozenset[str], left: frozenset[str] = frozenset()
) -> list[AttemptId]:
    """Add the jobs, queue those that wait, and return the attempts without a recorded end."""
    ledger = state.ledger
    open_attempts = [record.id for record in ledger.open_attempts()]
    _record(state, jobs)
    for job in jobs:
        state.jobs.add(as_first_read(state, job))
    graph.tie(state, state.jobs)
    memory.submitted(state, state.jobs)
    for name in left & state.jobs.nodes.keys() - again:
        state.jobs.nodes[name].excluded = True
    running = {attempt.job: attempt for attempt in open_attempts}
    waiting: list[Node] = []
    for node in state.jobs:
        settle_what_ended(state, node, running.get(node.name))
        if go_on(state, node, running.get(node.name), node.name in again):
            waiting.append(node)
    graph.recount(state, state.jobs)
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


# ── A change while the run lives ──────────────────────────────────────────────────────────────────

_WITHDRAWN = Because("not_in_file")


class ListChange(Struct, frozen=True):
    """What a change of the list would do, by names of jobs.

    `new` join, `changed` wait and are otherwise from now on, `withdrawn` wait and are taken out.
    `running` and `over` are defined otherwise, and stay as they are, the first until their attempt
    ends; `gone` are running or over, and no longer in the list.
    """

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """True where every job stays as it is."""
        return self == ListChange()


def relist(state: State, jobs: Sequence[Job], gone: Collection[str] = ()) -> None:
    """Add the new ones of these jobs, redefine those that are otherwise now, withdraw `gone`."""
    nodes = state.jobs.nodes
    there = [job for job in jobs if job.name in nodes]
    known = [(nodes[job.name], _taken_up(state, nodes[job.name], job)) for job in there]
    joining = [job.name for job in jobs if job.name not in nodes or nodes[job.name].withdrawn]
    again = _back_in_the_list(state, [node for node, _ in known])
    fresh = _new_nodes(state, [job for job in jobs if job.name not in nodes])
    changed = {node: job for node, job in known if differs(node, job)}
    for node in (*again, *_who_missed(state, joining)):
        changed.setdefault(node, newest(node))  # to be linked anew
    for node, job in changed.items():
        if isinstance(node.state, Launched):
            _put_off(state, node, job)
    waiting = _redefine(state, [pair for pair in changed.items() if pair[0].renewed is None])
    graph.tie(state, fresh)
    graph.recount(state, fresh)
    memory.submitted(state, (*waiting, *fresh))
    for node in dict.fromkeys((*waiting, *fresh)):
        if node.waits:
            graph.enqueue(state, node)
    graph.requeue(state, again, Because("taken_up"))
    for name in sorted(nodes.keys() & set(gone)):
        _withdraw(state, nodes[name])
    retire_unneeded(state)


def compare(state: State, jobs: Sequence[Job], gone: Collection[str] = ()) -> ListChange:
    """Return what `relist` would do. Changes nothing."""
    found: dict[str, list[str]] = {name: [] for name in ListChange.__struct_fields__}
    for job in jobs:
        node = state.jobs.nodes.get(job.name)
        if node is None or node in _over(state, [node] if node.withdrawn else []):
            found["new"].append(job.name)
        elif differs(node, _taken_up(state, node, job)):
            found[_counts_as(state, node)].append(job.name)
    for name in gone:
        node = state.jobs.nodes.get(name)
        if node is not None and not node.withdrawn:
            kind = "withdrawn" if _counts_as(state, node) == "changed" else "gone"
            found[kind].append(name)
    return ListChange(**{kind: tuple(names) for kind, names in found.items()})


def _counts_as(state: State, node: Node) -> str:
    """Return as what a job counts that is defined otherwise: changed, running or over."""
    if node.settled:
        return "over"
    waits = node.waits or state.record(node).in_queue
    return "changed" if waits else "running"


def take_up(state: State, node: Node) -> None:
    """Give a job whose attempt has ended the definition that it was to have from then on."""
    job, node.renewed = node.renewed, None
    if job is not None and not node.withdrawn:
        _redefine(state, [(node, job)])


def differs(node: Node, job: Job) -> bool:
    """Tell whether the job's newest definition is another one than the node's."""
    return newest(node) != job


def newest(node: Node) -> Job:
    """Return the job's newest definition, which it has from its next attempt on."""
    return node.renewed or replace(node.job, demand=node.demand_asked)


def _new_nodes(state: State, jobs: Sequence[Job]) -> list[Node]:
    """Return a node for each job, which waits, or goes on with what is recorded of it."""
    going = {live.id.job: live for live in state.attempts if live.node is None}
    fresh = []
    for job in jobs:
        node = state.jobs.add(as_first_read(state, job))
        fresh.append(node)
        record(state, job)
        live = going.get(job.name)
        running = live.id if live else None
        settle_what_ended(state, node, running)
        go_on(state, node, running, again=state.record(node).state != "succeeded")
        if live is not None:
            state.attempts.join(live, node)
    return fresh


def _taken_up(state: State, node: Node, job: Job) -> Job:
    """Return the definition as a live run takes it up.

    Whether it is a service stays, and what its `not_before` meant when it was first read.
    """
    job = as_first_read(state, job)
    same = (job.service is None) == (node.job.service is None)
    return job if same else replace(job, service=node.job.service)


def _who_missed(state: State, names: Sequence[str]) -> list[Node]:
    """Return the jobs that wait for one of these, and could not be linked to it."""
    missed: dict[Node, None] = {}
    for name in names:
        missed |= state.jobs.missed.pop(name, {})
    for node in missed:
        if isinstance(node.state, Launched):
            node.renewed = newest(node)  # it is linked once its attempt has ended
    return [node for node in missed if node.renewed is None and not node.withdrawn]


def _back_in_the_list(state: State, nodes: Sequence[Node]) -> list[Node]:
    """Record which of these the list has again; return those of them that are to run again."""
    back = [node for node in nodes if node.withdrawn]
    for node in back:
        node.withdrawn = False
        record(state, node.job)
    return _over(state, back)


def _over(state: State, nodes: Sequence[Node]) -> list[Node]:
    """Return those of these jobs that have ended without success, and are not left out."""
    over = [node for node in nodes if node.settled and not node.excluded]
    return [node for node in over if state.record(node).state != "succeeded"]


def _put_off(state: State, node: Node, job: Job) -> None:
    """Have a job that runs defined anew once its attempt has ended.

    An attempt that waits in an engine's queue, or behind another one, is taken from there.
    """
    node.renewed = job
    record(state, job)
    live = state.attempts.get(node.attempt) if node.attempt else None
    if live is None or not state.ledger.attempt(live.id).in_queue:
        return
    if live.behind is not None:
        on_cards.take_back(state, live)
    else:
        graph.stop(state, live, "interrupted", Because("redefined"))


def _redefine(state: State, pairs: Sequence[tuple[Node, Job]]) -> list[Node]:
    """Give jobs that do not run their new definitions; return those that have to be queued."""
    nodes = [node for node, _ in pairs]
    waiting = [node for node in nodes if node.waits]
    graph.uncount(state, nodes)
    for node in waiting:
        graph.leave(state, node)
        node.become(UNKNOWN)
    graph.untie(nodes)
    for node, job in pairs:
        node.job, node.demand_asked = job, job.demand
        record(state, job)
    graph.tie(state, nodes)
    graph.recount(state, nodes)
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
