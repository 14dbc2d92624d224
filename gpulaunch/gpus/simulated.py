"""Pretend cards, for trying a job file, for tests and for work that needs no card."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpulaunch.core.model import Gpu
from gpulaunch.gpus.machine import CardReading, LookCallback
from gpulaunch.gpus.names import short
from gpulaunch.loop import Loop

POOL_VARIABLE = "GPULAUNCH_SIM_POOL"
MEMORY = 80 * 2**30


def simulated(count: int, pool: str) -> tuple[Gpu, ...]:
    """Return pretend cards SIM-0, SIM-1, ... of 80 GiB; a user's runs of one `pool` share them."""
    return tuple(
        Gpu(
            uuid=f"SIM-{n}",
            index=n,
            key=f"sim/{os.getuid()}/{short(pool).replace('/', '_')}/{n}",
            name="simulated",
            memory=MEMORY,
            simulated=True,
        )
        for n in range(count)
    )


class SimulatedProbe:
    """Looks at simulated cards as `ProbeClient` at real ones: always well, free and drained.

    The answer comes from the loop as a driver's does, never at once: otherwise the order of events
    on pretend cards would be another one than on real cards.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def look(self, gpu: Gpu, then: LookCallback) -> None:
        reading = CardReading(gpu.uuid, total=gpu.memory, free=gpu.memory, used=0)
        self._loop.call_after(object(), 0.0, lambda: then(reading))

    def close(self) -> None:
        """Give back nothing."""


def pool_name(run: str, environ: Mapping[str, str]) -> str:
    """Return the name of the pool of pretend cards: GPULAUNCH_SIM_POOL, else the run's own."""
    return environ.get(POOL_VARIABLE) or run
