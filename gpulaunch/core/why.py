"""Why a job waits, in words. Looks at a run's state; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpulaunch.core import words
from gpulaunch.core.active import ActiveAttempts, cpus_of
from gpulaunch.core.admission import Admission
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.effects import Effects
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.ledger import IN_QUEUE
from gpulaunch.core.model import AttemptId, Demand, Instant
from gpulaunch.core.waiting import Node
from gpulaunch.text import clock, listing, several, size, span

_BEGUN, _QUEUED, _WAITS = "is running", f"is {IN_QUEUE}", "waits itself"
_NEAR = (_BEGUN, _QUEUED, _WAITS)
"""Words for a job that others wait for, the nearest to its end first."""


class Why:
    """Says why jobs of one run wait. `limits` and `cpus` are the run's own."""

    def __init__(
        self,
        effects: Effects,
        cards: Cards,
        jobs: Jobs,
        attempts: ActiveAttempts,
        admission: Admission,
        limits: dict[str, int],
        cpus: int,
    ) -> None:
        self._effects = effects
        self._cards = cards
        self._jobs = jobs
        self._attempts = attempts
        self._admission = admission
        self._limits = limits
        self._cpus = cpus

    def of(self, name: str, closed: str, now: Instant) -> str:
        """Return one line that says why the job waits; empty for one that does not wait.

        `closed`: why nothing may start at all, which goes before the job's own reason. Of a job in
        the engine's queue, it tells only what the engine does not know.
        """
        node = self._jobs.nodes.get(name)
        if node is None:
            known = name in self._effects.ledger.jobs
            return "no longer in the job file" if known else ""
        if node.state == "running":
            return self._queued(node, closed) if self._jobs.record(node).in_queue else ""
        if node.excluded and self._jobs.record(node).state == "waiting":
            return "left as it is this time"
        if node.state == "settled":
            return ""
        if closed:
            return closed
        match node.state:
            case "blocked":
                return self._blocked(node)
            case "delayed":
                left = (self._jobs.record(node).not_before or 0.0) - now.mono
                return f"retries in {span(max(1, round(left)))}"
            case "idle":
                return "starts when a job that needs it is ready to go"
            case "asking":
                names = [service.name for service in node.services if not service.ready]
                return f"waits for its service {', '.join(names)} to be ready"
        return self._ready(node, now)

    def _queued(self, node: Node, closed: str) -> str:
        """Why a queued job waits: for what it needs, where it was handed over ahead of that."""
        live = self._attempts.get(node.attempt) if node.attempt else None
        after = live.after if live is not None else ()
        open_needs = [n for n in node.needs if n.attempt in after and n.state == "running"]
        if closed or not open_needs:
            return closed
        return f"needs {self._others(open_needs)}"

    def _blocked(self, node: Node) -> str:
        open_needs = [need for need in node.needs if need.state != "settled"]
        if open_needs:
            return f"needs {self._others(open_needs)}"
        return f"comes after {self._others([n for n in node.after if n.state != 'settled'])}"

    def _others(self, nodes: list[Node]) -> str:
        first = min(nodes, key=lambda node: _NEAR.index(self._far(node)))
        more = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
        return f"{first.name}, which {self._far(first)}{more}"

    def _far(self, node: Node) -> str:
        if node.state != "running":
            return _WAITS
        return _BEGUN if self._jobs.record(node).state == "running" else _QUEUED

    def _ready(self, node: Node, now: Instant) -> str:
        demand = node.job.demand
        if reason := self._token(demand):
            return reason
        if cpus_of(demand) and self._attempts.cpus + cpus_of(demand) > self._cpus:
            used = self._attempts.cpus
            return f"waits for {several(cpus_of(demand), 'CPU')}; {used} of {self._cpus} are in use"
        if node.blocked_on == "room":
            return "waits for room for itself and a job that needs it"
        if self._admission.focus not in (None, node):
            return f"waits until {self._admission.focus.name} has started"
        if not demand.gpus:
            return "waits for its turn"
        return f"waits for {_wished(demand)}: {self._cards_in_words(demand, now)}"

    def _token(self, demand: Demand) -> str:
        for token in dict.fromkeys(demand.uses):
            limit, used = self._limits.get(token, 1), self._attempts.tokens[token]
            if used + demand.uses.count(token) > limit:
                holders = self._holders(token)
                return f"waits for a token of {token} ({used} of {limit} in use by {holders})"
        return ""

    def _holders(self, token: str) -> str:
        names = [live.id.job for live in self._attempts if token in live.demand.uses]
        return listing(names)

    def _cards_in_words(self, demand: Demand, now: Instant) -> str:
        cards, limit = list(self._cards), self._cards.limit
        limited = ""
        if self._cards.held() >= limit < len(cards):
            cards = [card for card in cards if card.held]
            limited = f"the run may hold {limit} at once; "
        alike: dict[tuple[str, str], list[Card]] = {}
        for card in cards:
            alike.setdefault(self._state(card, demand, now), []).append(card)
        busy = [card for card in cards if card.attempts and not card.quarantined]
        parts = [self._busy(busy, now)] if len(busy) > 1 else []
        for state, some in alike.items():
            if not (parts and some[0] in busy):
                parts.append(_clause(some, *state))
        return limited + (", " if len(parts) == len(cards) else "; ").join(parts)

    def _busy(self, cards: Sequence[Card], now: Instant) -> str:
        """Return `GPUs 0-7 are busy (0:03 to 1:12) with a, b, c and 5 more`."""
        attempts = list(dict.fromkeys(next(iter(card.attempts)) for card in cards))
        names = list(dict.fromkeys(a.job for card in cards for a in card.attempts))
        spans = sorted(self._since(attempt, now) for attempt in attempts)
        least, most = clock(spans[0]), clock(spans[-1])
        spanned = most if least == most else f"{least} to {most}"
        return _clause(cards, "is", f"busy ({spanned}) with {listing(names)}")

    def _since(self, attempt: AttemptId, now: Instant) -> float:
        """Seconds since the attempt's start, or its launch where it has not started."""
        record = self._effects.ledger.attempt(attempt)
        return now.mono - (record.started or record.launched).mono

    def _state(self, card: Card, demand: Demand, now: Instant) -> tuple[str, str]:
        """Return the card's state as a verb and the rest, so that cards alike share one clause."""
        if card.quarantined:
            return "was", f"set aside ({card.quarantined})"
        if card.attempts:
            attempt = next(iter(card.attempts))
            more = f" and {len(card.attempts) - 1} more" if len(card.attempts) > 1 else ""
            return "is", f"busy with {attempt.job}{more} ({clock(self._since(attempt, now))})"
        if card.idle_workers:
            return "still has", f"the worker of {next(iter(card.idle_workers)).job}"
        if card.drained:
            return "was", "given back by a person (drain)"
        match card.state:
            case "elsewhere":
                return "is", f"held by {card.why}"
            case "occupied":
                return "is", f"in use: {card.why}"
            case "draining":
                return "is", "giving back memory"
            case "asking":
                return "is", "being looked at"
            case "leased" if self._admission.reserving is not None:
                return "is", f"kept for {self._admission.reserving.name}"
        if card.gpu.uuid in demand.avoid:
            return "is", "avoided after an earlier attempt"
        if demand.gpu_memory:
            free = card.gpu.memory if card.memory_free is None else card.memory_free
            return "has", f"{size(free)} free"
        return "is", "free"


_PLURALS = {"is": "are", "was": "were", "has": "have", "still has": "still have"}


def _clause(cards: Sequence[Card], verb: str, rest: str) -> str:
    """`GPU 0 is free`, `GPUs 0, 2-7 are free`."""
    if len(cards) == 1:
        return f"GPU {cards[0].gpu.index} {verb} {rest}"
    return f"GPUs {words.ranges(card.gpu.index for card in cards)} {_PLURALS[verb]} {rest}"


def _wished(demand: Demand) -> str:
    """`a card`, `2 cards with 79 GiB free each`."""
    if not demand.gpu_memory:
        return words.cards(demand.gpus)
    each = " each" if demand.gpus > 1 else ""
    return f"{words.cards(demand.gpus)} with {size(demand.gpu_memory)} free{each}"
