"""Posts what the driver reports of the run's cards. Decides nothing about a card.

Of a card whose lease another launcher holds, only the card's loss is posted: other reports are
about that launcher's programs.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from gpulaunch.core.events import GpuEvent
from gpulaunch.core.model import Gpu
from gpulaunch.engines.context import RunContext
from gpulaunch.gpus.events import EventsClient

MAX_XIDS_REMEMBERED = 100
"""Xids that are remembered of each card, the newest: a faulty program makes thousands."""


class Health:
    """Listens to the driver's events of all cards, from `begin` on; simulated cards have none.

    `held` returns whether the run holds a card's lease now.
    """

    def __init__(
        self, context: RunContext, gpus: Sequence[Gpu], held: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._gpus = [gpu for gpu in gpus if not gpu.simulated]
        self._held = held
        self._client: EventsClient | None = None
        self._xids: defaultdict[str, deque[tuple[float, int]]] = defaultdict(
            lambda: deque(maxlen=MAX_XIDS_REMEMBERED)
        )

    def begin(self) -> None:
        """Begin to listen. Idempotent."""
        if self._client is None and self._gpus:
            loop, environ = self._context.loop, self._context.base
            self._client = EventsClient(self._gpus, loop, self._report, environ)

    def _report(self, event: GpuEvent) -> None:
        if event.verdict != "lost" and not self._held(event.gpu):
            return
        if event.code is not None:
            self._xids[event.gpu].append((time.monotonic(), event.code))
        self._context.post(event)

    def xids(self, gpu: str, since: float) -> tuple[int, ...]:
        """Return a card's Xids since this monotonic time, at most the last MAX_XIDS_REMEMBERED."""
        if self._client is not None:
            self._client.read()  # what has come in since the loop waited
        return tuple(code for at, code in self._xids[gpu] if at >= since)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
