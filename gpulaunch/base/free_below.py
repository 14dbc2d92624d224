"""The memory below which a card counts as free: an amount, a part of the card, or both.

"2GB" · "5%" · "512MB,1%" (the larger) ─▶ FreeBelow ─▶ bytes of a card of that size
"""

from __future__ import annotations

import re
from decimal import Decimal

from msgspec import Struct

from gpulaunch.base.text import parse_size, shortened

EXPECTED = "memory like 2GB, a part of the card like 5%, or both like 2GB,5% (the larger)"
_PERCENT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%")


class FreeBelow(Struct, frozen=True):
    """The larger of `bytes` and of `percent` of the card's memory."""

    bytes: int = 0
    percent: float = 0.0

    def of(self, total: int) -> int:
        """Return the bytes for a card of so many."""
        return max(self.bytes, int(total * self.percent / 100))


def parse_free_below(text: str) -> FreeBelow:
    """Return what `2GB`, `5%` or `2GB,5%` says. Raises ValueError for anything else."""
    parts = text.split(",")
    percents = [found[1] for part in parts if (found := _PERCENT.fullmatch(part.strip()))]
    sizes = [part for part in parts if "%" not in part]
    if len(percents) > 1 or len(sizes) > 1 or len(percents) + len(sizes) < len(parts):
        raise ValueError(f"expected {EXPECTED}, found {shortened(text)}")
    return FreeBelow(
        _bytes(sizes[0], text) if sizes else 0, _percent(percents[0]) if percents else 0.0
    )


def _bytes(part: str, text: str) -> int:
    try:
        return parse_size(part)
    except ValueError:
        raise ValueError(f"expected {EXPECTED}, found {shortened(text)}") from None


def _percent(digits: str) -> float:
    percent = Decimal(digits)
    if not 0 < percent <= 100:
        raise ValueError(f"expected a part of the card above 0% and at most 100%, found {digits}%")
    return float(percent)
