"""Starts ready jobs on cards: one pass over them after every event.

    reserve ─▶ yield ─▶ each ready job in order ─▶ let go ─▶ whom to reserve for
                          start | ask for cards | blocked

INVARIANT: after a pass no leased card is idle unless it is claimed: by a job that waits for the
answer to an Acquire or for the end of a Drain, or by the one job that may gather cards.

A worker that an attempt has left goes to the next job of its key before its cards go to another
one of the same priority; what overtakes so is counted as everywhere, so that a job that waits long
enough has the cards reserved. A worker that no job takes in a pass is ended, unless jobs for it are
still to come and no other job waits for cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from gpulaunch.core.active import ActiveAttempt, ActiveAttempts, cpus_of
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.effects import Effects
from gpulaunch.core.gang import GangReservation
from gpulaunch.core.idle_workers import IdleWorker, IdleWorkers
from gpulaunch.core.jobs import Jobs, closure, demands_beside
from gpulaunch.core.model import AttemptId, Demand
from gpulaunch.core.placement import best, fit_together, impossible, suits_now, suits_soon
from gpulaunch.core.reasons import RunReason
from gpulaunch.core.waiting import WAITING, BlockedOn, Node, is_extra

FOCUSED = ("ready", "asking")


class Admission:
    """Starts ready jobs, asks for cards and gives them back.

    `limits`: tokens by name; `cpus`: what jobs without cards may take together; `closed` returns
    why nothing may start now, None where jobs may.

    `blocked`: ready jobs that the last pass could not start; `reserving`: the job for which cards
    are kept as they come free; `focus`: the only job that may start now, with its services.
    """

    def __init__(
        self,
        effects: Effects,
        cards: Cards,
        jobs: Jobs,
        attempts: ActiveAttempts,
        idle_workers: IdleWorkers,
        limits: Mapping[str, int],
        cpus: int,
        closed: Callable[[], RunReason | None],
    ) -> None:
        self._effects = effects
        self._cards = cards
        self._jobs = jobs
        self._attempts = attempts
        self._idle_workers = idle_workers
        self._limits = limits
        self._cpus = cpus
        self._closed = closed
        self._patient_for = 2 * max(1, len(cards.all))
        self._kept_tokens: Counter[str] = Counter()
        self._cpus_kept = False
        self._settled = False
        self._reserved = False
        self.blocked: list[Node] = []
        self.reserving: Node | None = None
        self.focus: Node | None = None
        self.gang = GangReservation(effects)

    def admit(self) -> None:
        """Start all jobs that can start now, in passes until one changes nothing.

        This ends, because each pass but the last starts a job or gives cards back.
        """
        if self._closed():
            self._close()
            return
        while self._pass() and not self._closed():
            pass
        if self._closed():
            self._close()

    def _close(self) -> None:
        self.blocked, self.reserving = [], None
        self._forget_claims()
        self._let_go()
        self.gang.give_up()

    def _pass(self) -> bool:
        """Make one pass over the ready jobs; return whether another may start more."""
        self.blocked = []
        self._kept_tokens.clear()
        self._cpus_kept = self._settled = self._reserved = False
        self._forget_claims()
        if self.focus is not None and self.focus.state not in FOCUSED:
            self.focus = None
        self._reserve()
        self._yield()
        for node in self._focused() if self.focus else self._jobs.waiting.heads():
            self._consider(node)
            if self._closed():
                break
        self._jobs.waiting.unpark()
        again = self._let_go() and bool(self.blocked)
        again = self._choose_reserving() or again or self._settled
        for node in self.blocked:
            if node.blocked_on in ("cards", "room"):
                self._look_again(node)
        if self.focus is not None and self.focus.state not in FOCUSED:
            self.focus, again = None, True
        return again

    def _focused(self) -> list[Node]:
        """The ready jobs among the focused job and its services: only these may start now."""
        assert self.focus is not None
        return [node for node in (*closure(self.focus), self.focus) if node.state == "ready"]

    def _park(self, node: Node) -> None:
        if self.focus is None:
            self._jobs.waiting.park(node)

    # ── One job ─────────────────────────────────────────────────────────────────────────────────

    def _consider(self, node: Node) -> None:
        demand = node.job.demand
        never = impossible(demand, self._cards.all, self._cards.limit, self._limits)
        if never and demand.avoid:
            self._jobs.forget_avoided(node)
            self._settled = True
            return
        if never:
            self._jobs.settle(node, "failed", never)
            self._settled = True
            return
        if node is self.reserving and self._reserved:
            node.blocked_on = "cards"
            self.blocked.append(node)
            return
        node.blocked_on = self.obstacle(node)
        resident = None if node.blocked_on else self._idle_workers.fit(demand)
        if resident is not None:
            self._start_in(resident, node)
        elif not node.blocked_on and not demand.gpus:
            self._start(node, [])
        elif not node.blocked_on:
            self._place(node, demand)
        if node.state == "ready" and node.blocked_on:
            self.blocked.append(node)
            if node.blocked_on == "room":
                self._park(node)
            if node.skipped >= self._patient_for and self._fits_beside_services(demand):
                self._kept_tokens.update(demand.uses)
                self._cpus_kept = self._cpus_kept or node.blocked_on == "cpus"

    def obstacle(self, node: Node) -> BlockedOn | None:
        """What, other than cards, keeps a ready job from starting."""
        demand = node.job.demand
        for token, count in Counter(demand.uses).items():
            taken = self._attempts.tokens[token] + self._kept_tokens[token]
            if taken + count > self._limits.get(token, 1):
                return "tokens"
        if node.job.service:
            return None if self._room_for(node) else "room"
        cpus, taken = cpus_of(demand), self._attempts.cpus
        # A job that wants more than is allowed runs, alone.
        if cpus and (self._cpus_kept or (taken and taken + cpus > self._cpus)):
            return "cpus"
        return None

    def _place(self, node: Node, demand: Demand) -> None:
        """Start the job, or claim cards that may soon all be leased for it, or leave it blocked."""
        here = best((c for c in self._cards if suits_now(c, demand)), demand.gpus)
        if len(here) == demand.gpus:
            self._start(node, here)
            return
        there = [card for card in self._attainable(demand) if not self._is_spoken_for(card, node)]
        missing = demand.gpus - len(here)
        if len(there) < missing:
            node.blocked_on = "cards"
            return
        self._claim(here + there[:missing], demand)
        self._park(node)

    def _attainable(self, demand: Demand) -> list[Card]:
        """Cards that may soon suit the demand, the surest first, within the run's limit.

        Leased cards that still give memory back come last: another may be had sooner.
        """
        now = self._effects.now.mono
        room = max(0, self._cards.limit - self._cards.held())
        suited = [card for card in self._cards if suits_soon(card, demand, now)]
        asked = [card for card in suited if card.state == "asking"]
        draining = [card for card in suited if card.state in ("draining", "leased")]
        others = [card for card in suited if not card.held]
        others.sort(key=lambda c: (_doubtful(c, demand), c.gpu.memory, c.gpu.index))
        return asked + others[:room] + draining

    def _claim(self, cards: list[Card], demand: Demand) -> None:
        """Reserve these cards for a job in this pass, and ask for those that are not leased.

        Doubtful ones are asked for first: if they are refused, the others would be given back.
        """
        wanted = [card for card in cards if card.state in ("free", "occupied")]
        doubtful = [card for card in wanted if _doubtful(card, demand)]
        for card in cards:
            card.reservations.append(demand)
        for card in doubtful or wanted:
            self._cards.acquire(card)

    def _is_spoken_for(self, card: Card, node: Node) -> bool:
        """Whether an idle worker on the card goes on with another job of this priority or more."""
        return any(
            card in resident.cards and self._has_next(resident, node)
            for resident in self._idle_workers
        )

    def _has_next(self, resident: IdleWorker, node: Node) -> bool:
        if self.focus is not None:
            return False
        following = self._jobs.waiting.first_like(resident.demand)
        return any(
            other is not node
            and other.job.priority >= node.job.priority
            and resident.suits(other.job.demand)
            and not self.obstacle(other)
            for other in following
        )

    def _start_in(self, resident: IdleWorker, node: Node) -> None:
        """Start the job in the idle worker's process, on the worker's cards."""
        self._idle_workers.take(resident)
        self._start(node, list(resident.cards), resident)

    def _start(self, node: Node, cards: list[Card], resident: IdleWorker | None = None) -> None:
        for other in self.blocked:
            other.skipped += _took_what_it_lacks(node.job.demand, other)
        self._jobs.leave(node)
        ordered = sorted(cards, key=lambda c: (c.gpu.index, c.gpu.uuid))
        worker = None if resident is None else resident.id
        live = self._launch(node, tuple(ordered), worker)
        for card in cards:
            self._cards.occupy(card, live.id, live.demand)

    def _launch(
        self, node: Node, cards: tuple[Card, ...], worker: AttemptId | None
    ) -> ActiveAttempt:
        return self._attempts.launch(node, cards, worker)

    # ── Cards back ──────────────────────────────────────────────────────────────────────────────

    def _forget_claims(self) -> None:
        for card in self._cards:
            card.reservations.clear()
            card.reserved = card.withdrawn or (
                card.requested and bool(card.attempts or card.idle_workers)
            )

    def _yield(self) -> None:
        for card in self._cards:
            if card.idle and card.requested and not card.reservations:
                self._cards.release(card)

    def _look_again(self, node: Node) -> None:
        """Set timers to look again at cards with strangers' processes: nothing tells their end."""
        for card in self._cards:
            self._cards.look_later(card, node.job.demand)
            due = card.state == "occupied" and card.not_before <= self._effects.now.mono
            if node.blocked_on != "room" or not due or card.drained:
                continue
            if self._cards.held() < self._cards.limit:
                self._claim([card], node.job.demand)

    def _let_go(self) -> bool:
        idle = [card for card in self._cards if card.idle and not card.reservations]
        for card in idle:
            self._cards.release(card)
        return self._idle_workers.end_idle(self._are_to_come) or bool(idle)

    def _are_to_come(self, demand: Demand) -> bool:
        """Whether jobs for this demand's worker are still to come, while no job waits for cards."""
        if self._closed() or self.focus is not None or self.reserving is not None:
            return False
        if any(node.blocked_on in ("cards", "room") for node in self.blocked):
            return False
        alike = [known for known in self._jobs.demands if known.same_seat(demand)]
        running = sum(live.demand.same_seat(demand) for live in self._attempts)
        return sum(self._jobs.demands[known] for known in alike) > running

    # ── A job overtaken too often ───────────────────────────────────────────────────────────────

    def _reserve(self) -> None:
        """Keep cards for the job `reserving` as they come free; start it once it has enough."""
        node = self.reserving
        if node is None:
            return
        demand = node.job.demand
        if node.state != "ready" or not self._fits_beside_services(demand):
            self.reserving = None
            return
        if self.obstacle(node):
            return
        resident = self._idle_workers.fit(demand)
        here = best((c for c in self._cards if suits_now(c, demand)), demand.gpus)
        if resident is not None:
            self._start_in(resident, node)
            self.gang.succeed()
        elif len(here) == demand.gpus:
            self._start(node, here)
            self.gang.succeed()
        elif demand.gpus == 1 or self.gang.granted:
            chosen = (here + self._attainable(demand))[: demand.gpus]
            self._claim(chosen, demand)
            self._close_shared(demand.gpus - len(chosen), demand)
            self._reserved = True
            if demand.gpus > 1:
                self.gang.keep(here)

    def _close_shared(self, count: int, demand: Demand) -> None:
        """Let nothing new start on `count` shared cards, the emptiest first: they then empty."""
        shared = [
            c for c in self._cards if c.state == "leased" and c.attempts and not c.reservations
        ]
        shared = [c for c in shared if not c.drained and c.gpu.memory >= demand.gpu_memory]
        shared = [c for c in shared if c.gpu.uuid not in demand.avoid]
        for card in sorted(shared, key=lambda c: (len(c.attempts), c.gpu.index))[:count]:
            card.reserved = True

    def _choose_reserving(self) -> bool:
        """Choose the job to keep cards for; return whether another pass may start more."""
        node = self.reserving
        done = node is not None and node.state != "ready"
        if node is None or done or (node.job.demand.gpus > 1 and not self._in_reach()):
            node = next((n for n in self.blocked if self._should_reserve(n)), None)
        chosen, self.reserving = node is not self.reserving, node
        if node is None or node.job.demand.gpus == 1:
            self.gang.give_up()
            return done
        self.gang.ask()
        return done or (chosen and self.gang.granted)

    def _should_reserve(self, node: Node) -> bool:
        demand = node.job.demand
        if node.blocked_on != "cards" or not self._fits_beside_services(demand):
            return False
        if demand.gpus > 1 and (self.gang.pausing or not self._in_reach()):
            return False
        if node.skipped >= self._patient_for:
            return True
        # Another launcher has some of the job's cards, while others are free: only who has the
        # right to reserve a gang may keep the free ones until the rest comes.
        usable = [card for card in self._cards if not card.drained and not card.reservations]
        elsewhere = any(card.state == "elsewhere" for card in usable)
        spare = any(card.state == "free" for card in usable)
        return demand.gpus > 1 and elsewhere and spare

    def _in_reach(self) -> bool:
        """Whether the run has a card or can have one to begin a gang with.

        If not, the right to reserve a gang is of more use to another launcher.
        """
        return any((card.held or card.state == "free") and not card.drained for card in self._cards)

    def gang_timeout(self) -> None:
        """Release an overdue gang reservation, unless a card of this run is about to be free."""
        if not self.gang.overdue:
            return
        if any(self._comes_free(card) for card in self._cards):
            self.gang.wait_on()
        else:
            self.reserving = None
            self.gang.pause()

    def hold_out_over(self, name: str) -> None:
        """Let the job have a card that it avoids, as no other card has come free for long."""
        node = self._jobs.nodes.get(name)
        avoid = node.job.demand.avoid if node is not None else frozenset()
        if node is None or node.state != "ready" or not avoid:
            return
        if any(card.gpu.uuid in avoid and card.state == "free" for card in self._cards):
            self._jobs.forget_avoided(node)
        else:
            self._jobs.hold_out(node)

    def _comes_free(self, card: Card) -> bool:
        """Whether the run has the card, and all that is on it ends by itself."""
        lives = [self._attempts.get(attempt) for attempt in card.attempts]
        if any(live is None or (live.service and not live.wish) for live in lives):
            return False
        return bool(lives or card.idle_workers) or card.state in ("asking", "draining")

    def _fits_beside_services(self, demand: Demand) -> bool:
        """Whether the demand fits beside all running services.

        If not, cards kept for it would starve every other job, and never be enough.
        """
        services = self._attempts.services()
        tokens = Counter(token for live in services for token in live.demand.uses)
        tokens.update(demand.uses)
        if any(tokens[token] > self._limits.get(token, 1) for token in demand.uses):
            return False
        kept = {card.gpu.uuid for live in services for card in live.cards}
        usable = [c for c in self._cards if c.serves and not c.drained]
        usable = [c for c in usable if c.gpu.uuid not in kept | demand.avoid]
        usable = [c for c in usable if c.gpu.memory >= demand.gpu_memory]
        return demand.gpus <= min(len(usable), self._cards.limit - len(kept))

    # ── Services ────────────────────────────────────────────────────────────────────────────────

    def _room_for(self, service: Node) -> bool:
        """Whether this service and all running ones fit together with each job they serve.

        A service that left no room for the jobs that need it would keep its card for nothing.
        """
        kept_for = self.reserving
        if kept_for not in (None, service) and service not in closure(kept_for):
            return False
        running = {live.service for live in self._attempts.services() if live.service}
        if self.focus is not None:
            beside = {self.focus.job.demand}
            services = running | {service, *closure(self.focus)} - {self.focus}
        else:
            companions = {s for s in service.companions if s.state in WAITING}
            services = running | companions | {service}
            beside = demands_beside(services)
            if is_extra(service):
                beside |= self._jobs.demands.keys()
        gpus = [card.gpu for card in self._cards if not card.away]
        gpus = sorted(gpus, key=lambda gpu: -gpu.memory)[: self._cards.limit]
        demands = [s.job.demand for s in services]
        variants = [[*demands, demand] for demand in beside] or [demands]
        return all(fit_together(variant, gpus, self._limits) for variant in variants)


def _doubtful(card: Card, demand: Demand) -> bool:
    """Whether the card could not be had for this demand when it was last looked at."""
    short = card.memory_free is not None and card.memory_free < demand.gpu_memory
    return card.state == "occupied" or short


def _took_what_it_lacks(demand: Demand, other: Node) -> bool:
    """Whether a job of this demand takes what `other`, which is blocked, waits for."""
    match other.blocked_on:
        case "cards":
            return demand.gpus > 0
        case "tokens":
            return bool(set(demand.uses) & set(other.job.demand.uses))
        case "cpus":
            return cpus_of(demand) > 0
    return False
