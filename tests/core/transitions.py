"""The tables of legal transitions, by what they are about."""

from __future__ import annotations

from typing import Any

from gpulaunch.core import active, card, waiting

TABLES: dict[type[Any], Any] = {
    waiting.Node: waiting.TRANSITIONS,
    active.ActiveAttempt: active.TRANSITIONS,
    card.Card: card.TRANSITIONS,
}
