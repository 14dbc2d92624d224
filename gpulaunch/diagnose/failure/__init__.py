"""Why an attempt failed: its class, what shows it, and what a person can do about it.

    tail, counters, rooms: read at the edge ──Evidence──▶ diagnose ──▶ core.model.Failure | None

`classes` has the words, `core.classes` the decisions, `patterns` what the texts of logs mean,
`reading` and `judge` which of them count.
"""

from gpulaunch.diagnose.failure.advice import advice
from gpulaunch.diagnose.failure.classes import CLASSES, FailureClass, advice_for, title_of
from gpulaunch.diagnose.failure.edge import Counters, Room, counters, is_bar, rooms, tail
from gpulaunch.diagnose.failure.evidence import (
    CardFacts,
    Evidence,
    advice_on_modules,
    advice_on_signal,
    diagnose,
    hint,
)

__all__ = [
    "CLASSES",
    "CardFacts",
    "Counters",
    "Evidence",
    "FailureClass",
    "Room",
    "advice",
    "advice_for",
    "advice_on_modules",
    "advice_on_signal",
    "counters",
    "diagnose",
    "hint",
    "is_bar",
    "rooms",
    "tail",
    "title_of",
]
