"""Which cards suit a demand: their kind, their places, their room. Pure; none changes a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from gpulaunch.core.cards import Away, Card, Leased, Look, SetAside
from gpulaunch.core.model import CardKind, Demand, Gpu
from gpulaunch.core.reasons import CardAside, CardsShort, Impossible, TokensShort


def is_kind(gpu: Gpu, demand: Demand) -> bool:
    """Tell whether the card is one of those that the demand names.

    A simulated card is of any model, and a card whose compute capability is not known is none that
    a job with `compute` may have.
    """
    if not (demand.card or demand.compute or demand.own_gpu):
        return True
    if demand.own_gpu and gpu.uuid != demand.own_gpu:
        return False
    if gpu.simulated:
        return True
    if gpu.compute < demand.compute:
        return False
    return not demand.card or fits_name(gpu.name, demand.card)


def reserved_on(gpus: Iterable[Gpu], demand: Demand) -> int:
    """Return the bytes of the host's memory that the demand reserves on any of these cards.

    Its `gpu_memory` counts where all cards that it may have are unified.
    """
    fit = [gpu for gpu in gpus if is_kind(gpu, demand)]
    unified = bool(fit) and all(gpu.unified for gpu in fit)
    return demand.memory + (demand.gpus * demand.gpu_memory if unified else 0)


def fits_name(name: str, glob: str) -> bool:
    """Tell whether a card's name fits the glob, in capital letters or small ones."""
    return fnmatchcase(name.casefold(), glob.casefold())


def models(gpus: Sequence[Gpu], kind: CardKind) -> tuple[str, ...]:
    """Return the names of these cards, each once, with what the job asked for and they lack.

    Compute capabilities are told where the job asks for one.
    """
    return tuple(dict.fromkeys(_told(gpu, kind) for gpu in gpus))


def _told(gpu: Gpu, kind: CardKind) -> str:
    if not kind.compute:
        return gpu.name
    return f"{gpu.name} ({capability(gpu.compute) or 'compute capability not known'})"


def capability(compute: tuple[int, ...]) -> str:
    """Return a compute capability as people write it: `8.0`; empty for none."""
    return ".".join(map(str, compute))


# ── The set of cards for a wide job ───────────────────────────────────────────────────────────────

Worth = tuple[int, int]
"""Pairs of cards without NVLink, and NUMA nodes: the less, the better."""


def worth(gpus: Sequence[Gpu]) -> Worth:
    """Return how far apart these cards are."""
    apart = sum(b.uuid not in a.links for n, a in enumerate(gpus) for b in gpus[:n])
    return apart, len({gpu.numa for gpu in gpus})


def nearest(gpus: Sequence[Gpu], count: int) -> list[int]:
    """Return the places, in `gpus`, of the best set of `count` of them, in their order.

    It is the best of all sets. The first of these that tells two sets apart decides: the fewest
    pairs without NVLink, the fewest NUMA nodes, the cards that stand first. Cards between which
    nothing but the order decides stand for each other, which leaves few sets to look at on machines
    as they are built.
    """
    everything = list(range(len(gpus)))
    if count >= len(gpus) or count < 2 or _all_alike(gpus):
        return everything[:count]
    return _SetSearch(gpus, count).best


def _all_alike(gpus: Sequence[Gpu]) -> bool:
    numa = gpus[0].numa
    return all(not gpu.links and gpu.numa == numa for gpu in gpus)


class _SetSearch:
    """Looks at sets in the order of the cards' places, so that the first of equal ones is kept.

    A card is passed over together with all later ones that are like it. A part of a set that is
    no better than the best whole one is left: what is added makes neither number smaller.
    """

    def __init__(self, gpus: Sequence[Gpu], count: int) -> None:
        self.count = count
        self.links = [
            {k for k, other in enumerate(gpus) if other.uuid in gpu.links} for gpu in gpus
        ]
        self.nodes = [gpu.numa for gpu in gpus]
        self.like = [self._first_like(n) for n in range(len(gpus))]
        self.best: list[int] = []
        self._worth: Worth = (count * count, len(gpus) + 1)
        self._look([], 0, frozenset(), 0)

    def _first_like(self, n: int) -> int:
        """Return the first card that has the same node, and the same links to all the others."""
        for k in range(n):
            same = self.links[k] - {n} == self.links[n] - {k}
            if same and self.nodes[k] == self.nodes[n]:
                return k
        return n

    def _look(self, chosen: list[int], apart: int, passed: frozenset[int], start: int) -> None:
        if (apart, len({self.nodes[n] for n in chosen})) >= self._worth:
            return
        if len(chosen) == self.count:
            self.best = chosen
            self._worth = apart, len({self.nodes[n] for n in chosen})
            return
        for n in range(start, len(self.links) - (self.count - len(chosen)) + 1):
            if self.like[n] in passed:
                continue
            more = sum(k not in self.links[n] for k in chosen)
            self._look([*chosen, n], apart + more, passed, n + 1)
            passed |= {self.like[n]}


# ── Room on a card ────────────────────────────────────────────────────────────────────────────────


def has_room(card: Card, demand: Demand, memory: int, idle_workers: bool = True) -> bool:
    """Tell whether one more attempt of this demand fits on the card with `memory` bytes for all.

    Idle workers count like attempts; with `idle_workers` false, the answer is for when they are
    gone.
    """
    if card.gpu.uuid in demand.avoid:
        return False
    if (demand.card or demand.compute or demand.own_gpu) and not is_kind(card.gpu, demand):
        return False
    beside = [*card.attempts.values(), *card.reservations]
    if idle_workers:
        beside += card.idle_workers.values()
    if not beside:
        return not demand.gpu_memory or memory >= demand.gpu_memory
    if not demand.shares_card or not share_card([*beside, demand]):
        return False
    promised = sum(other.promise for other in beside)
    return not demand.promise or memory - promised >= demand.promise


def share_card(demands: Sequence[Demand]) -> bool:
    """Tell whether these may be on one card together, as far as its memory allows.

    Either all of them share with whoever shares, each with as many as it says at most; or all have
    the same `per_gpu`, which is how many they may be. They do so through MPS, all or none: else
    the card's time is divided between MPS and the others, and all wait.
    """
    if any(demand.mps != demands[0].mps for demand in demands):
        return False
    if any(demand.share for demand in demands):
        sharing = all(demand.share for demand in demands)
        return sharing and all(not d.per_gpu or len(demands) <= d.per_gpu for d in demands)
    return len(demands) <= demands[0].per_gpu and len({d.per_gpu for d in demands}) == 1


MARGIN = 5
"""One part in so many of what a kind takes is what it is promised beyond: use is looked at once a
second, and inputs differ."""


def with_learned(demand: Demand, peak: int) -> Demand:
    """Return a demand whose memory is learned as it stands once jobs of its kind took `peak` bytes.

    0: nothing is known, and it has a card alone. Any other demand is as it was.
    """
    if demand.kind is None:
        return demand
    if not peak:
        return replace(demand, share=False, per_gpu=1)
    need = max(peak, demand.gpu_memory)
    return replace(demand, gpu_memory=need, margin=need // MARGIN if demand.shares_card else 0)


def sharers(demand: Demand, promised: int, gpus: Sequence[Gpu]) -> int:
    """Return how many jobs of a demand may be on one of these cards at once, at least 1.

    `promised`: bytes that each is promised; 0 where it has its card alone, or memory is no matter.
    """
    if not promised:
        return max(1, 1 if demand.share else demand.per_gpu)
    fitting = min((gpu.memory for gpu in gpus), default=0) // promised
    return max(1, min(fitting, demand.per_gpu or fitting))


def suits_now(card: Card, demand: Demand) -> bool:
    """Tell whether the card is leased and an attempt of this demand may start on it at once."""
    if type(card.state) is not Leased or card.drained or card.reserved or card.failing:
        return False
    return has_room(card, demand, card.look.free or 0)


def suits_soon(card: Card, demand: Demand, now: float) -> bool:
    """Tell whether a card that is not ready would suit the demand once it is leased and empty.

    Judged by what is known of it now.
    """
    kind = type(card.state)
    if kind is Leased:
        if not card.idle_workers:
            return False
    elif kind is Away or kind is SetAside:
        return False
    if card.drained or card.reserved or card.failing or card.wanted or now < card.not_before:
        return False
    return has_room(card, demand, card.memory_expected(now), idle_workers=False)


def best(cards: Iterable[Card], count: int) -> list[Card]:
    """Return the `count` cards to take: by rank; of one, shared ones first, then the smallest.

    Of several at once, first of all those that are near each other (`nearest`).
    """
    return together(sorted(cards, key=_order), count)


def together(ranked: list[Card], count: int) -> list[Card]:
    """Return `count` of the cards: those nearest each other, and of equal sets the first ones.

    A card of higher rank is taken only where there are not enough others.
    """
    if count < 2 or count >= len(ranked):
        return ranked[:count]
    highest = sorted(card.gpu.rank for card in ranked)[count - 1]
    first = [card for card in ranked if card.gpu.rank < highest]
    ranked = [card for card in ranked if card.gpu.rank == highest]
    if first:
        return first + ranked[: count - len(first)]
    return [ranked[n] for n in nearest([card.gpu for card in ranked], count)]


def _order(card: Card) -> tuple[int, int, int, int, str]:
    gpu = card.gpu
    return gpu.rank, -len(card.attempts), gpu.memory, gpu.index, gpu.uuid


def impossible(
    demand: Demand, cards: Sequence[Card], limit: int, limits: Mapping[str, int]
) -> Impossible | None:
    """Return why the run's remaining cards can never meet this demand; None if they can."""
    if short := tokens_short(demand, limits):
        return short
    if not demand.gpus:
        return None
    left = [card for card in cards if card.serves and card.gpu.uuid not in demand.avoid]
    if kind := demand.card_kind:
        fit = [card for card in left if is_kind(card.gpu, demand)]
        if demand.own_gpu and not fit:
            return CardsShort(demand.gpus, 0, aside=_aside(cards, demand.own_gpu), of=kind)
        if len(fit) < demand.gpus <= min(limit, len(left)):
            there = models([card.gpu for card in left], kind)
            return CardsShort(demand.gpus, len(fit), of=kind, there=there)
        left = fit
    if demand.gpus > min(limit, len(left)):
        return CardsShort(demand.gpus, min(limit, len(left)), aside=_aside(cards))
    big = sum(card.gpu.memory >= demand.gpu_memory for card in left)
    if demand.gpus > big:
        return CardsShort(demand.gpus, big, demand.gpu_memory)
    return None


def _aside(cards: Sequence[Card], only: str = "") -> tuple[CardAside, ...]:
    """Return which cards the run has set aside, and why; `only`: the one of this UUID."""
    asked = (card for card in cards if only in ("", card.gpu.uuid))
    return tuple(CardAside(c.gpu.index, c.quarantined) for c in asked if c.quarantined)


def tokens_short(demand: Demand, limits: Mapping[str, int]) -> TokensShort | None:
    """Return the token of which the demand uses more than there are; None for none."""
    for token, count in Counter(demand.uses).items():
        if count > limits.get(token, 1):
            return TokensShort(token, count, limits.get(token, 1))
    return None


def fit_together(demands: Sequence[Demand], gpus: Sequence[Gpu], limits: Mapping[str, int]) -> bool:
    """Tell whether all demands fit at once on these cards, if those were empty.

    Tries first fit, largest first; so it may say no where another order fits.
    """
    used = Counter(token for demand in demands for token in demand.uses)
    if any(count > limits.get(token, 1) for token, count in used.items()):
        return False
    cards = [Card(gpu, Leased(), Look(gpu.memory)) for gpu in gpus]

    def order(demand: Demand) -> tuple[bool, bool, int, int, int, int]:
        """Those first that have no choice, then that share least, of these whom few cards suit."""
        suited = sum(is_kind(g, demand) and g.memory >= demand.gpu_memory for g in gpus)
        free, rest = not demand.own_gpu, (-demand.gpus, -demand.gpu_memory)
        return free, demand.share, demand.per_gpu, suited, *rest

    for demand in sorted(demands, key=order):
        chosen = best((c for c in cards if suits_now(c, demand)), demand.gpus)
        if len(chosen) < demand.gpus:
            return False
        for card in chosen:
            card.reservations.append(demand)
    return True
