"""THE loop of a run: wait, handle, record, carry out.

    signals ┐                                     ┌▶ record (journal, results, joblog)
    keepers ┼▶ Loop ─▶ Event ─▶ Run.handle ─▶ facts ┼▶ view
    cards   ┤                        │            └▶ ...
    people  ┘                        └─▶ instructions ─▶ engine

Facts are written before the instructions that rest on them are carried out. While the journal
cannot be written, nothing new is started; after a minute of that the run is stopped. One that a
signal has stopped by then ends as soon as its jobs have.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gpulaunch.core.events import (
    Acquire,
    Asked,
    Drained,
    Ended,
    Event,
    Instruction,
    Launch,
    Pause,
    SetTimer,
    Stop,
    StopAttempt,
    Submitted,
    TimerFired,
)
from gpulaunch.core.facts import AttemptLaunched, Fact, Noted, RunClosed
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, Interrupted, RunState
from gpulaunch.core.run import Run
from gpulaunch.engines.protocol import Engine
from gpulaunch.errors import NO_CARDS, NOT_RECORDED, OK, SOME_JOB_FAILED
from gpulaunch.loop import Loop
from gpulaunch.views.terminal import View

RECORD_PATIENCE = 60.0
RECORD_RETRY = 1.0
MAX_FACTS_PER_WRITE = 4096
"""Facts handed over to be recorded together."""

STOPPING = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "the terminal closed",
}


class FactWriter(Protocol):
    """Writes facts down. `append` says whether all that it was ever given is written."""

    def append(self, facts: Sequence[tuple[Fact, Instant]]) -> bool: ...
    def retry(self) -> bool: ...
    def sync(self) -> bool: ...

    @property
    def failure(self) -> str: ...

    @property
    def unrecoverable(self) -> bool: ...


BeforeClose: TypeAlias = Callable[[RunClosed, Callable[[], None]], None]
"""Called when a run is at its end, before that is recorded, with how it ends and the loop's turn:
it may take turns for a while. Called again where something came up in them."""


class Supervisor:
    """Drives one Run to its end through an engine.

    `wait`: seconds after which a run that asked for a card, and started nothing yet, gives up.
    """

    _engine: Engine

    def __init__(
        self,
        run: Run,
        record: FactWriter,
        view: View,
        loop: Loop,
        clock: Callable[[], Instant],
        wait: float | None = None,
    ) -> None:
        self._run = run
        self._record = record
        self._view = view
        self._loop = loop
        self._clock = clock
        self._wait = wait
        self._launched = False
        self._inbox: deque[Event] = deque()
        self._held: dict[AttemptId, Launch] = {}
        self._recording = True
        self._syncing = False
        self.stopped_by: signal.Signals | None = None
        self.unrecorded = ""
        self.no_card = False

    # ── From outside ────────────────────────────────────────────────────────────────────────────

    def post(self, event: Event) -> None:
        """An event for the core; handled in the order of posting, before the loop waits again.

        A card that is clean at once comes first: its next job is not to wait while a burst of other
        ends is looked at, each of which would see one more card on its way.
        """
        if isinstance(event, Drained):
            self._inbox.appendleft(event)
        else:
            self._inbox.append(event)

    def note(self, job: str | None, text: str) -> None:
        """A line for people and the journal that changes nothing."""
        self._add(Noted(text, job))

    def on_signal(self, number: int) -> None:
        """The first one asks the run to stop, the second to stop at once."""
        again = self.stopped_by is not None
        self.stopped_by = self.stopped_by or signal.Signals(number)
        self.post(Asked(Stop(STOPPING[signal.Signals(number)], now=again)))

    @property
    def ledger(self) -> Ledger:
        return self._run.ledger

    def why_waiting(self, job: str) -> str:
        """One line; empty for a job that does not wait. Of what is in a queue the engine knows."""
        own = self._run.why_waiting(job, self._clock())
        attempt = self._run.in_queue(job)
        if attempt is None:
            return own
        place = self._engine.why(attempt) or self.ledger.jobs[job].reason
        return f"{own}; {place}" if own else place

    # ── The loop ────────────────────────────────────────────────────────────────────────────────

    def serve(
        self,
        engine: Engine,
        submitted: Submitted,
        left: Sequence[AttemptId] = (),
        farewell: BeforeClose = lambda closed, turn: None,
    ) -> None:
        """Run to the end. `left`: attempts of an earlier supervisor whose end is not known."""
        self._engine = engine
        self.post(submitted)
        self._drain_inbox()
        self._engine.adopt(left)
        self._add(self._to_the_end(farewell))
        if not (self._record.sync() and self._recording):
            self.unrecorded = self.unrecorded or self._record.failure

    def _to_the_end(self, farewell: BeforeClose) -> RunClosed:
        while True:
            self._drain_inbox()
            while not self._finished():
                self._turn()
                self._drain_inbox()
            state, reason = self._run.outcome()
            closed = RunClosed(state, reason, self._exit_status(state))
            farewell(closed, self._turn)
            if not self._inbox:
                return closed
            # Somebody has asked for something meanwhile; a retry goes on from here.

    def _turn(self) -> None:
        self._plan_tick()
        self._loop.turn()

    def _exit_status(self, state: RunState) -> int:
        """The first that holds, in the contract's order."""
        if self.no_card:
            return NO_CARDS
        if self.unrecorded:
            return NOT_RECORDED
        if self.stopped_by:
            return 128 + self.stopped_by
        return OK if state == "succeeded" else SOME_JOB_FAILED

    def _finished(self) -> bool:
        if not self._run.finished or self._inbox:
            return False
        if self.stopped_by and not (self._recording or self.unrecorded):
            self._retry_recording()
            if not self._recording:  # a person waits for the end, and nothing else is to come
                self._give_up_recording()
        return not self._inbox and (self._recording or bool(self.unrecorded))

    def _drain_inbox(self) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            now = self._clock()
            self._act(self._run.handle(event, now), now)

    def _act(self, results: Sequence[Fact | Instruction], now: Instant) -> None:
        instructions = [r for r in results if isinstance(r, Instruction)]
        self._tell([r for r in results if not isinstance(r, Instruction)], now)
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SetTimer(key, at):
                self._loop.call_at("core:" + key, at, lambda: self.post(TimerFired(key)))
            case Acquire() if self._wait is not None:
                self._loop.call_after("wait", self._wait, self._wait_is_over)
                self._wait = None
                self._engine.carry_out(instruction)
            case Launch() if not self._recording:
                self._held[instruction.attempt] = instruction
            case StopAttempt(attempt, by=by) if attempt in self._held:
                held = self._held.pop(attempt)
                self.post(Ended(attempt, Interrupted(by), kept=held.worker is not None))
            case _:
                self._engine.carry_out(instruction)

    def _wait_is_over(self) -> None:
        """The first card was asked for so long ago: go on only if something has started."""
        if not self._launched:
            self.no_card = True
            self.post(Asked(Stop("no card came free in the time that --wait gave")))

    def _add(self, fact: Fact) -> None:
        """A fact that is the supervisor's own, not the core's."""
        now = self._clock()
        self._run.ledger.apply(fact, now)
        self._tell([fact], now)

    def _tell(self, facts: Sequence[Fact], now: Instant) -> None:
        if not facts:
            return
        whole = True
        for start in range(
            0, len(facts), MAX_FACTS_PER_WRITE
        ):  # of a hundred thousand jobs, not all pairs
            some = facts[start : start + MAX_FACTS_PER_WRITE]
            whole = self._record.append([(fact, now) for fact in some])
        if not whole and self._recording:
            self._recording_failed(now)
        for fact in facts:
            self._launched = self._launched or isinstance(fact, AttemptLaunched)
            self._view.see(fact, now, self._run.ledger)
        if not self._syncing:
            self._syncing = True
            self._loop.call_after("sync", 1.0, self._sync)

    def _sync(self) -> None:
        self._syncing = False
        if not self._record.sync() and self._recording:
            self._recording_failed(self._clock())

    def _plan_tick(self) -> None:
        at = self._view.next_tick(self._clock())
        if at is None:
            self._loop.forget("tick")
        else:
            self._loop.call_at("tick", at, self._tick)

    def _tick(self) -> None:
        self._view.tick(self._clock(), self._run.ledger)

    # ── When the run cannot be recorded ─────────────────────────────────────────────────────────

    def _recording_failed(self, now: Instant) -> None:
        self._recording = False
        trouble = self._record.failure
        self.post(Asked(Pause(f"the run cannot be recorded: {trouble}")))
        self._loop.call_at("record:retry", now.mono + RECORD_RETRY, self._retry_recording)
        patience = 0.0 if self._record.unrecoverable else RECORD_PATIENCE
        self._loop.call_at("record:over", now.mono + patience, self._give_up_recording)

    def _retry_recording(self) -> None:
        if self._record.retry():
            self._recording = True
            self._loop.forget("record:over")
            held, self._held = self._held, {}
            for instruction in held.values():
                self._carry_out(instruction)
            if not self.unrecorded:
                self.post(Asked(Pause("", off=True)))
        else:
            self._loop.call_after("record:retry", RECORD_RETRY, self._retry_recording)

    def _give_up_recording(self) -> None:
        if not self._record.failure:
            self._retry_recording()
            return
        self.unrecorded = self._record.failure
        self.post(Asked(Stop(f"the run could not be recorded: {self.unrecorded}")))
