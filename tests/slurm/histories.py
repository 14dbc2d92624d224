"""Random histories of a run on a pretend Slurm whose programs fail in every way, by seed.

What is told of each attempt is held against what really happened to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpulaunch.core.events import Ended, Event, Launch, Started, StopAttempt
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    Exited,
    Interrupted,
    Job,
    Lost,
    NotStarted,
)
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import MachineLimits
from gpulaunch.engines.slurm.commands import _End
from gpulaunch.engines.slurm.engine import SlurmEngine
from gpulaunch.engines.slurm.settings import Settings
from gpulaunch.journal.rundir import RunDir
from tests.slurm.pretend import Fault, Faults, Plan, PretendCluster, PretendLoop, Programs

LONGEST = 6 * 3600.0
"""Seconds of the pretend clock within which every history ends."""
FINE = Fault()


def fine(program: str, arguments: Sequence[str]) -> Fault:
    return FINE


def said(code: int | None, words: str, out: str = "") -> Callable[[_End], _End]:
    """An answer that says this, whatever the program would have said."""
    return lambda end: _End(end.program, code, out, words)


LATE = replace(FINE, change=said(1, "site: cannot write to the ledger: quota\n"))
FRENCH = said(1, "sbatch: erreur: Impossible de contacter le contrôleur\n")
KINDS: dict[str, Callable[[random.Random], Fault]] = {
    "fails late": lambda r: LATE,
    "fails late, as if for a dependency": lambda r: replace(
        FINE, change=said(1, "site: dependency on the ledger not met\n")
    ),
    "loses its answer": lambda r: replace(FINE, change=said(0, "")),
    "is killed late": lambda r: replace(FINE, change=said(-9, "")),
    "fails before": lambda r: Fault(None, 0.1, said(1, "site: no ledger\n")),
    "fails before, in another language": lambda r: Fault(None, 0.1, FRENCH),
    "does nothing": lambda r: Fault(None, 0.1, said(0, "")),
    "is slow": lambda r: Fault(r.uniform(0, 5), r.uniform(5, 29)),
    "is too slow": lambda r: Fault(
        r.uniform(1, 60), 30.0, lambda end: _End(end.program, None, late="no answer within 30 s")
    ),
    "greets": lambda r: replace(FINE, change=_greeted),
    "is cut": lambda r: replace(FINE, change=_cut(r.random())),
    "is old": lambda r: replace(FINE, stale=r.uniform(5, 40)),
}


def _greeted(end: _End) -> _End:
    return replace(end, out=f"Welcome to the cluster\n{end.out}", said=f"note: be kind\n{end.said}")


def _cut(share: float) -> Callable[[_End], _End]:
    return lambda end: replace(end, out=end.out[: int(share * len(end.out))])


class Trouble:
    """For each program: in which way it fails, for how long, and then in which."""

    def __init__(self, chance: random.Random, loop: PretendLoop, rate: float) -> None:
        self._chance, self._loop, self._rate = chance, loop, rate
        self._now: dict[str, tuple[float, str]] = {}

    def __call__(self, program: str, arguments: Sequence[str]) -> Fault:
        until, kind = self._now.get(program, (0.0, ""))
        if self._loop.now >= until:
            some = self._chance.random() < self._rate
            kind = self._chance.choice(list(KINDS)) if some else ""
            until = self._loop.now + self._chance.choice((0.0, 10.0, 200.0)) * self._chance.random()
            self._now[program] = until, kind
        return KINDS[kind](self._chance) if kind else FINE


@dataclass
class Wanted:
    """A job of the history: what it needs, its attempt under way, and how it ended at last."""

    job: Job
    needs: str = ""
    number: int = 0
    stopped: bool = False
    outcome: object = None

    @property
    def attempt(self) -> AttemptId:
        return AttemptId(self.job.name, self.number)


class History:
    """A run as the core would have it: what was interrupted or lost goes again."""

    def __init__(self, at: Path, faults: Faults | None = None) -> None:
        self.loop = PretendLoop()
        for entry in ("logs", "out", "results", "ends"):
            (at / entry).mkdir(parents=True)
        self.run = RunDir(at)
        with self.loop.clock():
            self.cluster = PretendCluster(self.loop, self.run)
        self.faults: Faults = faults or fine
        self.wanted: dict[str, Wanted] = {}
        self.open: set[AttemptId] = set()
        self.behind: dict[AttemptId, tuple[AttemptId, ...]] = {}
        self.events: list[Event] = []
        self.told: list[Ended] = []
        self.begun: list[tuple[float, Started]] = []
        self.warned: list[str] = []
        self.epoch = 0
        self.restart()

    def restart(self) -> None:
        """A new launcher, the one before being gone."""
        with self.loop.clock():
            if self.epoch:
                self._clear()
            self.epoch += 1
            self.programs = Programs(self.loop, self.cluster, self._fault)
            context = RunContext(
                self.run, "run", self.epoch, MachineLimits(2, 2, str(self.run.path / "cache")),
                {"PATH": "/bin"}, warn=lambda job, text: self.warned.append(text),
            )  # fmt: skip
            self.engine = SlurmEngine(
                context, Settings(), self.loop, self.events.append, slurm=self.programs
            )
            if self.epoch > 1:
                self.engine.adopt(sorted(self.open))

    def _fault(self, program: str, arguments: Sequence[str]) -> Fault:
        return self.faults(program, arguments)

    def _clear(self) -> None:
        """What the launcher had planned; calls that are on their way still act."""
        self.engine.close()
        self.events.clear()
        self.loop.drop("slurm:", "answer ")

    # ── What is done to it ──────────────────────────────────────────────────────────────────────

    def add(self, name: str, plan: Plan, needs: str = "", gpus: int = 1) -> None:
        job = Job(name, "true", demand=Demand(gpus=gpus))
        self.wanted[name] = Wanted(job, needs)
        self.cluster.plans[name] = plan
        self.launch(name)

    def launch(self, name: str) -> None:
        """Its next attempt; behind what it needs, where that is not over."""
        wanted = self.wanted[name]
        need = self.wanted.get(wanted.needs)
        if need is not None and need.outcome not in (None, Exited(0)):
            wanted.outcome = "skipped"
            return
        wanted.number += 1
        after = () if need is None or need.outcome is not None else (need.attempt,)
        self.behind[wanted.attempt] = after
        self.open.add(wanted.attempt)
        with self.loop.clock():
            self.engine.carry_out(Launch(wanted.attempt, wanted.job, (), after=after))

    def cancel(self, name: str) -> None:
        wanted = self.wanted[name]
        if wanted.attempt in self.open:
            wanted.stopped = True
            with self.loop.clock():
                self.engine.carry_out(StopAttempt(wanted.attempt, "cancelled", "a test"))

    def turn(self) -> None:
        with self.loop.clock():
            self.loop.turn()
        events, self.events[:] = list(self.events), []
        for event in events:
            if isinstance(event, Ended):
                self._hear(event)
            elif isinstance(event, Started):
                self.begun.append((self.loop.now, event))

    def until(self, condition: Callable[[], bool], seconds: float = LONGEST) -> None:
        end = self.loop.now + seconds
        while not condition():
            assert self.loop.now < end, f"not within {seconds} s: {self.open} {self.warned}"
            self.turn()

    def passes(self, seconds: float) -> None:
        end = self.loop.now + seconds
        self.until(lambda: self.loop.now >= end, seconds + 3600)

    def _hear(self, ended: Ended) -> None:
        attempt, truth = ended.attempt, self.cluster.truth
        self.told.append(ended)
        assert attempt in self.open, f"{attempt} ends twice"
        self.open.remove(attempt)
        assert str(attempt) not in truth.alive, f"{attempt} lives, told {ended.outcome}"
        wanted, outcome = self.wanted[attempt.job], ended.outcome
        if outcome != Exited(0):
            self._take_back([other for other in self.open if attempt in self.behind[other]])
        really = truth.ends.get(str(attempt), "never began")
        if isinstance(outcome, Exited):
            assert really == f"exited {outcome.code}", f"{attempt}: {really}, told {outcome}"
            wanted.outcome = outcome
        elif isinstance(outcome, Cancelled) or wanted.stopped:
            assert wanted.stopped, f"{attempt}: {really}, told {outcome}"
            wanted.outcome = outcome
        else:
            assert not really.startswith("exited"), f"{attempt}: {really}, told {outcome}"
            assert isinstance(outcome, Interrupted | Lost | NotStarted), f"{attempt}: {outcome}"
            assert wanted.number < 60, f"{attempt} is tried for ever"
            self.launch(attempt.job)

    def _take_back(self, behind: Sequence[AttemptId]) -> None:
        """What waits for something that did not succeed; as the core does it."""
        for attempt in behind:
            with self.loop.clock():
                self.engine.carry_out(StopAttempt(attempt, "interrupted", "what it needs"))

    # ── What holds in the end ───────────────────────────────────────────────────────────────────

    @property
    def over(self) -> bool:
        return not self.open

    def finish(self) -> None:
        """Everything ends; nothing of it is begun, or in the queue, after that."""
        self.until(lambda: self.over)
        assert all(wanted.outcome is not None for wanted in self.wanted.values())
        self.faults = fine
        began = len(self.cluster.truth.began)
        self.passes(300.0)
        assert len(self.cluster.truth.began) == began
        left = [task for task in self.cluster.tasks if not task.over]
        assert not left, f"left in the queue: {left}"

    def in_order(self, name: str) -> bool:
        """Whether it began, if at all, after what it needs had succeeded."""
        succeeded = False
        for _, word, attempt in self.cluster.truth.history:
            job = attempt.rpartition(".")[0]
            succeeded = succeeded or (job, word) == (self.wanted[name].needs, "exited 0")
            if (job, word) == (name, "begins"):
                return succeeded or not self.wanted[name].needs
        return True

    def starts(self, name: str) -> int:
        return sum(each.rpartition(".")[0] == name for each in self.cluster.truth.began)


def played(at: Path, seed: int) -> History:
    """One history by its seed, to its end; what its cluster does is in order."""
    chance = random.Random(seed)
    history = History(at)
    history.faults = Trouble(chance, history.loop, chance.choice((0.1, 0.3, 0.6)))
    names = [f"j{n}" for n in range(chance.randint(1, 9))]
    for place, name in enumerate(names):
        needs = chance.choice(names[:place]) if place and chance.random() < 0.4 else ""
        plan = Plan(chance.choice((2.0, 20.0, 100.0, 400.0)), chance.choice((0, 0, 0, 3)))
        history.add(name, plan, needs, chance.randint(0, 2))
        if chance.random() < 0.4:
            history.passes(chance.uniform(0, 30))
    for _ in range(chance.choice((0, 0, 1, 4))):
        history.passes(chance.uniform(0, 150))
        if chance.random() < 0.5:
            history.restart()
        else:
            history.cancel(chance.choice(names))
    history.finish()
    for name, wanted in history.wanted.items():
        assert history.starts(name) <= 1, f"{name} was begun {history.starts(name)} times"
        assert history.in_order(name), f"{name} began before {wanted.needs} had succeeded"
        if not wanted.stopped and wanted.outcome != "skipped":
            assert wanted.outcome == Exited(history.cluster.plans[name].code)
    return history
