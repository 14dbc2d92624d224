"""Launches that could not be carried out yet, and when each is tried again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Literal, TypeAlias

from gpulaunch.core.events import Launch
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.context import RunContext

Awaited: TypeAlias = Literal["server", "mps"]
"""What a launch waits for: a preload server that imports, or its card's MPS daemon."""


class PostponedLaunches:
    """Calls `launch` with each postponed launch in its time. The attempts are not charged."""

    def __init__(self, context: RunContext, launch: Callable[[Launch], None]) -> None:
        self._context = context
        self._launch = launch
        self._launches: dict[AttemptId, Launch] = {}
        self._waiting: defaultdict[Awaited, list[AttemptId]] = defaultdict(list)
        self._warned: set[AttemptId] = set()

    def retry_after(self, launch: Launch, seconds: float, why: str = "") -> None:
        """Launch again after so many seconds, and then warn of `why`, once per attempt."""
        attempt = launch.attempt
        self._launches[attempt] = launch

        def again() -> None:
            if not self._launches.pop(attempt, None):
                return
            if why and attempt not in self._warned:
                self._warned.add(attempt)
                self._context.warn(attempt.job, f"is tried again until it can start: {why}")
            self._launch(launch)

        self._context.loop.call_after(f"launch:{attempt}", seconds, again)

    def wait_for(self, launch: Launch, awaited: Awaited) -> None:
        """Launch again at the next call of `resume`."""
        self._launches[launch.attempt] = launch
        self._waiting[awaited].append(launch.attempt)

    def resume(self, awaited: Awaited) -> None:
        """Launch what waited for this."""
        for attempt in self._waiting.pop(awaited, ()):
            if launch := self._launches.pop(attempt, None):
                self._launch(launch)

    def cancel(self, attempt: AttemptId) -> Launch | None:
        """Remove and return the attempt's launch, if it was postponed."""
        return self._launches.pop(attempt, None)

    def clear(self) -> None:
        self._launches.clear()
        self._waiting.clear()
