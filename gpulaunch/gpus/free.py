"""Decides by a reading whether a card is free, and whether its memory is drained. Pure.

Utilisation does not count: it is sampled, 0 between kernels, and absent under MIG.
"""

from __future__ import annotations

from collections.abc import Collection

from gpulaunch.core.events import Occupied, Sick
from gpulaunch.gpus.machine import CardReading, Process
from gpulaunch.text import size

MIB = 2**20
ALLOWED = 512 * MIB
SLACK = 64 * MIB


def is_free(
    look: CardReading, share_busy: bool = False, own: Collection[int] = frozenset()
) -> Occupied | Sick | None:
    """Return why no job may start on the card; None if one may. `own` PIDs are not foreign.

    `share_busy` accepts strangers' processes and memory, never a sick card.
    """
    if look.sick:
        return Sick(look.sick)
    if look.unasked:
        return Occupied(look.unasked)
    if share_busy:
        return None
    if strangers := tuple(entry for entry in computing(look) if entry.pid not in own):
        return Occupied("; ".join(str(entry) for entry in strangers))
    if look.used is None or look.total is None:
        return None
    used = look.used - sum(entry.memory or 0 for entry in look.processes)
    if used >= max(ALLOWED, look.total // 100):
        return Occupied(f"{size(used)} are in use there by nobody that the driver names")
    return None


def drained(before: CardReading, look: CardReading) -> bool:
    """Whether the card's memory is back to what it was before the attempt.

    The attempt's processes are gone by then: a process seen alive on the card is a stranger, and
    its memory is not the attempt's.
    """
    if look.unasked:
        return False
    if look.used is None or before.used is None:
        return not {entry.pid for entry in computing(look)} - {e.pid for e in computing(before)}
    known = {entry.pid for entry in before.processes}
    arrived = [entry for entry in look.processes if entry.pid not in known and entry.command]
    if any(entry.memory is None for entry in arrived):
        return True  # the newcomer's memory is unknown; `is_free` will name the process
    return look.used - sum(entry.memory or 0 for entry in arrived) <= before.used + SLACK


def computing(look: CardReading) -> tuple[Process, ...]:
    """Return the processes that occupy the card; one with graphics alone (a desktop) does not."""
    return tuple(entry for entry in look.processes if entry.kind != "G")
