"""Histories as tables: events go in, what the run says comes out as short lines.

launch fold-1.1 on 0 2 | acquire 0 | release 0 | drain 0 | stop fold-1.1 cancelled | at 2 gpu/0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gpulaunch.base.wording import job_reason, run_reason
from gpulaunch.core.events import (
    Acquire,
    Asked,
    Drain,
    Drained,
    Elsewhere,
    Ended,
    EndWorker,
    Event,
    Freed,
    Granted,
    HolderChanged,
    HoldQueue,
    Instruction,
    Launch,
    Occupied,
    PullImage,
    Refused,
    Release,
    Request,
    ReserveGang,
    SetTimer,
    Sick,
    StopAttempt,
    Submitted,
    TakeBack,
    TimerFired,
    WantCards,
    WorkerEnded,
)
from gpulaunch.core.facts import AttemptQueued, AttemptStarted, Fact, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    AttemptId,
    Demand,
    End,
    Exited,
    Gpu,
    Instant,
    Job,
    Outcome,
    RunState,
    Service,
)
from gpulaunch.core.reasons import RunReason
from gpulaunch.core.run import Run
from tests.core.check import check
from tests.core.options import config
from tests.core.timers import timer_name, timer_of
from tests.core.world import GIB, pretend_gpus

BIG = 80 * GIB


def job(name: str, *, gpus: int = 1, **fields: object) -> Job:
    """A job; fields of its Demand may be given beside its own."""
    demand = {key: fields.pop(key) for key in Demand.__struct_fields__[1:] if key in fields}
    return Job(name, "true", demand=Demand(gpus, **demand), **fields)  # type: ignore[arg-type]


def service(name: str, *, gpus: int = 1, **fields: object) -> Job:
    return job(name, gpus=gpus, service=Service("tcp:8000"), **fields)


def in_words(outcome: tuple[RunState, RunReason | None]) -> tuple[str, str]:
    """A run's outcome with its reason in words."""
    return outcome[0], run_reason(outcome[1])


def attempt(text: str) -> AttemptId:
    name, number = text.rsplit(".", 1)
    return AttemptId(name, int(number))


class Table:
    """One run; each method is a turn of one or more events and returns what is said, as lines."""

    def __init__(
        self,
        cards: int = 1,
        ledger: Ledger | None = None,
        gpus: tuple[Gpu, ...] = (),
        ranks: Sequence[int] = (),
        **options: Any,
    ) -> None:
        gpus = gpus or pretend_gpus(cards)
        ranked = [replace(gpu, rank=rank) for gpu, rank in zip(gpus, ranks, strict=False)]
        self.gpus = tuple(ranked) or gpus
        self.now = 1000.0
        self.ahead = 0.0  # of the clock on the wall, which may be set
        if ledger is None:
            ledger = Ledger()
        opened = RunOpened("r", "r", ledger.opening.epoch + 1, "0", "h", "b", 1, self.gpus)
        ledger.apply(opened, self.instant)
        self.run = Run(self.gpus, config(**options), ledger)
        self.facts: list[Fact] = []
        self.wants_cards = True

    @property
    def instant(self) -> Instant:
        return Instant(self.now, self.now + self.ahead)

    def on(self, *events: Event) -> list[str]:
        lines = []
        for result in self.run.handle(events, self.instant):
            if isinstance(result, WantCards):
                self.wants_cards = result.on
            elif isinstance(result, Instruction):
                lines.append(self._line(result))
            else:
                self.facts.append(result)
        check(self.run)
        return lines

    def _line(self, instruction: Instruction) -> str:
        match instruction:
            case Launch(what, _, gpus, worker, after, share, behind):
                on = " ".join(str(gpu.index) for gpu in gpus) or "none"
                where = f" in {worker}" if worker else ""
                where += "".join(f" after {a}" for a in after)
                where += f" behind {behind}" if behind else ""
                return f"launch {what} on {on}{where}" + (f" %{share[1]}" if share else "")
            case EndWorker(worker, now):
                return f"end worker {worker}" + (" now" if now else "")
            case PullImage(source, known):
                told = f", known as {known}" if known else ""
                return f"pull {source.image} with {source.engine}{told}"
            case TakeBack(what):
                return f"take back {what}"
            case Acquire(gpu):
                return f"acquire {gpu[4:]}"
            case Release(gpu):
                return f"release {gpu[4:]}"
            case Drain(gpu):
                return f"drain {gpu[4:]}"
            case StopAttempt(what, reason, _, now, gently):
                return f"stop {what} {reason}" + " now" * now + " gently" * gently
            case SetTimer(timer, at):
                return f"at {at - self.now:.3g} {timer_name(timer).replace('GPU-', '')}"
            case HoldQueue(on):
                return "hold" if on else "release"
            case ReserveGang(on):
                return f"gather {on}"

    def submit(self, *jobs: Job, again: Sequence[str] = (), left: Sequence[str] = ()) -> list[str]:
        return self.on(Submitted(tuple(jobs), frozenset(again), frozenset(left)))

    def granted(self, *cards: int, free: int = BIG) -> list[str]:
        return [line for card in cards for line in self.on(Granted(f"GPU-{card}", free))]

    def drained(self, card: int, free: int = BIG) -> list[str]:
        return self.on(Drained(f"GPU-{card}", free))

    def freed(self, card: int) -> list[str]:
        return self.on(Freed(f"GPU-{card}"))

    def elsewhere(self, card: int) -> list[str]:
        return self.on(Refused(f"GPU-{card}", Elsewhere("run fold of alice (pid 7)")))

    def held_by(self, card: int, holder: str) -> list[str]:
        return self.on(HolderChanged(f"GPU-{card}", holder))

    def occupied(self, card: int) -> list[str]:
        return self.on(Refused(f"GPU-{card}", Occupied("user bob (pid 123)")))

    def sick(self, card: int) -> list[str]:
        return self.on(Refused(f"GPU-{card}", Sick("fell off the bus")))

    def queued(self, what: str, id: str = "Slurm job 7") -> list[str]:
        return self.on(AttemptQueued(attempt(what), id))

    def started(self, what: str, *gpus: Gpu, node: str = "") -> list[str]:
        return self.on(AttemptStarted(attempt(what), 42, gpus, node))

    def ended(
        self,
        what: str,
        outcome: Outcome | None = None,
        kept: bool = False,
        back: Sequence[int] = (),
    ) -> list[str]:
        """`back`: cards whose memory is seen to be back."""
        free = {f"GPU-{card}": BIG for card in back}
        return self.on(Ended(attempt(what), End(outcome or Exited(0)), kept, free))

    def worker_ended(self, worker: str) -> list[str]:
        return self.on(WorkerEnded(attempt(worker)))

    def timer(self, name: str, after: float) -> list[str]:
        self.now += after
        return self.on(TimerFired(timer_of(name)))

    def asked(self, *requests: Request) -> list[str]:
        return self.on(*map(Asked, requests))

    def state(self, name: str) -> str:
        """`failed: exited with status 3`; a job that waits says why."""
        record = self.run.ledger.jobs[name]
        waits = record.state == "waiting"
        reason = job_reason(self.run.why_waiting(name) if waits else record.reason)
        return f"{record.state}: {reason}" if reason else record.state

    def states(self) -> dict[str, str]:
        return {name: record.state for name, record in self.run.ledger.jobs.items()}
