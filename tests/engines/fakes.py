"""A world without processes: an engine, a record and a view that the supervisor can drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import (
    Acquire,
    Drain,
    Drained,
    Ended,
    Granted,
    Instruction,
    Launch,
    Release,
    StopAttempt,
)
from gpulaunch.core.facts import AttemptEnded, AttemptQueued, AttemptStarted, Fact
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Exited, Gpu, ImageSource, Instant, Interrupted
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import EnvironmentMaker, MachineLimits
from gpulaunch.engines.protocol import Post
from gpulaunch.journal.rundir import RunDir


def lone_context(path: Path, loop: Loop, environ: Mapping[str, str]) -> RunContext:
    """What a part of an engine needs that has no run around it."""
    machine = MachineLimits(1, 1, str(path / "cache"))
    return RunContext(
        RunDir(path), "run", 1, EnvironmentMaker(machine, dict(environ)), loop, print, warn=print
    )


class FakeEngine:
    """Grants every card; an attempt of a job called `long` runs until it is stopped."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.seen: list[Instruction] = []
        self.kept_ends: list[AttemptId] = []
        self.pulling: dict[ImageSource, str] = {}

    def carry_out(self, instruction: Instruction) -> None:
        self.seen.append(instruction)
        match instruction:
            case Acquire(gpu):
                self.post(Granted(gpu, 80 << 30))
            case Drain(gpu):
                self.post(Drained(gpu, 80 << 30))
            case Launch(attempt, job):
                self.post(AttemptStarted(attempt, 1))
                if job.name != "long":
                    self.post(Ended(attempt, End(Exited(0))))
            case StopAttempt(attempt, by=by):
                self.post(Ended(attempt, End(Interrupted(by))))
            case Release():
                pass

    def launched(self) -> list[str]:
        return [i.attempt.job for i in self.seen if isinstance(i, Launch)]

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        self.adopted = tuple(attempts)

    def recorded(self, attempts: Sequence[AttemptId]) -> None:
        self.kept_ends.extend(attempts)

    def why(self, attempt: AttemptId) -> str:
        return ""

    def pulls(self) -> Mapping[ImageSource, str]:
        return self.pulling

    def close(self) -> None:
        return None


class FakeQueue(FakeEngine):
    """Queues what it is handed; all of it runs on a node once the last of them is there."""

    def __init__(self, post: Post, last: str) -> None:
        super().__init__(post)
        self.last = last
        self.said = ""

    def carry_out(self, instruction: Instruction) -> None:
        self.seen.append(instruction)
        if isinstance(instruction, Launch):
            self.post(AttemptQueued(instruction.attempt, f"Slurm job {len(self.seen)}"))
            if instruction.attempt.job == self.last:
                self.run_all()

    def run_all(self) -> None:
        for index, launch in enumerate(i for i in self.seen if isinstance(i, Launch)):
            card = Gpu(f"n1/{index}", index, f"n1/{index}", "", 0, node="n1")
            self.post(AttemptStarted(launch.attempt, 1, (card,), "n1"))
            self.post(Ended(launch.attempt, End(Exited(0))))

    def why(self, attempt: AttemptId) -> str:
        return self.said


class FakeRecord:
    """Keeps facts; `broken` refuses them for so many tries (None: for good)."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.pending: list[Fact] = []
        self.broken: int | None = 0
        self.synced: list[AttemptId] = []
        self.told = 0
        self.unrecoverable = False

    @property
    def failure(self) -> str:
        return "No space left on device" if self.pending else ""

    def append(self, facts: Sequence[tuple[Fact, Instant]]) -> bool:
        self.pending += [fact for fact, _ in facts]
        return self.retry()

    def link_results(self) -> None:
        """Keeps no results."""

    def derive(self) -> None:
        """Keeps no joblog either."""

    def retry(self) -> bool:
        if self.broken is None:
            return False
        if self.broken > 0:
            self.broken -= 1
            return False
        self.facts += self.pending
        self.pending = []
        return True

    def sync(self) -> bool:
        if self.pending:
            return False
        self.synced = [fact.attempt for fact in self.facts if isinstance(fact, AttemptEnded)]
        return True

    def synced_ends(self) -> list[AttemptId]:
        ends, self.told = self.synced[self.told :], len(self.synced)
        return ends


class FakeView:
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Fact] = []

    def see(self, fact: Fact, at: Instant, ledger: Ledger) -> None:
        self.seen.append(fact)

    def tick(self, now: Instant, ledger: Ledger, doing: Sequence[str] = ()) -> None:
        return None

    def next_tick(self, now: Instant) -> float | None:
        return None
