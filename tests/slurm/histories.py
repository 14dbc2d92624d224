"""Random histories of a run on a pretend Slurm, by seed.

`played`: Slurm's programs fail in every way. `lived`: everything else happens as well: controllers
die and forget, jobs are requeued, nodes die, records show late, people cancel and hold, launchers
are killed, paused and stopped. What is told of each attempt is held against what really happened to
it, after each step.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.wording import cause, run_reason
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import (
    Asked,
    Ended,
    Event,
    HoldQueue,
    Launch,
    OutOfReach,
    Stop,
    StopAttempt,
    StopReason,
)
from gpulaunch.core.facts import AttemptQueued, AttemptStarted
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    Exited,
    Interrupted,
    Job,
    Lost,
    NotStarted,
    TimedOut,
)
from gpulaunch.engines.context import RunContext
from gpulaunch.engines.environment import EnvironmentMaker, MachineLimits
from gpulaunch.engines.slurm.commands import _End
from gpulaunch.engines.slurm.engine import SlurmEngine
from gpulaunch.engines.slurm.outcome import NFS_VISIBILITY_TIMEOUT
from gpulaunch.engines.slurm.rundir import SlurmDir
from tests.slurm.programs import Fault, Faults, Programs
from tests.slurm.world import BEAT, Plan, PretendCluster, PretendLoop

LONGEST = 6 * 3600.0
"""Seconds of the pretend clock within which every history ends."""
FINE = Fault()


def fine(program: str, arguments: Sequence[str]) -> Fault:
    return FINE


def said(code: int | None, words: str, out: str = "") -> Callable[[_End], _End]:
    """An answer that says this, whatever the program would have said."""
    return lambda end: _End(end.program, code, out, words)


LATE = replace(FINE, change=said(1, "site: cannot write to the ledger: quota\n"))
DOWN = Fault(None, 10.0, said(1, "error: Unable to contact slurm controller (connect failure)\n"))
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


class Wanted(Struct):
    """A job of the history: what it needs, its attempt under way, and how it ended at last."""

    job: Job
    needs: str = ""
    number: int = 0
    stopped: bool = False
    person: bool = False  # cancelled in Slurm by a person
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
        self.run = SlurmDir(at)
        self.cluster = PretendCluster(self.loop, self.run)
        self.faults: Faults = faults or fine
        self.wanted: dict[str, Wanted] = {}
        self.open: set[AttemptId] = set()
        self.queued: set[AttemptId] = set()
        self.out_of_reach: list[str] = []
        self.asked_to_stop: list[str] = []
        self.down_until = 0.0
        self.calm = False
        self.paused = False
        self.seen: list[str] = []
        self.stops: dict[str, float] = defaultdict(lambda: -1e9)
        self.behind: dict[AttemptId, tuple[AttemptId, ...]] = {}
        self.events: list[Event] = []
        self.told: list[Ended] = []
        self.begun: list[tuple[float, AttemptStarted]] = []
        self.warned: list[str] = []
        self.epoch = 0
        self.restart()

    def restart(self, paused: bool = False) -> None:
        """A new launcher, the one before being gone; `paused`: outside of the run's hours."""
        if self.epoch:
            self._clear()
        self.epoch += 1
        self.began_at = self.loop.now
        self.paused, self.cluster.paused_at = False, None  # which adopting undoes
        self.programs = Programs(self.loop, self.cluster, self._fault)
        context = RunContext(
            self.run, "run", self.epoch,
            EnvironmentMaker(MachineLimits(2, 2, str(self.run.path / "cache")), {"PATH": "/bin"}),
            self.loop, self.events.append,
            warn=lambda job, text: self.warned.append(text),
        )  # fmt: skip
        self.engine = SlurmEngine(context, (), 5.0, self.programs, clock=lambda: self.loop.now)
        if paused:
            self.pause(True)
        if self.epoch > 1:
            self.engine.adopt(sorted(self.open))

    def _fault(self, program: str, arguments: Sequence[str]) -> Fault:
        if self.loop.now < self.down_until:
            return DOWN
        return self.faults(program, arguments)

    def _clear(self) -> None:
        """What the launcher had planned; calls that are on their way still act."""
        self.engine.close()
        self.events.clear()
        self.loop.drop("slurm:", "answer ")

    # ── What is done to it ──────────────────────────────────────────────────────────────────────

    def add(
        self,
        name: str,
        plan: Plan,
        needs: str = "",
        gpus: int = 1,
        timeout: float | None = None,
    ) -> None:
        job = Job(name, "true", demand=Demand(gpus=gpus), timeout=timeout)
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
        self.engine.carry_out(Launch(wanted.attempt, wanted.job, (), after=after))

    def cancel(self, name: str, now: bool = False, all_: bool = False) -> None:
        wanted = self.wanted[name]
        if wanted.attempt in self.open:
            wanted.stopped = True
            self.stops.setdefault(str(wanted.attempt), self.loop.now)
            reason: StopReason = "interrupted" if all_ else "cancelled"
            self.engine.carry_out(StopAttempt(wanted.attempt, reason, Quoted("a test"), now=now))

    def stop(self, now: bool = False) -> None:
        """Ctrl-C; `now`: the second one."""
        for name in list(self.wanted):
            self.cancel(name, now, all_=True)
            if self.wanted[name].outcome is None:
                self.wanted[name].stopped = True

    def pause(self, on: bool) -> None:
        self.paused = on
        self.cluster.paused_at = self.loop.now if on and self.calm else None
        self.engine.carry_out(HoldQueue(on))

    def turn(self) -> None:
        self.loop.turn()
        events, self.events[:] = list(self.events), []
        for event in events:
            match event:
                case Ended():
                    self._hear(event)
                case AttemptQueued(attempt):
                    assert attempt in self.open, f"{attempt} is queued after its end"
                    self.queued.add(attempt)
                case AttemptStarted(attempt):
                    assert attempt in self.open, f"{attempt} starts after its end"
                    assert attempt in self.queued, f"{attempt} starts and was never queued"
                    assert self.run.start(attempt).exists(), f"{attempt} starts without a claim"
                    self.begun.append((self.loop.now, event))
                case OutOfReach():
                    down = self.loop.now < self.down_until + 60.0
                    assert down or self.faults is not fine, "Slurm is within reach"
                    assert all(self.wanted[one.job].stopped for one in self.open)
                    self.out_of_reach.append(run_reason(event.why))
                case Asked(Stop(why)):
                    self.asked_to_stop.append(cause(why))
        if self.calm:
            # An adopted attempt is cancelled only once the queue has shown that it is one's own.
            since = {
                n: max(self.stops[n], self.began_at + 6.0) for _, n in self.cluster.truth.useless
            }
            late = [n for at, n in self.cluster.truth.useless if at > since[n] + 2.0]
            assert not late, f"started for nothing, where nothing went wrong: {late}"
            twice = [name for name, count in self.cluster.given.items() if count > 1]
            assert not twice, f"handed over twice: {twice}"

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
        truth.closed.add(str(attempt))
        assert str(attempt) not in truth.alive, f"{attempt} lives, told {ended.end.outcome}"
        wanted, outcome = self.wanted[attempt.job], ended.end.outcome
        if outcome != Exited(0):
            self._take_back([other for other in self.open if attempt in self.behind[other]])
        really = truth.ends.get(str(attempt), "never began")
        if isinstance(outcome, Exited):
            assert really == f"exited {outcome.code}", f"{attempt}: {really}, told {outcome}"
            wanted.outcome = outcome
        elif isinstance(outcome, TimedOut):
            assert really == "out of time", f"{attempt}: {really}, told {outcome}"
            wanted.outcome = outcome
        elif isinstance(outcome, Cancelled) or wanted.stopped:
            assert wanted.stopped or wanted.person, f"{attempt}: {really}, told {outcome}"
            wanted.outcome = outcome
        else:
            assert not really.startswith("exited"), f"{attempt}: {really}, told {outcome}"
            assert isinstance(outcome, Interrupted | Lost | NotStarted), f"{attempt}: {outcome}"
            if isinstance(outcome, Lost) and really != "never began":
                silent = self.loop.now - truth.gone_at(str(attempt))
                assert silent > NFS_VISIBILITY_TIMEOUT - BEAT, f"{attempt}: lost after {silent}"
            assert wanted.number < 60, f"{attempt} is tried for ever"
            self.launch(attempt.job)

    def _take_back(self, behind: Sequence[AttemptId]) -> None:
        """What waits for something that did not succeed; as the core does it."""
        for attempt in behind:
            self.engine.carry_out(StopAttempt(attempt, "interrupted", Quoted("what it needs")))

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


def lived(at: Path, seed: int) -> History:
    """One history in which anything may happen, by its seed, to its end."""
    chance = random.Random(seed)
    history = History(at)
    cluster = history.cluster
    kinds = chance.choice((QUIET, QUIET, ROUGH, ROUGH, WILD))
    history.calm = kinds is QUIET
    if kinds is WILD:
        cluster.prompt = False
        history.faults = Trouble(chance, history.loop, chance.choice((0.1, 0.3)))
    if chance.random() < 0.5:
        cluster.shows = lambda: chance.choice((0.0, 1.0, 10.0, 40.0))
    if kinds is not QUIET:
        cluster.remembers = chance.choice((30.0, 300.0))
    cluster.driver_takes = chance.choice((0.0, 0.0, 1.0, 20.0))
    names = [f"j{n}" for n in range(chance.randint(1, 12))]
    for place, name in enumerate(names):
        needs = chance.choice(names[:place]) if place and chance.random() < 0.4 else ""
        plan = Plan(chance.choice((2.0, 20.0, 100.0, 400.0)), chance.choice((0, 0, 0, 3)))
        history.add(name, plan, needs, chance.choice((0, 1, 1, 2)))
        if chance.random() < 0.3:
            history.passes(chance.uniform(0, 30))
    for _ in range(chance.choice((1, 3, 6, 12))):
        history.passes(chance.choice((0.01, 0.1, 1.0, 10.0, 100.0)) * chance.random())
        happens(history, chance, chance.choice(kinds))
        if history.out_of_reach and history.open:
            history.out_of_reach.clear()
            history.restart()
    if history.paused:
        history.pause(False)
    cluster.frees()
    history.finish()
    assert all(history.in_order(name) for name in names)
    return history


QUIET = ("cancel", "stop", "stop now", "restart", "pause", "go on", "person cancels", "restart")
ROUGH = (
    *QUIET, "requeue", "preempt", "node dies", "forgotten", "down", "killed", "killed and reused",
    "person holds", "person frees", "wait", "taken for dead", "out of time", "node is lost",
)  # fmt: skip
WILD = ROUGH


def happens(history: History, chance: random.Random, what: str) -> None:
    """One thing that happens to a run on a cluster."""
    cluster = history.cluster
    history.seen.append(what)
    names = list(history.wanted)
    ours = [task for task in cluster.tasks if task.ours and task.batch != "probe"]
    running = [task for task in ours if task.state == "RUNNING"]
    waiting = [task for task in ours if task.state == "PENDING" and task.index is not None]
    match what:
        case "cancel":
            history.cancel(chance.choice(names), now=chance.random() < 0.2)
        case "stop" | "stop now":
            history.stop(now=what == "stop now")
        case "restart":
            history.restart()
        case "pause" | "go on":
            history.pause(what == "pause")
            history.passes(chance.choice((0.0, 60.0)))
        case "person cancels" if running or waiting:
            task = chance.choice(running + waiting)
            for name in names:
                history.wanted[name].person = True
            cluster.cancels([str(task)])
        case "person holds" if waiting:
            cluster.holds(chance.choice(waiting))
        case "person frees" if not history.paused:
            cluster.frees()
        case "requeue" | "preempt" if running:
            cluster.requeue(chance.choice(running), what == "preempt")
        case "taken for dead" if running:
            cluster.takes_for_dead(chance.choice(running))
        case "node dies" if running:
            cluster.fail_node(chance.choice(running))
        case "out of time" if running:
            cluster.reaches_limit(chance.choice(running), minutes=5)
        case "node is lost" if running:
            cluster.loses_node(chance.choice(running))
        case "forgotten" if running:
            cluster.forget(chance.choice(running))
        case "down":
            history.down_until = history.loop.now + chance.choice((5.0, 60.0, 600.0))
        case "killed" | "killed and reused":
            cluster.kill()
            if what == "killed and reused":
                cluster.strange(chance.randint(1, 5))
            history.down_until = history.loop.now + chance.choice((0.0, 20.0))
