"""One run's decisions: `Run.handle(events, now)` returns the facts and the instructions.

    events ─▶ what it changes (jobs, attempts, cards) ─▶ admission: what starts now ─▶ results

The run's ledger changes by the facts that are returned, and by nothing else: replaying the journal
gives the same state. Stale events (an end twice, a grant for a card not asked for, a timer for
nothing) are ignored. This module asks no clock and touches nothing outside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpulaunch.core import (
    admission,
    completion,
    graph,
    job_list,
    memory,
    on_cards,
    preemption,
    requests,
    reservation,
    why,
)
from gpulaunch.core import events as ev
from gpulaunch.core import facts as f
from gpulaunch.core.attempts import ActiveAttempt, IdleWorker
from gpulaunch.core.cards import AskedFor, Away, Card, Draining
from gpulaunch.core.causes import Because, CardFailed, Quoted
from gpulaunch.core.ledger import Ledger, unrecorded
from gpulaunch.core.model import AttemptId, Failure, Gpu, Instant, Job, RunState
from gpulaunch.core.reasons import (
    LeftAlive,
    LeftProcesses,
    LeftWaiting,
    RunReason,
    SomeFailed,
    WaitReason,
)
from gpulaunch.core.state import RunConfig, State

STEPS = 1000
"""Deadlock steps in one event at most; what is left goes on after a timer of a millisecond."""
XID_OF_A_KILL = 45
"""The Xid (preemptive cleanup) that the driver also reports when a process on a card is killed."""


class Run:
    """A run from its jobs to its end. `ledger` holds the RunOpened of this epoch.

    Where an engine queues and places by itself, `gpus` is empty.
    """

    def __init__(
        self, gpus: Sequence[Gpu], config: RunConfig | None = None, ledger: Ledger | None = None
    ) -> None:
        self._state = State.new(unrecorded(gpus) if ledger is None else ledger, gpus, config)

    @property
    def ledger(self) -> Ledger:
        return self._state.ledger

    def job(self, name: str) -> Job | None:
        """Return the job as submitted, with its present demand; None for an unknown name."""
        node = self._state.jobs.nodes.get(name)
        return None if node is None else node.job

    def as_listed(self, name: str) -> Job | None:
        """Return the job's newest definition; None for a name that the list does not have."""
        return job_list.newest(self._state.jobs.nodes[name]) if self.lists(name) else None

    def lists(self, name: str) -> bool:
        """Tell whether the list has a job of this name. May be called by another thread."""
        node = self._state.jobs.nodes.get(name)
        return node is not None and not node.withdrawn

    def listed(self) -> list[str]:
        """Return the names of all jobs that the list has. May be called by another thread."""
        return [node.name for node in list(self._state.jobs.nodes.values()) if not node.withdrawn]

    def compare(self, jobs: Sequence[Job], gone: Collection[str] = ()) -> job_list.ListChange:
        """Return what Relisted(jobs, gone) would do."""
        return job_list.compare(self._state, jobs, gone)

    def retried_by(self, names: tuple[str, ...] | None) -> list[str]:
        """Return the names of the jobs that a retry of these (None: all failed) would requeue."""
        return [node.name for node in graph.to_retry(self._state, names)]

    def handle(self, events: Sequence[ev.Event], now: Instant) -> list[f.Fact | ev.Instruction]:
        """Apply the events, in order; then decide, once, what starts.

        Return facts, each before the instructions that rest on it.
        """
        state = self._state
        state.effects.now = now
        for event in events:
            _on(state, event)
        if any(_may_start_more(state, event) for event in events):
            _settle_down(state)
        return state.effects.take()

    @property
    def finished(self) -> bool:
        """True once nothing runs or can ever run, and no lease is held; or the run is given up.

        A run that was asked to end is given up where only what cannot be killed keeps it.
        """
        state = self._state
        if state.course.out_of_reach or (state.course.unending and _left_alive(state)):
            return True
        if not state.course.submitted or len(state.attempts) or state.cards.held():
            return False
        if len(state.idle_workers):
            return False
        if state.ledger.stopping or state.halted:
            return True
        return not (state.jobs.unsettled or state.ledger.awaits_more)

    def outcome(self) -> tuple[RunState, RunReason | None]:
        """Return how a finished run ended, and why where not every job succeeded."""
        state = self._state
        if state.course.out_of_reach and len(state.attempts):
            return "interrupted", state.course.out_of_reach
        if alive := _left_alive(state):
            return "interrupted", alive
        waiting = state.jobs.unsettled
        if state.ledger.stopping and waiting:
            return "stopped", state.ledger.stopping
        if halted := state.halted:
            return "failed", halted if waiting else _failures(state)
        if reason := _failures(state):
            return "failed", reason
        left = sum(node.excluded and state.record(node).state == "waiting" for node in state.jobs)
        if left:
            return "stopped", LeftWaiting(left)
        return "succeeded", None

    def why_waiting(self, name: str, now: Instant | None = None) -> WaitReason | None:
        """Return why a job waits; None for a job that does not wait.

        `now` is the time for durations in the reason; None: the time of the last event.
        """
        return why.of(self._state, name, now or self._state.now)

    def with_engine(self, name: str) -> AttemptId | None:
        """Return the job's attempt that the engine has and that has no end; None for none.

        Why such an attempt waits, or what is doubtful of it while it runs, the engine knows.
        """
        record = self.ledger.jobs.get(name)
        last = record.attempts[-1] if record is not None and record.attempts else None
        return last.id if last is not None and last.is_open else None


def _may_start_more(state: State, event: ev.Event) -> bool:
    """Tell whether something else may start or end after the event."""
    if isinstance(event, f.AttemptStarted):  # another attempt may be launched behind it
        live = None if state.config.queues else state.attempts.get(event.attempt)
        return live is not None and bool(live.demand.worker)
    return not isinstance(event, f.AttemptQueued | f.AttemptWarned | f.PullBegun | ev.MemoryPeaked)


def _on(state: State, event: ev.Event) -> None:
    match event:
        case ev.Submitted() if not state.course.submitted:
            _submit(state, event)
        case f.AttemptQueued(attempt, id):
            known = state.attempts.get(attempt) and state.ledger.attempt(attempt)
            if known and known.in_queue and known.queue_id != id:
                state.effects.fact(event)
        case f.AttemptStarted(attempt):
            live = state.attempts.get(attempt)
            if live is not None and state.ledger.attempt(attempt).started is None:
                state.effects.fact(event)
        case f.AttemptWarned(attempt):
            live = state.attempts.get(attempt)
            if live is not None and state.ledger.attempt(attempt).warned is None:
                state.effects.fact(event)
        case f.ServiceReady(attempt):
            live = state.attempts.get(attempt)
            if live is not None and live.service and not live.stopping and not live.service.answers:
                state.effects.fact(event)
                graph.service_ready(state, live.service)
        case f.PullBegun():
            requests.begun(state, event)
        case ev.ImageReady():
            requests.ready(state, event)
        case ev.ImageDigest():
            requests.digested(state, event)
        case ev.ImageFailed():
            requests.failed(state, event)
        case ev.Misplaced():
            _misplaced(state, event)
        case ev.HeldIdle():
            _held_idle(state, event)
        case ev.Unanswered(attempt, text):
            live = state.attempts.get(attempt)
            if live is not None and live.service and not live.stopping and not live.service.answers:
                live.ended_for = Failure("not_ready", text)
                graph.stop(state, live, "interrupted", Quoted(text))
        case ev.Ended():
            completion.on_ended(state, event)
        case ev.MemoryPeaked():
            memory.peaked(state, event)
        case ev.WorkerEnded():
            completion.on_worker_ended(state, event)
        case ev.OutOfReach(why) if state.course.killing:
            state.course.out_of_reach = why
        case ev.Unending(attempt, pids):
            one = state.attempts.get(attempt) or state.idle_workers.get(attempt)
            if one is not None:
                one.unending = pids
                state.course.unending = True
        case ev.TimerFired(timer):
            _timer_fired(state, timer)
        case ev.GangGranted():
            state.placing.gang.grant()
        case ev.Asked(ev.Cancel(names)):
            requests.cancel(state, names)
        case ev.Asked(ev.Finish()):
            requests.finish(state)
        case ev.Asked(ev.GoOn()):
            requests.go_on(state)
        case ev.Asked(ev.Retry(names)):
            requests.retry(state, names)
        case ev.Relisted(jobs, gone) if state.course.submitted:
            job_list.relist(state, jobs, gone)
        case ev.Asked(ev.DrainGpus() as request):
            requests.drain_gpus(state, request)
        case ev.Asked(ev.Pause(why, by)):
            requests.pause(state, why, by)
        case ev.Asked(ev.Stop(why, now)):
            requests.stop(state, why, now)
        case ev.AllowanceFreed():
            state.cards.allowance_freed()
        case ev.GpuEvent(gpu):
            if (card := state.cards.get(gpu)) is not None:
                _report(state, event, card)
        case _ if isinstance(event, ev.LeaseEvent):
            if (card := state.cards.get(event.gpu)) is not None:
                _card(state, event, card)


def _report(state: State, event: ev.GpuEvent, card: Card) -> None:
    """Record the driver's report with the attempts on that card; set a lost card aside."""
    attempts = tuple(sorted(card.attempts))
    ending = [live.stopping for attempt in attempts if (live := state.attempts.get(attempt))]
    if event.code == XID_OF_A_KILL and ending and all(ending):
        return
    if (event.gpu, event.text, attempts) not in state.course.reported:
        state.course.reported.add((event.gpu, event.text, attempts))
        state.effects.fact(f.GpuReported(event.gpu, event.text, attempts))
    if event.verdict != "lost":
        return
    state.cards.doom(card, Quoted(event.text))
    for attempt in attempts if event.stops else ():
        live = state.attempts.get(attempt)
        if live is not None:
            graph.stop(state, live, "interrupted", CardFailed(card.gpu.index, event.text))


def _misplaced(state: State, event: ev.Misplaced) -> None:
    """Record the first report that an attempt uses a card of others; interrupt it if pinned."""
    live = state.attempts.get(event.attempt)
    if live is None or live.misplaced is not None:
        return
    live.misplaced = Failure("wrong_gpu", event.text, event.advice)
    state.effects.fact(f.Noted(event.text, event.attempt.job))
    if state.config.pinned:
        graph.stop(state, live, "interrupted", Quoted(event.text))


def _held_idle(state: State, event: ev.HeldIdle) -> None:
    """End an attempt that reached its job's `gpu_idle`; name another. Not one that ends anyway."""
    live = state.attempts.get(event.attempt)
    if live is None or live.stopping:
        return
    if event.ends:
        live.ended_for = Failure("gpu_idle", event.text, event.advice)
        graph.stop(state, live, "interrupted", Quoted(event.text))
    else:
        state.effects.fact(f.AttemptIdle(event.attempt, event.seconds, event.memory))


def _card(state: State, event: ev.LeaseEvent, card: Card) -> None:
    match event:
        case ev.Granted(_, memory_free) if isinstance(card.state, AskedFor):
            state.cards.granted(card, memory_free)
        case ev.Refused(_, why) if card.coming:
            state.cards.refused(card, why)
        case ev.HolderChanged(_, holder) if isinstance(card.state, Away):
            state.cards.described(card, holder)
        case ev.Freed() if isinstance(card.state, Away):
            state.cards.freed(card)
        case ev.Wanted(_, wanted):
            state.cards.want(card, wanted)
        case ev.Drained(_, memory_free) if isinstance(card.state, Draining):
            state.cards.granted(card, memory_free)


def _timer_fired(state: State, timer: ev.Timer) -> None:
    match timer.kind:
        case "retry":
            graph.retry_due(state, timer.of)
        case "hold_out":
            on_cards.hold_out_over(state, timer.of)
        case "card":
            if (card := state.cards.get(timer.of)) is not None:
                state.cards.recheck(card)
        case "gang":
            reservation.gang_timeout(state)
        case "due":
            requests.fired(state)
        case "deadlock" | "worker" | "verdict":
            pass  # what is due then is looked at after every event (`_settle_down`)


def _submit(state: State, event: ev.Submitted) -> None:
    state.course.submitted = True
    for attempt in job_list.submit(state, event.jobs, event.again, event.left):
        state.attempts.inherit(attempt, state.jobs.nodes.get(attempt.job))
    job_list.retire_unneeded(state)
    for card in state.cards:
        card.drained = state.ledger.gpus[card.gpu.uuid].drained


def _settle_down(state: State) -> None:
    """Start all that can start, resolve deadlocks; withdraw attempts if the run is halted."""
    if not state.course.submitted:
        return
    if state.attempts.held:
        completion.judge_held(state)
    tripped = state.health.breaker.tripped
    if tripped and state.config.patient and "breaker" not in state.ledger.pauses:
        requests.trip(state)
    admission.admit(state)
    for _ in range(STEPS):
        if state.closed or not why.step(state):
            break
        admission.admit(state)
    else:
        state.effects.emit(ev.SetTimer(ev.Timer("deadlock"), state.now.mono + 0.001))
    requests.ask(state)
    requests.give_back(state)
    requests.watch(state)
    preemption.give_way(state)
    preemption.ask_for_cards(state)
    if state.halted or state.health.breaker.tripped:
        _withdraw(state)
    if state.halted and all(live.service for live in state.attempts):
        for live in state.attempts:
            graph.stop(state, live, "interrupted", Because("no_more_starts"))


def _withdraw(state: State) -> None:
    """Interrupt the attempts that are still in the engine's queue."""
    for live in state.attempts:
        if state.ledger.attempt(live.id).in_queue and live.behind is None:
            graph.stop(state, live, "interrupted", Because("no_more_starts"))


def _left_alive(state: State) -> LeftAlive | None:
    """Return what the run leaves behind, if it was asked to end and only that keeps it from it."""
    attempts, workers = list(state.attempts), list(state.idle_workers)
    if not attempts and not workers:
        return None
    if any(live.unending is None or live.stopping is None for live in attempts):
        return None
    if any(worker.unending is None for worker in workers):
        return None
    nodes = {live.node.name for live in attempts if live.node is not None}
    more = state.jobs.unsettled > len(nodes) or state.ledger.awaits_more
    if more and not (state.ledger.stopping or state.halted):
        return None
    ending: list[ActiveAttempt | IdleWorker] = [*attempts, *workers]
    theirs = {card.gpu.uuid for one in ending for card in one.cards}
    if any(card.held and card.gpu.uuid not in theirs for card in state.cards):
        return None
    left = []
    for one in ending:
        uuids = state.ledger.attempt(one.id).gpus  # those of an earlier launcher's attempt too
        cards = [card for uuid in uuids if (card := state.cards.get(uuid)) is not None]
        indices = tuple(sorted(card.gpu.index for card in cards))
        left.append(LeftProcesses(one.id, one.unending or (), indices))
    return LeftAlive(tuple(left))


def _failures(state: State) -> SomeFailed | None:
    there = (node for node in state.jobs if not state.record(node).vanished)
    bad = [node.name for node in there if state.record(node).state not in ("succeeded", "waiting")]
    return SomeFailed(bad[0], len(bad) - 1) if bad else None
