"""The tables of legal transitions, by what they are about."""

from __future__ import annotations

from typing import Any

from gpulaunch.core import attempts, cards, jobs

TABLES: dict[type[Any], Any] = {
    jobs.Node: jobs.TRANSITIONS,
    attempts.ActiveAttempt: attempts.TRANSITIONS,
    cards.Card: cards.TRANSITIONS,
}
