"""One run's decisions: `Run.handle(event, now)` returns the facts and the instructions.

    event ─▶ what it changes (jobs, attempts, cards) ─▶ Admission: what starts now ─▶ results

The run's ledger changes by the facts that are returned, and by nothing else: replaying the journal
gives the same state. Stale events (an end twice, a grant for a card not asked for, a timer for
nothing) are ignored. This module asks no clock and touches nothing outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from gpulaunch.core import check
from gpulaunch.core.active import ActiveAttempts
from gpulaunch.core.admission import Admission
from gpulaunch.core.breaker import Breaker
from gpulaunch.core.cards import Card, Cards
from gpulaunch.core.causes import Because, CardFailed, EndCause, Quoted
from gpulaunch.core.completion import Completion
from gpulaunch.core.deadlock import DeadlockBreaker
from gpulaunch.core.effects import Effects
from gpulaunch.core.events import (
    Asked,
    BecameReady,
    Cancel,
    CardRecheck,
    DeadlockCheck,
    Drained,
    DrainGpus,
    Ended,
    Event,
    Freed,
    GangGranted,
    GangTimeout,
    GoOn,
    GpuEvent,
    Granted,
    HolderChanged,
    HoldOutOver,
    HoldQueue,
    Instruction,
    LeaseEvent,
    LeaseLost,
    Misplaced,
    OutOfReach,
    Pause,
    Queued,
    Refused,
    RetriedAnew,
    Retry,
    RetryDue,
    SetTimer,
    Started,
    Stop,
    Submitted,
    Timer,
    TimerFired,
    Wanted,
    WorkerEnded,
    WorkerIdleTimeout,
)
from gpulaunch.core.facts import (
    AdmissionContinued,
    AdmissionPaused,
    AttemptQueued,
    AttemptStarted,
    Fact,
    GpuDrained,
    GpuReported,
    Noted,
    RunOpened,
    ServiceReady,
    StopAsked,
)
from gpulaunch.core.idle_workers import IdleWorkers
from gpulaunch.core.jobs import Jobs
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Failure, Gpu, Instant, Job, RunState
from gpulaunch.core.queueing import NO_BOUND, Queueing, WhyQueueing
from gpulaunch.core.reasons import (
    LeftWaiting,
    NothingStarts,
    RunReason,
    SomeFailed,
    TooManyFailed,
    WaitReason,
)
from gpulaunch.core.waiting import WAITING, Node
from gpulaunch.core.why import Why

STEPS = 1000
"""Deadlock steps in one event at most; what is left goes on after a timer of a millisecond."""
XID_OF_A_KILL = 45
"""The Xid (preemptive cleanup) that the driver also reports when a process on a card is killed."""


class Run:
    """A run from its jobs to its end.

    `queue`: how many attempts may be with an engine that queues and places by itself; `gpus` is
    empty then, and attempts that an earlier supervisor handed over go on. None: the run places
    them on `gpus`. `ahead`: that engine is also handed jobs whose needs are under way, to start
    them once those have succeeded.
    `limit`: cards held at once, None: all; `cpus`: CPUs that jobs without cards may take together;
    `limits`: tokens by name (1 where nothing is said); `max_failures`: failed jobs after which
    nothing new is started (`fail_fast`: 1). `breaker`: jobs that fail fast and alike in a row,
    after which nothing new is started; the run then waits for a person (`patient`), or ends.
    `pinned`: an attempt that is seen on a card of others fails; else that is only noted. `ledger`
    holds the RunOpened of this epoch.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        limit: int | None = None,
        cpus: int = 1,
        limits: Mapping[str, int] | None = None,
        fail_fast: bool = False,
        max_failures: int | None = None,
        breaker: int | None = None,
        patient: bool = False,
        pinned: bool = True,
        queue: int | None = None,
        ahead: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self._effects = Effects(_opened(gpus) if ledger is None else ledger)
        self._cpus = max(1, cpus) if queue is None else NO_BOUND
        self._limits = dict(limits or {})
        self._fail_fast = fail_fast
        self._max_failures = 1 if fail_fast else max_failures
        self._submitted = False
        self._killing = False
        self._out_of_reach: RunReason | None = None
        self._cards = Cards(gpus, limit, self._effects)
        self._attempts = ActiveAttempts(self._effects, queue is not None)
        self._jobs = Jobs(self._effects, self._retire)
        self._attempts.on_service_stopping = self._jobs.service_down
        self._breaker = Breaker(breaker)
        self._patient = patient
        self._pinned = pinned
        self._idle_workers = IdleWorkers(self._effects)
        self._completion = Completion(
            self._effects,
            self._cards,
            self._jobs,
            self._attempts,
            self._breaker,
            self._idle_workers,
            pinned,
            queue is not None,
        )
        self._reported: set[tuple[str, str, tuple[AttemptId, ...]]] = set()
        self._admission = self._admission_by(queue, limit, ahead)
        why = WhyQueueing if isinstance(self._admission, Queueing) else Why
        self._why = why(
            self._effects,
            self._cards,
            self._jobs,
            self._attempts,
            self._admission,
            self._limits,
            self._cpus,
        )
        self._deadlock = DeadlockBreaker(
            self._effects,
            self._cards,
            self._jobs,
            self._attempts,
            self._admission,
            self.why_waiting,
        )

    def _admission_by(self, queue: int | None, limit: int | None, ahead: bool) -> Admission:
        parts = (
            self._effects,
            self._cards,
            self._jobs,
            self._attempts,
            self._idle_workers,
            self._limits,
        )
        if queue is None:
            return Admission(*parts, self._cpus, self._closed)
        return Queueing(*parts, self._closed, queue, limit, ahead)

    # ── What the supervisor asks ────────────────────────────────────────────────────────────────

    @property
    def ledger(self) -> Ledger:
        return self._effects.ledger

    def job(self, name: str) -> Job | None:
        """Return the job as submitted, with its present demand; None for an unknown name."""
        node = self._jobs.nodes.get(name)
        return None if node is None else node.job

    def retried_by(self, names: tuple[str, ...] | None) -> list[str]:
        """Return the names of the jobs that a retry of these (None: all failed) would requeue."""
        return [node.name for node in self._jobs.to_retry(names)]

    def handle(self, event: Event, now: Instant) -> list[Fact | Instruction]:
        """Apply the event; return facts, each before the instructions that rest on it."""
        self._effects.now = now
        self._on(event)
        if not isinstance(event, Queued | Started):  # these two can start or end nothing
            self._settle_down()
        return self._effects.take()

    @property
    def finished(self) -> bool:
        """True once nothing runs or can ever run, and no lease is held; or the run is given up."""
        if self._out_of_reach:
            return True
        if not self._submitted or len(self._attempts) or self._cards.held():
            return False
        if len(self._idle_workers):
            return False
        return bool(self.ledger.stopping or self._halted() or not self._jobs.unsettled)

    def outcome(self) -> tuple[RunState, RunReason | None]:
        """Return how a finished run ended, and why where not every job succeeded."""
        if self._out_of_reach and len(self._attempts):
            return "interrupted", self._out_of_reach
        waiting = self._jobs.unsettled
        if self.ledger.stopping and waiting:
            return "stopped", self.ledger.stopping
        if halted := self._halted():
            return "failed", halted if waiting else _failures(self._jobs)
        if reason := _failures(self._jobs):
            return "failed", reason
        left = sum(
            node.excluded and self._jobs.record(node).state == "waiting" for node in self._jobs
        )
        if left:
            return "stopped", LeftWaiting(left)
        return "succeeded", None

    def why_waiting(self, name: str, now: Instant | None = None) -> WaitReason | None:
        """Return why a job waits; None for a job that does not wait.

        `now` is the time for durations in the reason; None: the time of the last event.
        """
        why = self._closed()
        closed = None if why is None else NothingStarts(why, why is self.ledger.paused)
        return self._why.of(name, closed, now or self._effects.now)

    def in_queue(self, name: str) -> AttemptId | None:
        """Return the job's attempt in the engine's queue, None for none.

        Why such an attempt waits, the engine knows.
        """
        record = self.ledger.jobs.get(name)
        return record.attempts[-1].id if record is not None and record.in_queue else None

    def check(self) -> None:
        """Raise AssertionError, with words, where an invariant does not hold."""
        check.check_jobs(self.ledger, self._jobs, self._attempts)
        check.check_cards(self.ledger, self._cards, self._attempts)
        check.check_workers(self.ledger, self._cards, self._idle_workers)
        check.check_counters(self._attempts, self._limits, self._cpus)
        if self._submitted and not self._closed() and isinstance(self._admission, Queueing):
            check.check_queue(self._jobs, self._attempts, self._admission, self._limits)
        elif self._submitted and not self._closed():
            check.check_idle(self._cards, self._jobs, self._idle_workers, self._admission)
        assert not (self.finished and self._cards.held()), "a finished run holds a lease"

    # ── Events ──────────────────────────────────────────────────────────────────────────────────

    def _on(self, event: Event) -> None:
        match event:
            case Submitted() if not self._submitted:
                self._submit(event)
            case Queued(attempt, id):
                known = self._attempts.get(attempt) and self.ledger.attempt(attempt)
                if known and known.in_queue and known.queue_id != id:
                    self._effects.fact(AttemptQueued(attempt, id))
            case Started(attempt, pid, gpus, node):
                live = self._attempts.get(attempt)
                if live is not None and self.ledger.attempt(attempt).started is None:
                    self._effects.fact(AttemptStarted(attempt, pid, gpus, node))
            case BecameReady(attempt):
                live = self._attempts.get(attempt)
                if live is not None and live.service and not live.wish and not live.service.ready:
                    self._effects.fact(ServiceReady(attempt))
                    self._jobs.service_ready(live.service)
            case Misplaced():
                self._misplaced(event)
            case Ended():
                self._completion.ended(event, self._killing, bool(self._closed()))
            case WorkerEnded():
                self._completion.worker_ended(event, self._killing)
            case OutOfReach(why) if self._killing:
                self._out_of_reach = why
            case TimerFired(timer):
                self._timer_fired(timer)
            case GangGranted():
                self._admission.gang.grant()
            case Asked(Cancel(names)):
                self._cancel(names)
            case Asked(GoOn()):
                self._go_on()
            case Asked(Retry(names)):
                self._retry(names)
            case RetriedAnew(names, jobs, gone):
                self._jobs.redefine(jobs, gone)
                self._retry(names)
            case Asked(DrainGpus() as request):
                self._drain_gpus(request)
            case Asked(Pause(why)):
                self._pause(why)
            case Asked(Stop(why, now)):
                self._stop(why, now)
            case GpuEvent(gpu):
                if (card := self._cards.get(gpu)) is not None:
                    self._report(event, card)
            case _ if isinstance(event, LeaseEvent):
                if (card := self._cards.get(event.gpu)) is not None:
                    self._card(event, card)

    def _report(self, event: GpuEvent, card: Card) -> None:
        """Record the driver's report with the attempts on that card; set a lost card aside."""
        attempts = tuple(sorted(card.attempts))
        ending = [live.wish for attempt in attempts if (live := self._attempts.get(attempt))]
        if event.code == XID_OF_A_KILL and ending and all(ending):
            return
        if (event.gpu, event.text, attempts) not in self._reported:
            self._reported.add((event.gpu, event.text, attempts))
            self._effects.fact(GpuReported(event.gpu, event.text, attempts))
        if event.verdict != "lost":
            return
        self._cards.doom(card, Quoted(event.text))
        for attempt in attempts if event.stops else ():
            live = self._attempts.get(attempt)
            if live is not None:
                why = CardFailed(card.gpu.index, event.text)
                self._attempts.stop(live, "interrupted", why)

    def _misplaced(self, event: Misplaced) -> None:
        """Record the first report that an attempt uses a card of others; interrupt it if pinned."""
        live = self._attempts.get(event.attempt)
        if live is None or live.misplaced is not None:
            return
        live.misplaced = Failure("wrong_gpu", event.text, event.advice)
        self._effects.fact(Noted(event.text, event.attempt.job))
        if self._pinned:
            self._attempts.stop(live, "interrupted", Quoted(event.text))

    def _card(self, event: LeaseEvent, card: Card) -> None:
        match event:
            case Granted(_, memory_free) if card.state == "asking":
                self._cards.granted(card, memory_free)
            case Refused(_, why) if card.state in ("asking", "draining"):
                self._cards.refused(card, why)
            case LeaseLost(_, why):
                self._cards.withdrawn(card, why)
            case HolderChanged(_, holder) if card.state == "elsewhere":
                self._cards.described(card, holder)
            case Freed() if card.state == "elsewhere":
                self._cards.freed(card)
            case Wanted(_, wanted) if card.state in ("leased", "draining"):
                card.requested = wanted
            case Drained(_, memory_free) if card.state == "draining":
                self._cards.granted(card, memory_free)

    def _timer_fired(self, timer: Timer) -> None:
        match timer:
            case RetryDue(job):
                self._jobs.retry_due(job)
            case HoldOutOver(job):
                self._admission.hold_out_over(job)
            case CardRecheck(gpu):
                card = self._cards.get(gpu)
                if card is not None:
                    self._cards.recheck(card)
            case GangTimeout():
                self._admission.gang_timeout()
            case DeadlockCheck() | WorkerIdleTimeout():
                pass  # what is due then is looked at after every event (`_settle_down`)
            case _:
                never: NoReturn = timer
                raise AssertionError(never)

    def _submit(self, event: Submitted) -> None:
        self._submitted = True
        for attempt in self._jobs.submit(event.jobs, event.again, event.left):
            self._attempts.inherit(attempt, self._jobs.nodes.get(attempt.job))
        self._jobs.retire_unneeded()
        for card in self._cards:
            card.drained = self.ledger.gpus[card.gpu.uuid].drained

    def _settle_down(self) -> None:
        """Start all that can start, resolve deadlocks; withdraw attempts if the run is halted."""
        if not self._submitted:
            return
        if self._breaker.tripped and self._patient and self.ledger.paused is None:
            self._trip()
        self._admission.admit()
        for _ in range(STEPS):
            if self._closed() or not self._deadlock.step():
                break
            self._admission.admit()
        else:
            self._effects.emit(SetTimer(DeadlockCheck(), self._effects.now.mono + 0.001))
        if self._halted() or self._breaker.tripped:
            self._withdraw()
        if self._halted() and all(live.service for live in self._attempts):
            for live in self._attempts:
                self._attempts.stop(live, "interrupted", Because("no_more_starts"))

    def _withdraw(self) -> None:
        """Interrupt the attempts that are still in the engine's queue."""
        for live in self._attempts:
            if self.ledger.attempt(live.id).in_queue:
                self._attempts.stop(live, "interrupted", Because("no_more_starts"))

    # ── Requests ────────────────────────────────────────────────────────────────────────────────

    def _cancel(self, names: tuple[str, ...] | None) -> None:
        nodes = (
            list(self._jobs)
            if names is None
            else [self._jobs.nodes[name] for name in names if name in self._jobs.nodes]
        )
        for node in nodes:
            if node.state in WAITING:
                self._jobs.settle(node, "cancelled", Because("cancelled"))
        for live in self._attempts:
            # An adopted attempt whose job is no longer in the file has no node, only a name.
            gone = live.adopted and (names is None or live.id.job in names)
            if live.node in nodes or gone:
                self._attempts.stop(live, "cancelled", Because("cancelled"))

    def _retry(self, names: tuple[str, ...] | None) -> None:
        self._go_on()
        self._jobs.requeue(self._jobs.to_retry(names), Because("retried"))

    def _drain_gpus(self, request: DrainGpus) -> None:
        for card in self._cards:
            if request.gpus is not None and card.gpu.uuid not in request.gpus:
                continue
            on = not request.off
            if card.drained != on:
                card.drained = on
                self._effects.fact(GpuDrained(card.gpu.uuid, on))
            if on and request.now:
                for attempt in list(card.attempts):
                    live = self._attempts.get(attempt)
                    if live is not None:
                        self._attempts.stop(live, "interrupted", Because("gave_back"))

    def _trip(self) -> None:
        """Pause the run for a person, where jobs are left to start."""
        left = (node for node in self._jobs if node.state != "settled")
        if any(self._jobs.record(node).state == "waiting" for node in left):
            assert self._breaker.tripped is not None
            self._close(self._breaker.tripped)
        else:
            self._breaker.reset()

    def _go_on(self) -> None:
        if self._breaker.tripped and self.ledger.paused == self._breaker.tripped:
            self._open()
        self._breaker.reset()

    def _pause(self, why: RunReason | None) -> None:
        if why is not None:
            self._close(why)
        elif self.ledger.paused is not None:
            self._open()

    def _close(self, why: RunReason) -> None:
        self._effects.fact(AdmissionPaused(why))
        self._hold_queue(True)

    def _open(self) -> None:
        self._effects.fact(AdmissionContinued())
        self._hold_queue(False)

    def _hold_queue(self, on: bool) -> None:
        if isinstance(self._admission, Queueing):
            self._effects.emit(HoldQueue(on))

    def _stop(self, why: EndCause, now: bool) -> None:
        self._killing = self._killing or now
        if self.ledger.stopping is None or now:
            self._effects.fact(StopAsked(why, now))
        for live in self._attempts:
            self._attempts.stop(live, "interrupted", why, now)
        for resident in self._idle_workers:
            self._idle_workers.end(resident, now)
        for card in self._cards if now else ():
            if card.state == "draining":
                self._cards.release(card)

    def _retire(self, service: Node) -> None:
        assert service.attempt is not None
        live = self._attempts.get(service.attempt)
        if live is not None:
            self._attempts.stop(live, "stopped", Because("unneeded"))

    # ── Whether anything may start ──────────────────────────────────────────────────────────────

    def _closed(self) -> RunReason | None:
        """Return why nothing new is started; None while jobs may start."""
        return self.ledger.stopping or self._halted() or self.ledger.paused

    def _halted(self) -> RunReason | None:
        """Return why failures keep the run from starting anything new; None while they do not."""
        if self._breaker.tripped and not self._patient:
            return self._breaker.tripped
        failed = self._jobs.failed
        if self._max_failures is None or len(failed) < self._max_failures:
            return None
        if self._fail_fast:
            return TooManyFailed(next(iter(failed)).name, None)
        return TooManyFailed(next(reversed(failed)).name, self._max_failures)


def _opened(gpus: Sequence[Gpu]) -> Ledger:
    ledger = Ledger()
    ledger.apply(RunOpened("", "", 1, "", "", "", 0, tuple(gpus)), Instant(0.0, 0.0))
    return ledger


def _failures(jobs: Jobs) -> SomeFailed | None:
    there = (node for node in jobs if not jobs.record(node).vanished)
    bad = [node for node in there if jobs.record(node).state not in ("succeeded", "waiting")]
    if not bad:
        return None
    return SomeFailed(bad[0].name, len(bad) - 1)
