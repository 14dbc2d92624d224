"""Looks at cards without blocking: through the probe's process, or at simulated cards."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gpulaunch.core.events import Occupied, Sick
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import free
from gpulaunch.gpus.discover import ProbeClient
from gpulaunch.gpus.machine import CardReading
from gpulaunch.loop import Loop


@dataclass(frozen=True, slots=True)
class CardSnapshot:
    """A card at one moment; `memory_free` in bytes. `look` is None for a simulated card."""

    memory_free: int
    look: CardReading | None = None


SnapshotCallback: TypeAlias = Callable[[CardSnapshot | Sick], None]


class CardProbe(Protocol):
    """Looks at cards; the answer comes through a callback, at once or from the loop."""

    def look(self, gpu: Gpu, then: SnapshotCallback) -> None: ...

    def unfit(self, seen: CardSnapshot) -> Occupied | Sick | None:
        """Why no job may start on the card that was seen; None where one may."""

    def drained(self, before: CardSnapshot, seen: CardSnapshot) -> bool:
        """Whether the card's memory is back to what it was before the attempt."""

    def close(self) -> None: ...


class SimulatedProbe:
    """The probe of simulated cards, which are always well, free and drained."""

    def look(self, gpu: Gpu, then: SnapshotCallback) -> None:
        then(CardSnapshot(gpu.memory))

    def unfit(self, seen: CardSnapshot) -> None:
        return None

    def drained(self, before: CardSnapshot, seen: CardSnapshot) -> bool:
        return True

    def close(self) -> None:
        return None


class NvmlProbe:
    """Asks the driver through the probe's process. A card whose call hangs is sick, no other."""

    def __init__(self, loop: Loop, share_busy: bool = False) -> None:
        self._loop = loop
        self._share_busy = share_busy
        self._client = ProbeClient()
        self._waiting: defaultdict[str, list[tuple[Gpu, SnapshotCallback]]] = defaultdict(list)
        loop.watch(self._client.fileno(), self._hear)

    def look(self, gpu: Gpu, then: SnapshotCallback) -> None:
        self._waiting[gpu.uuid].append((gpu, then))
        self._client.look(gpu)
        self._plan()

    def unfit(self, seen: CardSnapshot) -> Occupied | Sick | None:
        return None if seen.look is None else free.is_free(seen.look, self._share_busy)

    def drained(self, before: CardSnapshot, seen: CardSnapshot) -> bool:
        if before.look is None or seen.look is None:
            return True
        return free.drained(before.look, seen.look)

    def close(self) -> None:
        self._loop.unwatch(self._client.fileno())
        self._loop.forget("card_probe")
        self._client.close()

    def _hear(self) -> None:
        for look in self._client.on_readable():
            self._tell(look)
        self._plan()

    def _late(self) -> None:
        if look := self._client.overdue(time.monotonic()):
            self._tell(look)
        self._plan()

    def _tell(self, look: CardReading) -> None:
        for gpu, then in self._waiting.pop(look.uuid, ()):
            then(Sick(look.sick) if look.sick else CardSnapshot(_memory_free(gpu, look), look))

    def _plan(self) -> None:
        if self._client.deadline is None:
            self._loop.forget("card_probe")
        else:
            self._loop.call_at("card_probe", self._client.deadline, self._late)


def _memory_free(gpu: Gpu, look: CardReading) -> int:
    """The card's free bytes by the driver; where it says nothing, those not known to be used."""
    return look.free if look.free is not None else gpu.memory - (look.used or 0)
