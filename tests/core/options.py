"""A run's RunConfig from the plain options that tests give."""

from __future__ import annotations

from typing import Any

from gpulaunch.core.state import InEngineQueue, OnCards, RunConfig


def config(
    *,
    limit: int | None = None,
    cpus: int = 1,
    memory: int | None = None,
    limited_by: str = "",
    queue: int | None = None,
    ahead: bool = False,
    **others: Any,
) -> RunConfig:
    """`queue`: attempts that an engine may have at once that places by itself; None: on cards."""
    on_cards = OnCards(limit, cpus, memory, limited_by)
    placing = on_cards if queue is None else InEngineQueue(queue, limit, ahead)
    return RunConfig(placing, **others)
