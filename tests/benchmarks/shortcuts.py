"""What small savings save: each is measured beside the plain way, or goes.

directory   an attempt's output directory that stayed empty is renamed for a later attempt;
            plain: one is made and removed each time, where temporary files are
burst       jobs end on all cards at once, and what has come is handled together; plain: one
            event after the other
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from time import perf_counter

from gpulaunch.core.events import Acquire, Drain, Drained, Ended, Event, Granted, Launch, Submitted
from gpulaunch.core.facts import AttemptStarted, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Gpu, Instant, Job
from gpulaunch.core.run import Run
from gpulaunch.engines.prepare import OutputDirs

MEMORY = 80 << 30
CARDS = 8


def measure(quick: bool) -> dict[str, object]:
    count = 20 if quick else 2000
    return {"directory_us": directories(count), "burst_us": bursts(max(count // 10, 5))}


def directories(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        outs = OutputDirs()

        def kept(path: str) -> None:
            outs.make(path)
            outs.over(path)

        def made_anew(path: str) -> None:
            os.mkdir(path, 0o700)
            os.rmdir(path)

        def timed(way: Callable[[str], None]) -> float:
            spent = []
            for number in range(count):
                path = str(Path(name) / f"job.{number}")
                began = perf_counter()
                way(path)
                spent.append(perf_counter() - began)
            return round(median(spent) * 1e6, 1)

        return {"as it is": timed(kept), "plain": timed(made_anew)}


def bursts(count: int) -> dict[str, float]:
    """Microseconds from a burst of ends to the mean card's next job, both ways."""
    found: dict[str, list[float]] = {"as it is": [], "plain": []}
    for _ in range(count):
        for name, together in (("as it is", True), ("plain", False)):
            found[name].append(Burst(together).mean_wait())
    return {name: round(median(waits) * 1e6, 1) for name, waits in found.items()}


class Burst:
    """A run on cards that are all busy, and whose jobs end at once."""

    def __init__(self, together: bool) -> None:
        self._together = together
        gpus = tuple(Gpu(f"GPU-{n}", n, f"sim/{n}", "pretend", MEMORY) for n in range(CARDS))
        ledger = Ledger()
        ledger.apply(RunOpened("r", "r", 1, "0", "host", "boot", 1, gpus), Instant(0.0, 0.0))
        self._run = Run(gpus, ledger=ledger)
        self._inbox: deque[Event] = deque()
        self._launched: dict[AttemptId, float] = {}

    def mean_wait(self) -> float:
        self._inbox.append(Submitted(tuple(Job(f"j{n}", ()) for n in range(10 * CARDS))))
        self._settle()
        running = list(self._launched)
        self._launched.clear()
        began = perf_counter()
        self._inbox.extend(Ended(attempt, End(Exited(0))) for attempt in running)
        self._settle()
        return mean(at - began for at in self._launched.values())

    def _settle(self) -> None:
        while self._inbox:
            count = len(self._inbox) if self._together else 1
            events = [self._inbox.popleft() for _ in range(count)]
            for result in self._run.handle(events, Instant(1.0, 1.0)):
                match result:
                    case Acquire(gpu):
                        self._inbox.append(Granted(gpu, MEMORY))
                    case Drain(gpu):
                        self._inbox.append(Drained(gpu, MEMORY))
                    case Launch(attempt=attempt):
                        self._launched[attempt] = perf_counter()
                        self._inbox.append(AttemptStarted(attempt, 1))


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
