"""From what is known of an attempt's end to its failure class. Pure; precision before recall.

outcome, log's end, driver, kernel  ──diagnose──▶  Failure(class, evidence, advice) or None
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpulaunch.core.model import Failure, Outcome
from gpulaunch.failure.kernel import Counters, Room


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One of the attempt's cards as the driver had it when the attempt ended. Memory in bytes.

    `sick`: why the driver says that it is unfit, None where it is fit or nobody asked. `own`: what
    the attempt's processes used of its memory, `foreign`: what others did; None where unknown.
    `xids`: the driver's error numbers on it while the attempt ran, in their order.
    """

    uuid: str
    sick: str | None = None
    total: int | None = None
    own: int | None = None
    foreign: int | None = None
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of how an attempt ended.

    `tail` is its log's end (`tail()` reads it). `succeeded`: the outcome counts as success (a code
    of success, outputs there). `by_launcher`: the launcher itself ended it, whatever the status.
    `rises`: the kernel's counters, after less before. `rooms`: at that moment, for the file systems
    of its output, its working directory, its temporary directory and /dev/shm.
    """

    outcome: Outcome
    tail: str = ""
    succeeded: bool = False
    by_launcher: bool = False
    rises: Counters = field(default_factory=Counters)
    cards: tuple[CardFacts, ...] = ()
    rooms: tuple[Room, ...] = ()


def diagnose(evidence: Evidence) -> Failure | None:
    """What the attempt failed of, where that is certain; None: its status says all."""
    return None


def hint(evidence: Evidence) -> str:
    """For a success whose log speaks of a failure, one line that says so; else empty."""
    return ""
