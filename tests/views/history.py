"""Builds recorded runs for the views' tests: facts with made-up times, folded into a Ledger."""

from __future__ import annotations

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    AttemptId,
    End,
    Exited,
    Failure,
    Gpu,
    Instant,
    LadderStep,
    Outcome,
)
from gpulaunch.observe.terminal.terminal import View

START = 1_795_160_535.25  # 2026-11-20T07:42:15.25Z


def gpus(number: int, simulated: bool = False) -> tuple[Gpu, ...]:
    prefix = "SIM" if simulated else "GPU"
    return tuple(
        Gpu(f"{prefix}-{i}", i, f"key/{i}", "NVIDIA H200", 80 << 30, i, simulated=simulated)
        for i in range(number)
    )


class History:
    """A run as it goes. Every step is a fact at the present `mono`; `pass_` moves the time on."""

    def __init__(self, cards: int = 2, simulated: bool = False, view: View | None = None) -> None:
        self.ledger, self.facts = Ledger(), list[tuple[f.Fact, Instant]]()
        self.mono, self.epoch, self.view = 1000.0, 0, view
        self.ahead, self.boot = 0.0, "boot"
        self.pool, self.simulated = gpus(cards, simulated), simulated

    @property
    def now(self) -> Instant:
        return Instant(self.mono, START + self.mono - 1000.0 + self.ahead)

    def set_clock(self, by: float) -> History:
        """Somebody sets the clock on the wall."""
        self.ahead += by
        return self

    def reboot(self, seconds: float) -> History:
        """The machine is off for so long, and counts from another beginning then."""
        self.mono, self.ahead, self.boot = 7.0, self.ahead + self.mono - 7.0 + seconds, "another"
        return self

    def pass_(self, seconds: float) -> History:
        self.mono += seconds
        return self

    def add(self, fact: f.Fact) -> History:
        self.ledger.apply(fact, self.now)
        self.facts.append((fact, self.now))
        if self.view is not None:
            self.view.see(fact, self.now, self.ledger)
        return self

    def open(self, name: str = "nanobodies", engine: str = "local") -> History:
        self.epoch += 1
        run = "20261120-074215-a1b2c3"
        opened = f.RunOpened(
            run,
            name,
            self.epoch,
            "0.1",
            "box",
            self.boot,
            7,
            self.pool,
            self.simulated,
            engine=engine,
        )
        return self.add(opened)

    def jobs(self, *names: str, group: int = 0, cards: int = 1, service: bool = False) -> History:
        for name in names:
            self.add(f.JobAdded(name, group, cards, "d", service=service))
        return self

    def start(self, name: str, *on: int, step: LadderStep | None = None) -> History:
        number = len(self.ledger.jobs[name].attempts) + 1
        attempt = AttemptId(name, number)
        self.add(f.AttemptLaunched(attempt, tuple(self.pool[i].uuid for i in on), step=step))
        return self.add(f.AttemptStarted(attempt, 100 + number))

    def hand_over(self, *names: str, after: str = "") -> History:
        """To an engine that queues and places by itself, ahead of the job named `after`."""
        before = (self.ledger.jobs[after].attempts[-1].id,) if after else ()
        for name in names:
            attempt = AttemptId(name, len(self.ledger.jobs[name].attempts) + 1)
            self.add(f.AttemptLaunched(attempt, (), queued=True, after=before))
        for name in names:
            attempt = AttemptId(name, len(self.ledger.jobs[name].attempts))
            self.add(f.AttemptQueued(attempt, f"Slurm job {7 + attempt.number}"))
        return self

    def start_there(self, name: str, node: str, *on: int) -> History:
        """On those cards of the node."""
        attempt = AttemptId(name, len(self.ledger.jobs[name].attempts))
        cards = tuple(Gpu(f"{node}/{i}", i, f"{node}/{i}", "", 0, node=node) for i in on)
        return self.add(f.AttemptStarted(attempt, 100, cards, node))

    def end(
        self, name: str, outcome: Outcome | None = None, failure: str | None = None, left: int = 0
    ) -> History:
        attempt = AttemptId(name, len(self.ledger.jobs[name].attempts))
        end = End(outcome or Exited(0), Failure(failure) if failure else None, left)
        return self.add(f.AttemptEnded(attempt, end, charged=failure is not None))

    def succeed(self, name: str) -> History:
        return self.end(name).add(f.JobSettled(name, "succeeded"))

    def fail(self, name: str, code: int = 1) -> History:
        self.end(name, Exited(code), "exit")
        return self.add(f.JobSettled(name, "failed", Quoted(f"exited with status {code}")))

    def skip(self, name: str, reason: str) -> History:
        return self.add(f.JobSettled(name, "skipped", Quoted(reason)))
