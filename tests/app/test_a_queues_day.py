"""A day of a queue, with a clock that is passed in: people add, change their minds, and go home.

Supervisor, core and journal are the real ones; jobs only take their time. At four in the morning
the supervisor ends, and another one goes on from the journal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch.core import resume
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import (
    Asked,
    Cancel,
    Ended,
    Finish,
    Instruction,
    Launch,
    Relisted,
    Stop,
    StopAttempt,
    Submitted,
)
from gpulaunch.core.facts import AttemptStarted, JobSet, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Demand, DueTime, End, Exited, Gpu, Interrupted, Job
from gpulaunch.core.run import Run
from gpulaunch.core.state import OnCards, RunConfig
from gpulaunch.journal.append import Journal
from gpulaunch.journal.joblog import JobLog
from gpulaunch.journal.read import additions_in, facts_of, replay
from gpulaunch.journal.recorder import Recorder
from gpulaunch.journal.rundir import RunDir
from gpulaunch.run.supervisor import Supervisor
from tests.app.played import Clock, SkippingLoop
from tests.engines.fakes import FakeEngine, FakeView

CARDS = tuple(Gpu(f"GPU-{n}", n, f"0000:0{n}:00.0", "A100", 80 << 30) for n in range(4))
HOUR = 3600.0


class Machine(FakeEngine):
    """Jobs take as long as `takes` says. No card ever has two of them."""

    def __init__(self, supervisor: Supervisor, loop: SkippingLoop, takes: dict[str, float]) -> None:
        super().__init__(supervisor.post)
        self.loop, self.takes = loop, takes
        self.on: dict[str, AttemptId] = {}
        self.done: list[str] = []

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch(attempt, job, gpus):
                for gpu in gpus:
                    assert gpu.uuid not in self.on, f"{attempt} on the card of {self.on[gpu.uuid]}"
                    self.on[gpu.uuid] = attempt
                self.post(AttemptStarted(attempt, 1))
                end = End(Exited(0))
                self.loop.call_after(attempt, self.takes[job.name], lambda: self.end(attempt, end))
            case StopAttempt(attempt, by=by):
                self.loop.forget(attempt)
                self.end(attempt, End(Interrupted(by)))
            case _:
                super().carry_out(instruction)

    def end(self, attempt: AttemptId, end: End) -> None:
        self.on = {gpu: other for gpu, other in self.on.items() if other != attempt}
        if isinstance(end.outcome, Exited):
            self.done.append(attempt.job)
        self.post(Ended(attempt, end))


class Day:
    """The queue, its people, and what came of it. `hour` counts from eight in the morning."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = Clock("2026-03-28T07:00")  # the next night has a change of the clock
        self.run = RunDir.create(path, "queue", datetime.fromtimestamp(self.clock().utc))
        self.begin = self.clock.mono
        self.takes: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.done: list[str] = []

    def people(self) -> list[tuple[float, Callable[[], object]]]:
        """What each does, and at which hour."""
        add, chance = self.add, self.chance
        acts: list[tuple[float, Callable[[], object]]] = [
            (1.0, lambda: add("sweep", 200, 0.02, 0.1)),
            (3.0, lambda: add("urgent", 5, 0.1, 0.2, priority=10)),
            (6.0, lambda: add("wide", 3, 0.5, 1.0, gpus=3)),
            (9.5, lambda: add("night", 60, 0.4, 0.8, at=12.0)),
            (10.0, self.sweep_first),
        ]
        for number in range(150):
            stem = chance.choice(["ann", "bob", "eve"]) + str(number)
            acts.append((chance.uniform(0, 11), lambda stem=stem: add(stem, 1, 0.01, 0.3)))
        acts += [(chance.uniform(1, 11), self.cancel_one) for _ in range(20)]
        return acts

    def play(self, until: float, acts: Sequence[tuple[float, Callable[[], object]]]) -> None:
        """One supervisor, until it is told to stop (at hour `until`), or to finish (24)."""
        whole = replay(self.run.events) if self.run.events.exists() else Ledger()
        given = additions_in(self.run.events) if whole.jobs else ()
        opened = RunOpened(
            "id", "queue", whole.opening.epoch + 1, "", "", "", 1, CARDS, standing="queue"
        )
        every = [job for addition in given for job in addition.jobs]
        waiting = {job.name for job in every if not whole.jobs[job.name].settled}
        plan = resume.resume(whole, every, waiting)
        make = Journal.reopen if self.run.events.exists() else Journal.create
        whole.apply(opened, self.clock())
        with (
            make(self.run) as self.journal,
            closing(SkippingLoop(self.clock)) as loop,
            closing(JobLog(self.run.joblog, lambda name: name)) as joblog,
        ):
            recorder = Recorder(self.run, self.journal, joblog, whole)
            recorder.append([(opened, self.clock())])
            self.core = Run(CARDS, RunConfig(OnCards(4)), whole)
            self.supervisor = Supervisor(self.core, recorder, FakeView(), loop, self.clock)
            engine = Machine(self.supervisor, loop, self.takes)
            for number, (hour, act) in enumerate(acts):
                loop.call_at(("act", number), self.begin + hour * HOUR, act)
            last = Finish() if until == 24 else Stop(Quoted("the machine is updated"))
            close = lambda: self.supervisor.post(Asked(last))  # noqa: E731
            loop.call_at("close", self.begin + until * HOUR, close)
            self.supervisor.serve(engine, Submitted(plan.jobs, plan.requeue, plan.left))
            self.done += engine.done
        self.clock.go_to(self.begin + until * HOUR + 600)

    def add(
        self, stem: str, count: int, least: float, most: float, gpus: int = 1,
        priority: int = 0, at: float | None = None,
    ) -> None:  # fmt: skip
        due = None if at is None else DueTime("", self.clock().utc + (at - self.hour) * HOUR)
        jobs = [
            Job(f"{stem}-{n}", "true", demand=Demand(gpus=gpus), priority=priority, not_before=due)
            for n in range(count)
        ]
        for job in jobs:
            self.takes[job.name] = self.chance.uniform(least, most) * HOUR
        answers: list[str] = []
        facts = facts_of(f"addition of {stem}", jobs)
        self.supervisor.take(Relisted(tuple(jobs)), facts, lambda: answers.append(stem))
        assert answers, "the addition is recorded before it is answered"
        assert f'"job":"{jobs[-1].name}"' in self.run.events.read_text()

    @property
    def hour(self) -> float:
        return (self.clock.mono - self.begin) / HOUR

    def waiting(self) -> list[str]:
        return [name for name, job in self.core.ledger.jobs.items() if job.state == "waiting"]

    def cancel_one(self) -> None:
        if waiting := self.waiting():
            name = self.chance.choice(waiting)
            self.cancelled.add(name)
            self.supervisor.post(Asked(Cancel((name,))))

    def sweep_first(self) -> None:
        """`set` what is left of the sweep to a higher priority."""
        names = [name for name in self.waiting() if name.startswith("sweep")]
        jobs = [job for name in names if (job := self.core.job(name)) is not None]
        facts = [JobSet(name, {"priority": 5}) for name in names]
        changed = tuple(replace(job, priority=5) for job in jobs)
        self.supervisor.take(Relisted(changed), facts, lambda: None)


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_a_queue(tmp_path: Path, seed: int) -> None:
    day = Day(tmp_path, seed)
    acts = day.people()
    day.play(20.0, [(hour, act) for hour, act in acts if hour < 20])
    assert replay(day.run.events).state == "stopped"
    day.play(24, [(hour, act) for hour, act in acts if hour > 20.2])
    ledger = replay(day.run.events)
    assert (ledger.state, ledger.complete) == ("failed", True)  # some were cancelled
    assert ledger.jobs.keys() == day.takes.keys()
    done = Counter(day.done)
    assert max(done.values()) == 1
    assert done.keys() | day.cancelled == day.takes.keys()
    assert not done.keys() & day.cancelled
