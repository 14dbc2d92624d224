"""Computes how much of the cards' time a run used, from its attempts' intervals. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Instant


@dataclass(frozen=True, slots=True)
class CardUse:
    """A card's use: `seconds` with an attempt on it, and their share of the run (0 to 1)."""

    uuid: str
    seconds: float
    share: float


def card_uses(ledger: Ledger, since: Instant, until: Instant) -> tuple[CardUse, ...]:
    """Return the use of each card, in the run's order. Jobs that share a card count once."""
    spans = _spans(ledger, since.utc, until.utc)
    length = until.utc - since.utc
    uses = []
    for uuid in ledger.gpus:
        seconds = covered(spans.get(uuid, ()))
        uses.append(CardUse(uuid, seconds, min(1.0, seconds / length) if length > 0 else 0.0))
    return tuple(uses)


def card_seconds(ledger: Ledger, since: Instant, until: Instant) -> float:
    """Return the used seconds of all cards, also of those that a later start does not have."""
    return sum(covered(spans) for spans in _spans(ledger, since.utc, until.utc).values())


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _spans(ledger: Ledger, since: float, until: float) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for job in ledger.jobs.values():
        for attempt in job.attempts:
            begun = attempt.started if attempt.queued else attempt.launched
            start = max(since, begun.utc if begun else until)
            end = min(until, attempt.ended.utc if attempt.ended else until)
            if end > start:
                for uuid in attempt.gpus:
                    spans[uuid].append((start, end))
    return spans
