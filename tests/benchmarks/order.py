"""How good the order is: thousands of drawn job lists, run by the core itself in pretended time.

The measure is the time to the last job's end over the least that any order could have:
max(all work / cards, the longest job). Compared are

    longest first       what an earlier run took is expected again, give or take some
    any order           nothing is known: the order of the file, which was drawn
    split beforehand    two terminals or more, each with its share of the list
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Sequence
from statistics import mean

from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Ended,
    Event,
    Granted,
    Instruction,
    Launch,
    Submitted,
)
from gpulaunch.core.facts import AttemptStarted, Fact, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import End, Exited, Gpu, Instant, Job
from gpulaunch.core.resume import expect
from gpulaunch.core.run import Run

MEMORY = 80 << 30
NOISE = 0.1
"""By so much, as a sigma of its logarithm, a job's time differs from what it took before."""


def measure(quick: bool) -> dict[str, object]:
    count = 20 if quick else 500
    return {"mean_ratio": ratios(count), "lists": count}


def ratios(count: int, seed: int = 1) -> dict[str, float]:
    """The mean over so many drawn lists, by way of ordering."""
    rng = random.Random(seed)
    found: dict[str, list[float]] = {"longest first": [], "any order": [], "split beforehand": []}
    for _ in range(count):
        cards, before = rng.randint(2, 8), draw(rng)
        now = [took * rng.lognormvariate(0.0, NOISE) for took in before]
        least = max(sum(now) / cards, *now)
        found["longest first"].append(finished(now, cards, before) / least)
        found["any order"].append(finished(now, cards) / least)
        found["split beforehand"].append(split(now, cards) / least)
    return {name: round(mean(values), 4) for name, values in found.items()}


def draw(rng: random.Random) -> list[float]:
    """Seconds of a list's jobs: most are short, a few are many times as long."""
    shape: Callable[[], float] = rng.choice(
        [
            lambda: rng.lognormvariate(4.0, 1.2),
            lambda: 60 * rng.paretovariate(1.3),
            lambda: rng.choice([30.0, 30.0, 30.0, 900.0]) * rng.uniform(0.8, 1.2),
        ]
    )
    return [shape() for _ in range(rng.randint(10, 80))]


def split(seconds: Sequence[float], cards: int) -> float:
    """Each card has every so manieth job, whatever it takes."""
    return max(sum(seconds[card::cards]) for card in range(cards))


def finished(seconds: Sequence[float], cards: int, before: Sequence[float] = ()) -> float:
    """When the last job ends. `before`: what each took in an earlier run."""
    names = [f"j{number}" for number in range(len(seconds))]
    jobs = expect([Job(name, ()) for name in names], dict(zip(names, before, strict=False)))
    return Pretended(cards).to_the_end(jobs, dict(zip(names, seconds, strict=True)))


class Pretended:
    """A calm world for one run: cards are had for the asking, jobs succeed, time is a number."""

    def __init__(self, cards: int) -> None:
        gpus = tuple(Gpu(f"GPU-{n}", n, f"sim/{n}", "pretend", MEMORY) for n in range(cards))
        ledger = Ledger()
        ledger.apply(RunOpened("r", "r", 1, "0", "host", "boot", 1, gpus), Instant(0.0, 0.0))
        self._run = Run(gpus, ledger=ledger)
        self._later: list[tuple[float, int, Event]] = []
        self._number = 0

    def to_the_end(self, jobs: Sequence[Job], seconds: dict[str, float]) -> float:
        now = last = 0.0
        self._post(now, Submitted(tuple(jobs)))
        while self._later:
            now, _, event = heapq.heappop(self._later)
            last = now if isinstance(event, Ended) else last
            for result in self._run.handle([event], Instant(now, now)):
                self._answer(result, now, seconds)
        assert self._run.finished
        return last

    def _answer(self, result: Fact | Instruction, now: float, seconds: dict[str, float]) -> None:
        match result:
            case Acquire(gpu):
                self._post(now, Granted(gpu, MEMORY))
            case Drain(gpu):
                self._post(now, Drained(gpu, MEMORY))
            case Launch(attempt=attempt):
                self._post(now, AttemptStarted(attempt, 1))
                self._post(now + seconds[attempt.job], Ended(attempt, End(Exited(0))))

    def _post(self, at: float, event: Event) -> None:
        self._number += 1
        heapq.heappush(self._later, (at, self._number, event))


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=1))
