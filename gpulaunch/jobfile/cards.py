"""Makes the items of `foreach: cards`: one for each card of the run. Knows nothing of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpulaunch.core.card_kind import is_kind
from gpulaunch.core.model import Demand, Gpu
from gpulaunch.core.selection import Selection
from gpulaunch.jobfile.items import ForeachItem, Items

CardsOfRun: TypeAlias = Callable[[Selection], Sequence[Gpu]]
"""Says which cards a run has whose job file selects so; none where no run is to be made of it.

Raises LookupError with the reason where that cannot be known, NoCardsError where there are none.
"""

STAND_IN = "any card"
"""Stands where a job of `foreach: cards` has its card's UUID, of a list that is only looked at."""


def of_cards(gpus: Sequence[Gpu], kind: Demand) -> Items:
    """Return an item for each of the cards that are of the kind. Raises LookupError for none.

    Without any card, one item stands for those of the machine that is to run the list.
    """
    if not gpus:
        return _items([_item(0, "0", STAND_IN)])
    suited = [gpu for gpu in gpus if is_kind(gpu, kind)]
    if not suited:
        raise LookupError(f"none of the run's {len(gpus)} cards is of that kind")
    alike = Counter(gpu.index for gpu in suited)
    labels = (_label(gpu, alike[gpu.index] > 1) for gpu in suited)
    pairs = zip(suited, labels, strict=True)
    return _items([_item(n, label, gpu.uuid) for n, (gpu, label) in enumerate(pairs)])


def _items(items: Sequence[ForeachItem]) -> Items:
    return Items(frozenset({"item", "index"}), iter(items), len(items))


def _label(gpu: Gpu, split: bool) -> str:
    """Return a card's index; of one of several instances of a card, its number too."""
    return f"{gpu.index}-{'.'.join(map(str, gpu.part))}" if split else str(gpu.index)


def _item(number: int, label: str, uuid: str) -> ForeachItem:
    values = {"item": label, "index": str(number)}
    return ForeachItem(values, label, {"card": label}, f"card {label}", gpu=uuid)
