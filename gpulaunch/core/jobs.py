"""The graph of jobs: when each is ready (needs, after, services, delays), and what its end causes.

This module queues ready jobs and settles those that cannot run. It starts none, and knows nothing
of cards.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeGuard

from gpulaunch.core.causes import Because
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import HoldOutOver, RetryDue, SetTimer
from gpulaunch.core.facts import JobAdded, JobRequeued, JobSettled, JobVanished
from gpulaunch.core.ledger import JobRecord
from gpulaunch.core.model import SETTLED, AttemptId, Demand, Job, JobState
from gpulaunch.core.reasons import JobReason, NeededBy, NeedUnmet
from gpulaunch.core.waiting import UNCOUNTED, WAITING, Node, WaitingJobs

HOLD_OUT = 120.0
"""Seconds for which a job waits for another card while one that it avoids is free."""
_BAD: frozenset[JobState] = frozenset({"failed", "cancelled", "skipped"})


class Jobs:
    """The graph of a run's jobs. `retire` is called with a running service that no job needs."""

    def __init__(self, effects: Effects, retire: Callable[[Node], None]) -> None:
        self._effects = effects
        self._retire_running = retire
        self.nodes: dict[str, Node] = {}
        self.waiting = WaitingJobs()
        self.unsettled = 0
        self.delayed = 0
        self.failed: dict[Node, None] = {}
        self.demands: Counter[Demand] = Counter()
        self.on_blocked: Callable[[Node], None] = lambda node: None

    def record(self, node: Node) -> JobRecord:
        return self._effects.ledger.jobs[node.name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    # ── The job file ────────────────────────────────────────────────────────────────────────────

    def submit(
        self, jobs: Sequence[Job], again: frozenset[str], left: frozenset[str] = frozenset()
    ) -> list[AttemptId]:
        """Add the jobs, queue those that wait, and return the attempts without a recorded end."""
        ledger = self._effects.ledger
        open_attempts = [record.id for record in ledger.open_attempts()]
        self._record(jobs)
        self.nodes = {
            job.name: Node(job, order, demand_asked=job.demand) for order, job in enumerate(jobs)
        }
        self._link()
        for name in left & self.nodes.keys() - again:
            self.nodes[name].excluded = True
        running = {attempt.job for attempt in open_attempts}
        waiting = [node for node in self if self._resume(node, node.name in running, again)]
        self._know_services()
        for node in waiting:
            if node.state in WAITING:
                self.enqueue(node)
        return open_attempts

    def retire_unneeded(self) -> None:
        """Stop or settle the services whose dependants an earlier supervisor settled."""
        for node in self:
            if node.job.service and node.dependants and not node.open:
                self._retire(node)

    def redefine(self, jobs: Iterable[Job], gone: frozenset[str]) -> None:
        """Give settled and delayed jobs their new definition; mark those of `gone` as vanished."""
        for job in jobs:
            node = self.nodes.get(job.name)
            if node is None or node.state not in ("settled", "delayed"):
                continue
            node.demand_asked = job.demand
            if node.state == "delayed":
                self.redemand(node, job.demand)
            links = node.job
            node.job = replace(job, needs=links.needs, after=links.after, service=links.service)
            self._add(node.job)
        for name in sorted(gone & self.nodes.keys()):
            if self.is_bad(self.nodes[name]) and not self.record(self.nodes[name]).vanished:
                self.failed.pop(self.nodes[name], None)
                self._effects.fact(JobVanished(name))

    def _record(self, jobs: Sequence[Job]) -> None:
        ledger = self._effects.ledger
        for job in jobs:
            self._add(job)
        names = {job.name for job in jobs}
        for record in list(ledger.jobs.values()):
            if record.name not in names and not record.vanished:
                self._effects.fact(JobVanished(record.name))

    def _add(self, job: Job) -> None:
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
        if not _same(self._effects.ledger.jobs.get(job.name), fact):
            self._effects.fact(fact)

    def _link(self) -> None:
        dependants: defaultdict[Node, list[Node]] = defaultdict(list)
        followers: defaultdict[Node, list[Node]] = defaultdict(list)
        for node in self:
            needs = [self._need(node, name) for name in dict.fromkeys(node.job.needs)]
            known = [need for need in needs if need is not None]
            node.needs = tuple(need for need in known if need.job.service is None)
            node.services = tuple(need for need in known if need.job.service is not None)
            after = dict.fromkeys(node.job.after)
            node.after = tuple(self.nodes[name] for name in after if name in self.nodes)
            for need in known:
                dependants[need].append(node)
            for other in node.after:
                followers[other].append(node)
        for node, others in dependants.items():
            node.dependants = tuple(others)
        for node, others in followers.items():
            node.followers = tuple(others)

    def _need(self, node: Node, name: str) -> Node | None:
        need = self.nodes.get(name)
        if need is None:
            record = self._effects.ledger.jobs.get(name)
            if record is None or record.state != "succeeded":
                node.unknown = name
        return need

    def _resume(self, node: Node, running: bool, again: frozenset[str]) -> bool:
        """Set the node's state from what is recorded of it; return whether the job waits."""
        record = self.record(node)
        node.fresh_from = len(record.attempts) + 1
        if record.state == "running" and not running:
            self._settle_recorded(node, record)
        if record.state in SETTLED and node.name not in again:
            node.state = "settled"
            return False
        if node.excluded and not running:
            node.state = "settled"
            if record.state == "running":
                self._effects.fact(JobRequeued(node.name, Because("cut_short")))
            return False
        self.unsettled += 1
        if running:
            node.state = "running"
            return False
        if record.state != "waiting" or record.charged or record.not_before is not None:
            self._effects.fact(JobRequeued(node.name, Because("taken_up")))
        return True

    def _settle_recorded(self, node: Node, record: JobRecord) -> None:
        # The supervisor died between recording an attempt's end and settling its job: a job that
        # succeeded or was cancelled is not run again.
        last = record.attempts[-1]
        if last.state == "succeeded":
            self._effects.fact(JobSettled(node.name, "succeeded"))
        elif last.state == "cancelled":
            self._effects.fact(JobSettled(node.name, "cancelled", Because("cancelled")))

    def _know_services(self) -> None:
        """Find, for each service, the demands and the other services that run beside it."""
        known: dict[tuple[Node, ...], frozenset[Node]] = {}
        for node in self:
            if node.services and node.services not in known:
                known[node.services] = frozenset(closure(node))
                for service in known[node.services]:
                    service.companions |= known[node.services] - {service}
            if node.state != "settled":
                self._count(node, +1)

    def _count(self, node: Node, step: int) -> None:
        for service in node.services:
            service.open += step
        if not node.job.service:
            _step(self.demands, node.job.demand, step)
            for service in closure(node):
                _step(service.demands, node.job.demand, step)

    # ── Waiting jobs ────────────────────────────────────────────────────────────────────────────

    def enqueue(self, node: Node) -> None:
        """Set what a waiting job waits for: others, a delay, services, cards; or settle it."""
        bad = NeedUnmet(node.unknown, "unknown") if node.unknown else None
        for need in (*node.needs, *node.services):
            state = self.record(need).state
            if _is_bad(state):
                bad = bad or NeedUnmet(need.name, state)
            elif need.excluded and state != "succeeded":
                bad = bad or NeedUnmet(need.name, "excluded")
            elif state == "succeeded" and need.job.service:
                self.requeue([need], NeededBy(node.name))
        if bad:
            self.settle(node, "skipped", bad)
            return
        if node.job.service and node.dependants and not node.open:
            self._retire(node)
            return
        node.blockers = sum(self.record(need).state != "succeeded" for need in node.needs)
        node.blockers += sum(other.state != "settled" for other in node.after)
        node.state = "blocked"
        if not node.blockers:
            self._advance(node)
        else:
            self.on_blocked(node)

    def _advance(self, node: Node) -> None:
        """Move on a job whose needs are met: to delayed, idle, asking for services, or ready."""
        not_before = self.record(node).not_before
        if not_before is not None and not_before > self._effects.now.mono:
            node.state = "delayed"
            self.delayed += 1
            self._effects.emit(SetTimer(RetryDue(node.name), not_before))
            return
        if node.job.service and node.dependants and not node.waiters:
            node.state = "idle"
            return
        missing = [service for service in node.services if not service.ready]
        if missing:
            node.state = "asking"
            for service in missing:
                service.waiters.add(node)
                self._ask(service, node)
            return
        node.state = "ready"
        self.waiting.push(node)

    def _ask(self, service: Node, asker: Node) -> None:
        # A service waits with the priority of the most urgent job that asks for it.
        better = asker.key < service.key or len(service.waiters) == 1
        if better:
            service.borrowed_key = asker.key
        if service.state == "idle":
            self._advance(service)
        elif service.state == "ready" and better:
            self.waiting.push(service)

    def leave(self, node: Node) -> None:
        """Undo what the job's present way of waiting counts, before its state changes."""
        if node.state == "delayed":
            self.delayed -= 1
        if node.state == "asking":
            for service in node.services:
                service.waiters.discard(node)
                if not service.waiters and service.state in ("ready", "asking"):
                    self.leave(service)
                    service.state = "idle"
        node.skipped, node.blocked_on = 0, None

    def retry_due(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None and node.state == "delayed":
            self.leave(node)
            self._advance(node)

    def service_ready(self, service: Node) -> None:
        service.ready = True
        for node in sorted(service.waiters, key=lambda asker: asker.order):
            self.leave(node)
            self._advance(node)
        service.waiters.clear()

    def service_down(self, service: Node) -> None:
        """Mark a service that ends, or is about to, as not ready: its dependants wait again."""
        if not service.ready:
            return
        service.ready = False
        for node in service.dependants:
            if node.state == "ready":
                self.leave(node)
                self._advance(node)

    # ── Ends and new beginnings ─────────────────────────────────────────────────────────────────

    def settle(self, node: Node, state: JobState, reason: JobReason | None = None) -> None:
        """Settle the job, and skip every waiting job that needs it unless it succeeded."""
        first = node
        todo: deque[tuple[Node, JobState, JobReason | None]] = deque([(node, state, reason)])
        unneeded: dict[Node, None] = {}
        while todo:
            node, state, reason = todo.popleft()
            if node.state == "settled":
                continue
            self.leave(node)
            node.state = "settled"
            self.unsettled -= 1
            self._effects.fact(JobSettled(node.name, state, reason))
            if state == "failed":
                self.failed[node] = None
            self._count(node, -1)
            unneeded.update({service: None for service in node.services if not service.open})
            for follower in node.followers:
                self._unblock(follower)
            for dependant in node.dependants:
                if _is_bad(state):
                    if dependant.state in WAITING:
                        todo.append((dependant, "skipped", NeedUnmet(node.name, state)))
                elif state == "succeeded" and not node.job.service:
                    self._unblock(dependant)
        for service in unneeded:
            if not service.open:
                self._retire(service)
        self._wake(first)

    def _wake(self, service: Node) -> None:
        """Requeue a service that has just stopped if a waiting job needs it."""
        if not service.job.service or self.record(service).state != "succeeded":
            return
        if any(node.state in WAITING for node in service.dependants):
            self.requeue([service], Because("needed_again"))

    def _unblock(self, node: Node) -> None:
        if node.state in WAITING:
            node.blockers -= 1
            if node.state == "blocked" and not node.blockers:
                self._advance(node)
            elif node.state == "blocked":
                self.on_blocked(node)

    def _retire(self, service: Node) -> None:
        if service.state == "running":
            self._retire_running(service)
        elif service.state in WAITING:
            states = {self.record(node).state for node in service.dependants}
            if "succeeded" in states or self.record(service).attempts:
                self.settle(service, "succeeded")
            else:
                self.settle(service, "skipped", Because("never_needed"))

    def redemand(self, node: Node, demand: Demand) -> None:
        """Set the demand of the job's next attempt. A ready job has to be queued again after it."""
        counted = node.state != "settled"
        if counted:
            self._count(node, -1)
        node.job = replace(node.job, demand=demand)
        if counted:
            self._count(node, +1)

    def hold_out(self, node: Node, delay: float = 0.0) -> None:
        """Set the timer until which the job waits for a card that it does not avoid."""
        at = self._effects.now.mono + delay + HOLD_OUT
        self._effects.emit(SetTimer(HoldOutOver(node.name), at))

    def forget_avoided(self, node: Node) -> None:
        """Let a ready job use the cards that it was to avoid, as it can have no other."""
        self.leave(node)
        self.redemand(node, replace(node.job.demand, avoid=frozenset()))
        self._advance(node)

    def requeue(
        self, nodes: Iterable[Node], why: JobReason, avoid: frozenset[str] = frozenset()
    ) -> None:
        """Let settled and delayed jobs wait again, with a fresh budget of retries.

        `avoid`: UUIDs of cards that they are not to run on, where there are others.
        """
        nodes = [node for node in nodes if node.state in ("settled", "delayed")]
        for node in nodes:
            was = node.state
            self.leave(node)
            node.state, node.excluded, node.blockers = "blocked", False, UNCOUNTED
            self.failed.pop(node, None)
            self._effects.fact(JobRequeued(node.name, why))
            if was == "settled":
                node.job = replace(node.job, demand=replace(node.demand_asked, avoid=avoid))
            else:
                self.redemand(node, replace(node.demand_asked, avoid=avoid))
            if was == "settled":
                self.unsettled += 1
                self._count(node, +1)
                for follower in node.followers:
                    self._block(follower)
        for node in nodes:
            if node.state == "blocked":
                self.enqueue(node)

    def leave_be(self, node: Node) -> None:
        """Take an excluded job, whose attempt has ended, out of the count: it is not run again."""
        node.state = "settled"
        self.unsettled -= 1
        self._count(node, -1)

    def _block(self, node: Node) -> None:
        if node.state in WAITING:
            self.leave(node)
            node.blockers += 1
            node.state = "blocked"

    def to_retry(self, names: tuple[str, ...] | None) -> list[Node]:
        """Return the jobs that a retry of `names` requeues, in the order of the file.

        These are the jobs themselves (None: all that failed), what keeps them from running, and
        what was skipped because of any of these.
        """
        if names is None:
            asked = [node for node in self if self.record(node).state == "failed"]
        else:
            asked = [self.nodes[name] for name in names if name in self.nodes]
        found: dict[Node, None] = {}
        up = [node for node in asked if node.state == "delayed" or self.is_bad(node)]
        down = list(up)
        while up:
            node = up.pop()
            found[node] = None
            if self.record(node).state == "skipped":
                more = [n for n in (*node.needs, *node.services) if self.is_bad(n)]
                up += [n for n in more if n not in found]
        down += found
        while down:
            node = down.pop()
            found[node] = None
            down += [
                n for n in node.dependants if n not in found and self.record(n).state == "skipped"
            ]
        there = (node for node in found if not self.record(node).vanished)
        return sorted(there, key=lambda node: node.order)

    def is_bad(self, node: Node) -> bool:
        """Whether the job has ended without success."""
        return node.state == "settled" and self.record(node).state in _BAD

    def has_bad_need(self, node: Node) -> Node | None:
        """Return a need or service of the job that has ended without success, None for none."""
        return next((n for n in (*node.needs, *node.services) if self.is_bad(n)), None)


def closure(node: Node) -> list[Node]:
    """Return the services that must run beside this job: its own, and those that they need."""
    found: dict[Node, None] = dict.fromkeys(node.services)
    todo = list(found)
    while todo:
        for service in todo.pop().services:
            if service not in found:
                found[service] = None
                todo.append(service)
    return list(found)


def demands_beside(services: Iterable[Node]) -> set[Demand]:
    """Return the demands of all unsettled jobs that need one of these services."""
    return {demand for service in services for demand in service.demands}


def _is_bad(state: JobState) -> TypeGuard[Literal["failed", "cancelled", "skipped"]]:
    return state in _BAD


def _step(counted: Counter[Demand], demand: Demand, step: int) -> None:
    counted[demand] += step
    if not counted[demand]:
        del counted[demand]


def _same(record: JobRecord | None, fact: JobAdded) -> bool:
    return record is not None and not record.vanished and record.added == fact
