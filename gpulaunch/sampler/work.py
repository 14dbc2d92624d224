"""What a card has done between two looks, and how much of it an attempt's processes did. Pure.

The driver says of a card whether anything ran there, and of each process how much it did. Neither
is told of a MIG instance, nor on WSL2. Under MPS the driver may count what a client does for its
server: there only that the whole card stood still says something of one process.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct


class CardWork(Struct, frozen=True):
    """What a card has done since the look before; None is what the driver does not tell.

    `computed`: per cent of the time in which a kernel ran or its memory was in use. `by`: how much
    each PID did that did anything, in a measure of its own. `served`: clients of MPS are on it.
    """

    computed: float | None = None
    by: dict[int, int] | None = None
    served: bool = False


def work_of(card: CardWork | None, own: Collection[int], there: Collection[int]) -> float | None:
    """Return how much an attempt's processes did on a card; 0: nothing; None: it cannot be told.

    `own`: their PIDs as the driver has them; `there`: all PIDs that the driver names on the card.
    """
    if card is None:
        return None
    if card.by and not card.served:
        return float(sum(card.by.get(pid, 0) for pid in own))
    if card.computed == 0 and not card.by:
        return 0.0
    if there and all(pid in own for pid in there):  # it is alone there
        return card.computed
    return None
