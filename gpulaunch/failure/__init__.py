"""Why an attempt failed: its class, what shows it, and what a person can do about it.

`classes` has the words, `core.classes` the decisions, `patterns` the texts of logs. Reads the end
of a log and the kernel's counters (`tail`, `counters`, `rooms`); all else is pure.
"""

from gpulaunch.failure.evidence import CardFacts, Evidence, diagnose, hint
from gpulaunch.failure.kernel import Counters, Room, counters, rooms

__all__ = ["CardFacts", "Counters", "Evidence", "Room", "counters", "diagnose", "hint", "rooms"]
