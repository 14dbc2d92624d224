"""A client of the driver's events in a loop of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import GpuEvent
from gpulaunch.core.model import Gpu
from gpulaunch.gpus.xid import EventsClient


class Client(EventsClient):
    """Keeps what is reported until it is taken."""

    def __init__(
        self, gpus: Sequence[Gpu], environ: Mapping[str, str], period: float = 60.0
    ) -> None:
        self.loop = Loop()
        self.events: list[GpuEvent] = []
        super().__init__(gpus, self.loop, self.events.append, environ, period)

    def turn(self, seconds: float) -> None:
        """Turn the loop once, for so long at most."""
        self.loop.call_after("test", seconds, lambda: None)
        self.loop.turn()

    def taken(self) -> list[GpuEvent]:
        events, self.events[:] = list(self.events), []
        return events

    def close(self) -> None:
        super().close()
        self.loop.close()
