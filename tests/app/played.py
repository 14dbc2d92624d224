"""Hours that pass at once: a clock and a loop for a Supervisor that is played."""

from __future__ import annotations

from datetime import datetime, timezone

from gpulaunch.base.loop import Loop
from gpulaunch.core.model import Instant


class Clock:
    """Both clocks. The machine sleeps from `asleep[0]` (monotonic) on for `asleep[1]` seconds."""

    def __init__(self, start: str, asleep: tuple[float, float] | None = None) -> None:
        self.mono = 1000.0
        self.ahead = datetime.fromisoformat(start).replace(tzinfo=timezone.utc).timestamp() - 1000.0
        self.asleep = asleep

    def __call__(self) -> Instant:
        return Instant(self.mono, self.mono + self.ahead)

    def go_to(self, mono: float) -> None:
        self.mono = max(self.mono, mono)
        if self.asleep is not None and self.mono >= self.asleep[0]:
            self.ahead += self.asleep[1]
            self.asleep = None


class SkippingLoop(Loop):
    """A loop in which nothing comes but timers, each at its time, at once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda: clock.mono)
        self.clock = clock
        self.turns = 0

    def turn(self, block: bool = True) -> None:
        self.turns += 1
        self.catch_up()
        at = self._next()
        assert at is not None, "the run waits for nothing"
        self.clock.go_to(at)
        self._fire(self.clock.mono)
