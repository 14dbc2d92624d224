"""Where each job is on its ladder, told from a run's facts alone, by a rule of the test's own."""

from __future__ import annotations

from collections import defaultdict

from gpulaunch.core.events import Launch
from gpulaunch.core.facts import (
    AttemptEnded,
    AttemptLaunched,
    Fact,
    JobAdded,
    JobDelayed,
    JobSettled,
)
from gpulaunch.core.model import AttemptId, Exited, Ladder, LadderStep, MissingOutput, Stopped

LADDER = Ladder(("batch", "chunk"), (("32", "no"), ("16", "no"), ("16", "64"), ("8", "64")))


class LadderRule:
    """Sees each fact, in order; fails where an attempt starts at another step than it should."""

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.group: dict[str, int] = {}
        self.proven: defaultdict[int, int] = defaultdict(lambda: 1)
        self.charged: dict[str, bool] = {}
        self.well: dict[str, bool] = {}
        self.started: dict[AttemptId, LadderStep | None] = {}

    def see(self, fact: Fact) -> None:
        match fact:
            case JobAdded(name, group):
                self.group[name] = group
            case AttemptLaunched(attempt, step=step):
                self.started[attempt] = step
                if step is None:
                    return
                name = attempt.job
                wanted = max(self.own.get(name, 1), self.proven[self.group[name]])
                assert step == LADDER.step(wanted), f"{attempt} starts at {step}, not {wanted}"
                self.own[name] = wanted
            case AttemptEnded(attempt, end, charged):
                self.charged[attempt.job] = charged
                good = isinstance(end.outcome, Exited | Stopped)
                # A service that was stopped, as nobody needs it any more, owes no outputs.
                good = good or (isinstance(end.outcome, MissingOutput) and not charged)
                self.well[attempt.job] = good and end.failure is None
            case JobDelayed(name, step=step):
                moves = self.charged.get(name, False) and 0 < self.own.get(name, 0) < 4
                assert (step is not None) == moves, f"{name}: {fact}, at {self.own.get(name)}"
                self.own.update({name: self.own[name] + 1} if moves else {})
                self.charged[name] = False
            case JobSettled(name, "succeeded") if name in self.own and self.well[name]:
                group = self.group[name]
                self.proven[group] = max(self.proven[group], self.own[name])

    def launched(self, launch: Launch) -> None:
        assert (launch.step is None) == (launch.job.ladder is None), f"{launch}"
        assert launch.step == self.started[launch.attempt], f"{launch} is recorded otherwise"
