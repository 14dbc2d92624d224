"""Looks at cards without blocking: through the probe's process, or at simulated cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gpulaunch.core.events import Occupied, Sick
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import machine
from gpulaunch.gpus.discover import ProbeClient
from gpulaunch.gpus.machine import CardReading
from gpulaunch.loop import Loop


@dataclass(frozen=True, slots=True)
class CardSnapshot:
    """A card at one moment; `memory_free` in bytes. `look` is None for a simulated card."""

    memory_free: int
    look: CardReading | None = None


SnapshotCallback: TypeAlias = Callable[[CardSnapshot | Sick], None]


class CardProbe:
    """Looks at cards: here at simulated ones, which are always well, free and drained."""

    def look(self, gpu: Gpu, then: SnapshotCallback) -> None:
        """Look at a card, and call `then`, at once or from the loop."""
        then(CardSnapshot(gpu.memory))

    def unfit(self, seen: CardSnapshot) -> Occupied | Sick | None:
        """Why no job may start on the card that was seen; None where one may."""
        return None

    def drained(self, before: CardSnapshot, seen: CardSnapshot) -> bool:
        """Whether the card's memory is back to what it was before the attempt."""
        return True

    def close(self) -> None:
        """End what looks at the cards."""


class NvmlProbe(CardProbe):
    """Asks the driver through the probe's process. A card whose call hangs is sick, no other."""

    def __init__(self, loop: Loop, share_busy: bool = False) -> None:
        self._share_busy = share_busy
        self._client = ProbeClient(loop=loop)

    def look(self, gpu: Gpu, then: SnapshotCallback) -> None:
        self._client.look(gpu, lambda seen: then(_snapshot(gpu, seen)))

    def unfit(self, seen: CardSnapshot) -> Occupied | Sick | None:
        return None if seen.look is None else machine.is_free(seen.look, self._share_busy)

    def drained(self, before: CardSnapshot, seen: CardSnapshot) -> bool:
        if before.look is None or seen.look is None:
            return True
        return machine.drained(before.look, seen.look)

    def close(self) -> None:
        self._client.close()


def _snapshot(gpu: Gpu, look: CardReading) -> CardSnapshot | Sick:
    return Sick(look.sick) if look.sick else CardSnapshot(_memory_free(gpu, look), look)


def _memory_free(gpu: Gpu, look: CardReading) -> int:
    """Return a card's free bytes by the driver; where it is silent, those not known to be used."""
    return look.free if look.free is not None else gpu.memory - (look.used or 0)
