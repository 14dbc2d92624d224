"""A strict pretend cluster for the core: an engine that queues and places attempts by itself.

What it has goes on while no supervisor looks. It starts attempts in an order of the seed's
choosing, loses some, cuts some short, and takes the client's death at any moment: between two
facts, between a fact and its instruction, with attempts queued or running.
"""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpulaunch.core.causes import Because, EndCause, Hint, Quoted
from gpulaunch.core.events import (
    Asked,
    Cancel,
    DrainGpus,
    Ended,
    Event,
    GangGranted,
    GoOn,
    Granted,
    HoldQueue,
    Instruction,
    Launch,
    Misplaced,
    Pause,
    PullImage,
    Request,
    Retry,
    SetTimer,
    Stop,
    StopAttempt,
    Submitted,
    Timer,
    TimerFired,
    WorkerEnded,
)
from gpulaunch.core.facts import AttemptQueued, AttemptStarted, Fact, RunOpened
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Demand,
    End,
    Exited,
    Failure,
    Gpu,
    ImageSource,
    Instant,
    Interrupted,
    Job,
    Lost,
    MissingOutput,
    NotStarted,
    Outcome,
    Signaled,
    TimedOut,
)
from gpulaunch.core.reasons import PausedBy
from gpulaunch.core.retry import POLICIES
from gpulaunch.core.run import Run
from tests.core.check import check, check_definition
from tests.core.edits import Edited
from tests.core.ladders import LadderRule
from tests.core.options import config
from tests.core.pulls import Pulls
from tests.core.timers import timer_name
from tests.core.world import EPOCH, turn

MOST_STEPS = 20_000

CANCELLED = Because("cancelled")


@dataclass
class Entry:
    """An attempt that was handed over and has not ended. `known`: the queue has it."""

    attempt: AttemptId
    job: Job
    after: tuple[AttemptId, ...] = ()
    share: tuple[str, int] | None = None
    known: bool = False
    cards: tuple[Gpu, ...] | None = None
    asked: str = ""
    by: EndCause = CANCELLED

    @property
    def runs(self) -> bool:
        return self.cards is not None


class Cluster:
    """`nodes` machines with `cards` each, one run, and what its client is told and says."""

    def __init__(
        self,
        jobs: Sequence[Job],
        rng: random.Random,
        nodes: int,
        cards: int,
        most: int,
        limits: dict[str, int],
        limit: int | None,
        **options: Any,
    ) -> None:
        self.rng, self.now, self.calm = rng, 100.0, False
        self.epoch, self.latest = EPOCH, 0.0  # of the clock on the wall, which may be set
        self.dues: dict[str, float] = {}  # as first read
        self.cards = [
            Gpu(f"n{n}/{i}", i, f"n{n}/{i}", "", 0, node=f"n{n}")
            for n in range(nodes)
            for i in range(cards)
        ]
        self.widest = cards
        self.list = Edited(jobs)
        self.most, self.limits, self.limit = most, limits, limit
        self.options = options
        self.entries: dict[AttemptId, Entry] = {}
        self.ends: dict[AttemptId, Ended] = {}
        self.just_ended: set[AttemptId] = set()
        self.inbox: deque[Event] = deque()
        self.timers: dict[Timer, float] = {}
        self.stopped = self.held = False
        self.paused: set[PausedBy] = set()
        self.begun: Counter[AttemptId] = Counter()
        self.misplaced: set[AttemptId] = set()
        self.done: set[str] = set()
        self.left: list[AttemptId] = []
        self.crashes = self.ahead = self.shared = 0
        self.pulls = Pulls()
        self.pulling: list[ImageSource] = []
        self.log: list[str] = []
        self.replayed = Ledger()
        self.ladders = LadderRule()
        self._open(self.replayed)
        self.run = self._run()
        self.tell(Submitted(self.jobs))

    @property
    def instant(self) -> Instant:
        self.latest = max(self.latest, self.now + self.epoch)
        return Instant(self.now, self.now + self.epoch)

    # ── The client ──────────────────────────────────────────────────────────────────────────────

    def _open(self, ledger: Ledger) -> None:
        fact = RunOpened(
            "r", "r", ledger.opening.epoch + 1, "0", "login", "b", 1, (), engine="slurm"
        )
        ledger.apply(fact, self.instant)

    def _run(self) -> Run:
        options = config(queue=self.most, limits=self.limits, limit=self.limit, **self.options)
        return Run((), options, copy.deepcopy(self.replayed))

    def tell(self, *events: Event) -> None:
        """Hand events in together, and carry out what comes back, strictly."""
        self.just_ended = {event.attempt for event in events if isinstance(event, Ended)}
        for event in events:
            self.pulls.hear(event, self.run)
            for job in event.jobs if isinstance(event, Submitted) else ():
                if job.not_before is not None:
                    self.dues.setdefault(job.name, job.not_before.utc)
        results = self._handle(events)
        self._record([r for r in results if not isinstance(r, Instruction)])
        for result in results:
            if isinstance(result, Instruction):
                self._carry_out(result)
        check(self.run)
        self.pulls.check_heard(self.run, len(events) == 1)
        for record in self.run.ledger.open_attempts():
            state = self.run.ledger.jobs[record.id.job].state
            expected = "running" if record.started else "waiting"
            assert state == expected, f"{record.id} is recorded as {state}"

    def _handle(self, events: Sequence[Event]) -> list[Fact | Instruction]:
        self.log += [f"{self.now:9.3f} <- {event!r}"[:300] for event in events]
        results = self.run.handle(events, self.instant)
        self.log += [f"          -> {result!r}"[:300] for result in results]
        return results

    def _record(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.replayed.apply(fact, self.instant)
            self.ladders.see(fact)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._launch(instruction)
            case PullImage(source):
                self.pulls.ask(instruction, self.closed)
                self.pulling.append(source)
            case StopAttempt(attempt, reason, by, _):
                entry = self.entries.get(attempt)
                known = entry or attempt in self._under_way() or attempt in self.left
                known = known or attempt in self.just_ended
                assert known, f"StopAttempt({attempt}), which is not under way"
                assert reason in ("cancelled", "interrupted")
                if entry is not None:
                    entry.asked, entry.by = reason, by
            case HoldQueue(on):
                assert on == (self.run.ledger.paused is not None), f"{instruction!r}"
                self.held = on
            case SetTimer(timer, at):
                assert at > self.now, f"{timer} in the past"
                self.timers[timer] = at
            case _:
                raise AssertionError(f"{instruction!r}: cards are not the run's")

    def _launch(self, launch: Launch) -> None:
        attempt, job, demand = launch.attempt, launch.job, launch.job.demand
        check_definition(launch.job, self.jobs)
        self.pulls.check_launch(launch.job)
        assert not launch.gpus, f"Launch({attempt}) on a card"
        assert launch.worker is None, f"Launch({attempt}) in a worker"
        assert not self.closed, f"Launch({attempt}) while nothing may start"
        due = self.dues.get(job.name, 0.0)
        assert due <= self.latest, f"Launch({attempt}) {due - self.latest} seconds too early"
        record = self.run.ledger.attempt(attempt)
        assert record.queued, f"Launch({attempt}) is not on record as queued"
        mine = self._under_way()
        assert attempt not in mine, f"Launch({attempt}) twice"
        assert job.name not in {other.job for other in mine}, f"{job.name} is under way already"
        assert attempt not in self.ends, f"Launch({attempt}), which has ended"
        assert job.name not in self.done, f"{job.name} is done and runs again"
        assert len(mine) < self.most, f"Launch({attempt}) as one of {len(mine) + 1}"
        for need in job.needs:
            ahead = [other for other in launch.after if other.job == need]
            done = self.run.ledger.jobs[need].state == "succeeded"
            assert done != bool(ahead), f"{attempt} before {need}, after {launch.after}"
            for first in ahead:
                assert self.run.ledger.attempt(first).is_open, f"{attempt} after {first}: ended"
        assert len(launch.after) <= len(job.needs), f"{attempt} after {launch.after}"
        assert not (launch.after and demand.uses), f"{attempt} holds tokens ahead of its needs"
        self.ahead += bool(launch.after)
        for other in job.after:
            record = self.run.ledger.jobs.get(other)
            over = record is None or record.vanished or record.state not in ("waiting", "running")
            assert over, f"{attempt} before {other} has ended"
        demands = [self._demand(other) for other in mine] + [demand]
        gpus = sum(each.gpus for each in demands)
        assert self.limit is None or not demand.gpus or gpus <= self.limit, f"{attempt}: cards"
        if launch.share is None:
            self._check_tokens(attempt, demand, mine)
        else:
            self.shared += 1
            token, at_once = launch.share
            assert at_once * demand.uses.count(token) <= self.limits.get(token, 1), f"{attempt}"
            assert set(demand.uses) == {token}, f"{attempt} shares {token} and uses more"
        self.entries[attempt] = Entry(attempt, job, launch.after, launch.share)

    def _check_tokens(self, attempt: AttemptId, demand: Demand, mine: Sequence[AttemptId]) -> None:
        used = Counter(demand.uses)
        shared: Counter[tuple[str, int]] = Counter()
        for other in mine:
            entry, uses = self.entries.get(other), self._demand(other).uses
            if entry is not None and entry.share is not None and uses:
                shared[entry.share] += 1
            else:
                used.update(uses)
        for (token, at_once), count in shared.items():
            used[token] += min(at_once, count)
        for token in demand.uses:
            assert used[token] <= self.limits.get(token, 1), f"{attempt}: tokens of {token}"

    def _under_way(self) -> list[AttemptId]:
        """What the run counts on: handed over, and its end not told yet."""
        untold = [event.attempt for event in self.inbox if isinstance(event, Ended)]
        untold = [a for a in untold if self.run.ledger.attempt(a).is_open]
        return list(dict.fromkeys([*self.entries, *untold]))

    def _as_filed(self, entry: Entry) -> bool:
        """It runs, and the run knows it to use what it was handed over with."""
        return entry.runs and entry.job.demand.uses == self._demand(entry.attempt).uses

    def _demand(self, attempt: AttemptId) -> Demand:
        """As the run knows it: of one that went on, what the job file says now."""
        job = self.run.job(attempt.job)
        return job.demand if job else Demand(self.run.ledger.jobs[attempt.job].definition.gpus)

    @property
    def closed(self) -> bool:
        return self.stopped or bool(self.paused) or self.run.ledger.paused is not None

    # ── Its death ───────────────────────────────────────────────────────────────────────────────

    def crash(self, jobs: Sequence[Job]) -> None:
        """SIGKILL of the client, perhaps in the middle of a turn; another one takes the run up.

        Of the last events only some facts were recorded, and no instruction was carried out.
        """
        if self.inbox and self.rng.random() < 0.5:
            facts = [r for r in self._handle(self._arrived()) if not isinstance(r, Instruction)]
            self._record(facts[: self.rng.randint(0, len(facts))])
        self.inbox.clear()
        self.pulling.clear()
        self.pulls.forget(self.replayed)
        self.timers.clear()
        self.stopped = self.held = False
        self.paused = set()
        self.crashes += 1
        self.list.jobs = tuple(jobs)
        self.log.append(f"{self.now:9.3f} -- the client is killed")
        for entry in list(self.entries.values()):
            if not entry.known and self.rng.random() < 0.5:
                del self.entries[entry.attempt]  # it was never submitted
        if self.rng.random() < 0.5:
            self._happen()
        self._open(self.replayed)
        self.left = [record.id for record in self.replayed.open_attempts()]
        unheard = self.entries.keys() - set(self.left)
        assert not unheard, f"{unheard} are under way, and the journal knows nothing of them"
        states = {name: record.state for name, record in self.replayed.jobs.items()}
        again = {n for n, state in states.items() if state in ("failed", "skipped", "cancelled")}
        self.run = self._run()
        self.tell(Submitted(self.jobs, frozenset(again)))
        self._adopt()

    def _adopt(self) -> None:
        left, self.left = self.left, []
        for attempt in left:
            entry, end = self.entries.get(attempt), self.ends.get(attempt)
            if entry is not None and entry.cards is not None:
                self._say_started(entry)
            elif entry is None:
                told = end or Ended(attempt, End(Interrupted(Quoted("it was never submitted"))))
                self.ends[attempt] = told
                self.inbox.append(told)

    # ── The cluster ─────────────────────────────────────────────────────────────────────────────

    def _happen(self) -> bool:
        """Let one thing happen in the cluster; False where nothing can."""
        entries = [entry for entry in self.entries.values() if self._may_move(entry)]
        if not entries:
            return False
        self._move(self.rng.choice(entries))
        return True

    def _may_move(self, entry: Entry) -> bool:
        if entry.runs or entry.asked or not entry.known:
            return True
        if self._held(entry) or not self.calm:
            return not self._held(entry)
        return self._room(entry) is not None or entry.job.demand.gpus > self.widest

    def _move(self, entry: Entry) -> None:
        if entry.asked and self.rng.random() < 0.6:
            self._end(entry, self._as_asked(entry))
        elif not entry.known:
            self._submit(entry)
        elif entry.runs:
            self._end(entry, self._outcome())
        elif self._in_vain(entry):
            self._end(entry, Interrupted(Quoted("a dependency did not succeed")))
        elif not self.calm and self.rng.random() < 0.05:
            lost: list[Outcome] = [
                Cancelled(),
                Lost(Quoted("forgotten")),
                Interrupted(Quoted("held, removed")),
            ]
            self._end(entry, self.rng.choice(lost))
        elif not self.held:
            room = self._room(entry)
            if room is not None:
                self._begin(entry, room)

    def _held(self, entry: Entry) -> bool:
        """What it comes after is still under way, or the whole queue is held."""
        return self.held or any(other in self.entries for other in entry.after)

    def _in_vain(self, entry: Entry) -> bool:
        ends = [self.ends.get(other) for other in entry.after]
        return any(end is None or end.end.outcome != Exited(0) for end in ends)

    def _submit(self, entry: Entry) -> None:
        refused = entry.job.demand.gpus > self.widest
        if refused or (not self.calm and self.rng.random() < 0.03):
            self._end(entry, NotStarted("Slurm refused it"))
            return
        entry.known = True
        self.inbox.append(AttemptQueued(entry.attempt, f"Slurm job {self.rng.randrange(99)}"))

    def _room(self, entry: Entry) -> tuple[Gpu, ...] | None:
        """Free cards of one node; None where there are not so many."""
        if entry.share is not None:
            others = [other for other in self.entries.values() if other.runs]
            if sum(other.share == entry.share for other in others) >= entry.share[1]:
                return None
        taken = {card for other in self.entries.values() for card in other.cards or ()}
        nodes = sorted({card.node for card in self.cards})
        self.rng.shuffle(nodes)
        for node in nodes:
            free = [card for card in self.cards if card.node == node and card not in taken]
            if len(free) >= entry.job.demand.gpus:
                return tuple(free[: entry.job.demand.gpus])
        return None

    def _begin(self, entry: Entry, cards: tuple[Gpu, ...]) -> None:
        assert self.run.ledger.paused is None or not self.held, f"{entry.attempt} began while held"
        self.begun[entry.attempt] += 1
        ends = [self.ends[other].end.outcome for other in entry.after]
        assert all(end == Exited(0) for end in ends), f"{entry.attempt} began after {ends}"
        assert self.begun[entry.attempt] == 1, f"{entry.attempt} was begun twice"
        entry.cards = cards
        self._check_running_tokens()
        self._say_started(entry)

    def _check_running_tokens(self) -> None:
        """The promise itself: whatever was handed over, no more of them run than there are.

        What the job file said otherwise when an attempt was handed over is not promised.
        """
        running = [
            entry.job.demand.uses for entry in self.entries.values() if self._as_filed(entry)
        ]
        used = Counter(token for uses in running for token in uses)
        for token, count in used.items():
            assert count <= self.limits.get(token, 1), f"{count} tokens of {token} in use"

    def _say_started(self, entry: Entry) -> None:
        node = entry.cards[0].node if entry.cards else "n0"
        self.inbox.append(AttemptStarted(entry.attempt, 4711, entry.cards or (), node))

    def _end(self, entry: Entry, outcome: Outcome) -> None:
        del self.entries[entry.attempt]
        failure = None
        if entry.runs and not self.calm and self.rng.random() < 0.4:
            told = tuple(card.uuid for card in entry.cards or ())
            failure = Failure(self.rng.choice(list(POLICIES)), "said so", (Hint("exit"),), told)
        ended = Ended(entry.attempt, End(outcome, failure, leftovers=self.rng.randrange(2)))
        self.ends[entry.attempt] = ended
        if outcome == Exited(0) and entry.attempt not in self.misplaced:
            self.done.add(entry.attempt.job)
        self.inbox.append(ended)
        if not self.calm and self.rng.random() < 0.05:
            self.inbox.append(ended)

    def _as_asked(self, entry: Entry) -> Outcome:
        return Cancelled() if entry.asked == "cancelled" else Interrupted(entry.by)

    def _outcome(self) -> Outcome:
        good: list[Outcome] = [Exited(0)] * 12
        bad: list[Outcome] = [
            Exited(3),
            Signaled(11),
            TimedOut("timeout", 7200.0),
            MissingOutput(("pred.cif",)),
            Lost(Quoted("the node is gone")),
            Interrupted(Quoted("node n1 failed")),
            Interrupted(Quoted("preempted")),
        ]
        return self.rng.choice(good if self.calm else good + bad)

    # ── Histories ───────────────────────────────────────────────────────────────────────────────

    def step(self) -> bool:
        """Let one thing happen. False when nothing can happen any more but what people do."""
        self.now += 0.001
        if self.inbox and self.rng.random() < 0.6:
            self._deliver()
        elif self.pulling and self.rng.random() < 0.3:
            self._answer_pull()
        elif not self._happen():
            if self.inbox:
                self._deliver()
            elif self.pulling:
                self._answer_pull()
            elif self.calm and self.run.ledger.paused is not None:
                self._ask(GoOn())  # many failed alike: somebody says that the rest is to go on
            else:
                return self._fire_timer()
        return True

    def _answer_pull(self) -> None:
        source = self.pulling.pop(self.rng.randrange(len(self.pulling)))
        self.inbox.extend(self.pulls.answer(source, self.rng, self.calm))

    def _arrived(self) -> list[Event]:
        """The oldest events, as many as came in one turn."""
        return [self.inbox.popleft() for _ in range(turn(self.rng, len(self.inbox)))]

    def _deliver(self) -> None:
        events = self._arrived()
        self.tell(*events)
        for event in events:
            if isinstance(event, AttemptStarted):
                record = self.run.ledger.attempt(event.attempt)
                expected = tuple(card.uuid for card in event.gpus)
                assert record.gpus == expected, f"{event.attempt} is recorded on {record.gpus}"

    def _fire_timer(self) -> bool:
        if not self.timers:
            return False
        timer, at = min(self.timers.items(), key=lambda due: (due[1], timer_name(due[0])))
        del self.timers[timer]
        self.now = max(self.now, at)
        self.tell(TimerFired(timer))
        return True

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.list.jobs

    def disturb(self) -> None:
        """Something that people do, or that nobody asked for."""
        rng, names = self.rng, [job.name for job in self.jobs]
        requests: list[Request] = [
            Cancel((rng.choice(names),)),
            Cancel((rng.choice(names),)),
            Retry(rng.choice([None, (rng.choice(names),)])),
            Retry(None),
            DrainGpus(None, now=True),
            Pause(
                None if rng.random() < 0.5 else Quoted("the disk is full"),
                rng.choice(["recorder", "asked", "hours"]),
            ),
            GoOn(),
        ]
        roll = rng.random()
        if roll < 0.04:
            self._ask(Cancel(None))
        elif roll < 0.08:
            self._ask(Stop(Quoted("SIGINT"), now=rng.random() < 0.4))
        elif roll < 0.7:
            self._ask(rng.choice(requests))
        elif roll < 0.75:
            self.epoch += rng.choice([-30.0, -0.5, 1.0, 300.0])
        else:
            self.tell(self._nonsense())

    def relist(self) -> None:
        """Somebody changes the list while the run lives."""
        self.tell(self.list.change(self.rng))

    def _nonsense(self) -> Event:
        nobody = AttemptId(self.rng.choice(self.jobs).name, 99)
        events: list[Event] = [
            AttemptQueued(nobody, "Slurm job 1"),
            AttemptStarted(nobody, 1, tuple(self.cards[:1]), "n0"),
            Ended(nobody, End(Exited(0))),
            WorkerEnded(nobody),
            GangGranted(),
            Granted(self.cards[0].uuid, 1),
            TimerFired(Timer("retry", nobody.job)),
            TimerFired(Timer("hold_out", nobody.job)),
            TimerFired(Timer("gang")),
            TimerFired(Timer("deadlock")),
            *self.pulls.nonsense(),
        ]
        running = [entry.attempt for entry in self.entries.values() if entry.runs]
        if running and self.rng.random() < 0.1:
            attempt = self.rng.choice(running)
            self.misplaced.add(attempt)
            return Misplaced(attempt, "n0/0", 7, "not its own")
        return self.rng.choice(events)

    def _ask(self, request: Request) -> None:
        if isinstance(request, Stop):
            self.stopped = True
        elif isinstance(request, Pause):
            (self.paused.discard if request.why is None else self.paused.add)(request.by)
        self.tell(Asked(request))

    def quiet_down(self) -> None:
        """From now on nobody interferes, and jobs succeed."""
        self.calm = True
        for by in sorted(self.paused):
            self._ask(Pause(None, by))
        self._ask(GoOn())

    def run_to_end(self) -> None:
        """The run must come to its end, in a bounded number of steps."""
        for _ in range(MOST_STEPS):
            if self.run.finished and not self.inbox:
                break
            assert self.step() or self.run.finished, f"stands still: {self._standing()}"
        else:
            raise AssertionError(f"no end after {MOST_STEPS} steps: {self._standing()}")
        self._check_end()

    def _standing(self) -> str:
        records = self.run.ledger.jobs.values()
        left = [record.name for record in records if record.state in ("waiting", "running")]
        return "; ".join(f"{name}: {self.run.why_waiting(name)}" for name in left)

    def _check_end(self) -> None:
        """Nothing is left, and the replayed journal gives the same state, job by job."""
        assert not self.entries, f"finished with {list(self.entries)} under way"
        live, replayed = self.run.ledger, self.replayed
        for name, record in live.jobs.items():
            assert record == replayed.jobs[name], f"{name}: replay differs"
        assert live == replayed, "the replayed ledger differs"
        busy = [card.gpu.uuid for card in live.gpus.values() if card.attempts]
        assert not busy, f"attempts are left on {busy}"
        state, reason = self.run.outcome()
        bad = [job.name for job in self.jobs if live.jobs[job.name].state != "succeeded"]
        assert reason if state != "succeeded" else not bad, f"{state} with {bad}, {reason!r}"
        for job in self.jobs:
            record = live.jobs[job.name]
            assert not record.vanished, f"{job.name} is in the list, and recorded as gone"
            assert record.reason != Because("not_in_file"), f"{job.name} is in the list"
            if record.state == "waiting":
                assert self.run.why_waiting(job.name), f"{job.name} waits without a reason"
            elif record.state in ("failed", "skipped", "cancelled"):
                assert record.reason, f"{job.name} {record.state} without a reason"
