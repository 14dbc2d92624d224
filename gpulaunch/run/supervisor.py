"""Drives a run through an engine: records, shows, answers to signals, and closes the run.

    Driver ─▶ facts ─▶ journal, and once nothing else is to be done: results, joblog, view
           └▶ instructions ─▶ engine

While the journal cannot be written, nothing new is started; after a minute of that the run is
stopped. If a signal has stopped the run before, it ends as soon as its jobs have ended.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import TypeAlias

from msgspec.structs import replace

from gpulaunch.base.errors import NO_CARDS, NOT_RECORDED, OK, SOME_JOB_FAILED
from gpulaunch.base.hours import Hours
from gpulaunch.base.loop import Loop
from gpulaunch.base.wording import job_reason, pull
from gpulaunch.core import events as ev
from gpulaunch.core.causes import Because, EndCause, Quoted, RecordingFailed, SignalCaught
from gpulaunch.core.events import Pause
from gpulaunch.core.facts import CodeChanged, Fact, InputsSeen, Noted, RunClosed
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, End, Instant, Interrupted, RunState
from gpulaunch.core.reasons import NeedsAllowance, NeedsImage, OutsideHours, WaitReason
from gpulaunch.core.run import Run
from gpulaunch.engines.protocol import Engine
from gpulaunch.journal.joblog import stamp_of
from gpulaunch.journal.recorder import Recorder
from gpulaunch.observe.terminal.terminal import View
from gpulaunch.run.driver import Driver

# ── Hours (`--between`) ───────────────────────────────────────────────────────────────────────────

LOOK_AGAIN = 60.0
"""Seconds after which the clock on the wall is looked at again, at most."""


class WithinHours:
    """Says what changes as the hours of a run begin and end. `zone`: None is this machine's.

        the clock on the wall ─▶ look ─▶ Pause(OutsideHours) ... Pause(None), both by "hours"

    The core knows no zone. The clock is looked at in each turn of the run, and once a minute at
    least: it may be set, and goes on while the machine sleeps, which timers do not.
    """

    def __init__(
        self, hours: Hours, loop: Loop, clock: Callable[[], Instant], zone: tzinfo | None = None
    ) -> None:
        self._hours = hours
        self._loop = loop
        self._clock = clock
        self._zone = zone
        self._known = (0.0, 0.0)  # since when, and until when, what was said last holds
        self._said: OutsideHours | None = None

    def look(self) -> Pause | None:
        """Return the request that the clock makes necessary now; None for none."""
        now = self._clock()
        since, until = self._known
        if since <= now.utc < until:
            return None
        change = self._hours.next_change(now.utc, self._zone)
        self._known = (now.utc, float("inf") if change is None else change)
        closed = change is not None and not self._hours.open_at(now.utc, self._zone)
        outside = OutsideHours(change) if closed and change is not None else None
        self._wake(now)
        if outside == self._said:
            return None
        self._said = outside
        return Pause(outside, "hours")

    def _wake(self, now: Instant) -> None:
        """Have the loop turn when the next change may have come."""
        wait = min(LOOK_AGAIN, max(0.001, self._known[1] - now.utc))
        self._loop.call_at("hours", now.mono + wait, lambda: self._wake(self._clock()))


# ── Supervisor ────────────────────────────────────────────────────────────────────────────────────

RECORD_PATIENCE = 60.0
"""Seconds for which the journal may be unwritable before the run is stopped."""
RECORD_RETRY = 1.0
"""Seconds between two attempts to write it."""
MAX_FACTS_PER_WRITE = 4096
"""Facts that are recorded together at most."""

STOPPING = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "the terminal closed",
}


BeforeClose: TypeAlias = Callable[[RunClosed, Callable[[], None]], None]
"""Called before a run's end is recorded, with the RunClosed and a function that turns the loop.

It may turn the loop for a while. If an event comes meanwhile, the run goes on, and it is called
again at the next end."""
Listener: TypeAlias = Callable[[Fact, Instant, Ledger], object]


class Supervisor:
    """Drives one Run to its end through an engine.

    `wait`: seconds from the first request for a card; a run without an attempt by then gives up.
    `listeners` hear each fact after the view has shown it. `stay_while` tells whether the run is
    not over although all its jobs are. `hours`: jobs start within them alone.
    """

    _engine: Engine

    def __init__(
        self,
        run: Run,
        record: Recorder,
        view: View,
        loop: Loop,
        clock: Callable[[], Instant],
        wait: float | None = None,
        hours: WithinHours | None = None,
    ) -> None:
        self._run = run
        self._record = record
        self._view = view
        self._hours = hours
        self._loop = loop
        self._clock = clock
        self._driver = Driver(run, loop, self, wait, clock)
        self._held: dict[AttemptId, ev.Launch] = {}
        self._unshown: deque[tuple[Fact, Instant]] = deque()
        self._to_show = False
        self._recording = True
        self._syncing = False
        self._once_recorded: list[Callable[[], object]] = []
        self.listeners: list[Listener] = []
        self.stay_while: Callable[[], bool] = lambda: False
        self.stopped_by: signal.Signals | None = None
        self.unrecorded = ""
        self.no_card = False
        self.no_card_as = ""
        self.full = False
        """True once no more jobs are taken, because a queue goes on in its next directory."""
        self._told_of_allowance = False

    # ── From outside ────────────────────────────────────────────────────────────────────────────

    def post(self, event: ev.Event) -> None:
        """Queue an event for the core; see `Driver.post`."""
        if isinstance(event, ev.Refused) and isinstance(event.why, ev.AllowanceSpent):
            # Once it is handled: then the jobs know why they wait.
            self._loop.later(self._tell_of_allowance)
        self._driver.post(event)

    def note(self, job: str | None, text: str) -> None:
        """Record a line for people, which changes no state."""
        self._add(Noted(text, job))

    def tell(self, fact: CodeChanged) -> None:
        """Record what somebody else has noticed, which changes no job's state."""
        self._add(fact)

    def take(self, event: ev.Event, facts: Sequence[Fact], recorded: Callable[[], object]) -> None:
        """Record facts that somebody else made, handle all that was posted and then this event.

        Calls `recorded` once all of that is in the journal. Not to be called from `Run.handle`.
        """
        now = self._clock()
        for fact in facts:
            self._run.ledger.apply(fact, now)
        self.record(facts, now)
        self.post(event)
        self._driver.settle()
        if self._recording:
            recorded()
        else:
            self._once_recorded.append(recorded)

    def on_signal(self, number: int) -> None:
        """Ask the run to stop; at the second signal, to stop at once."""
        again = self.stopped_by is not None
        self.stopped_by = self.stopped_by or signal.Signals(number)
        self.post(ev.Asked(ev.Stop(SignalCaught(signal.Signals(number).name), now=again)))

    @property
    def ledger(self) -> Ledger:
        return self._run.ledger

    def why_waiting(self, job: str) -> WaitReason | None:
        """Return why the job waits, or what is doubtful of one that runs; None for any other job.

        The engine is asked of attempts that it has, and how long a pull has taken.
        """
        own = self._run.why_waiting(job, self._clock())
        if isinstance(own, NeedsImage):
            return replace(own, pulled_for=self._engine.pulls().get(own.source))
        attempt = self._run.with_engine(job)
        if attempt is None:
            return own
        place = self._engine.why(attempt)
        if not place:
            return own or self.ledger.why_queued(self.ledger.jobs[job])
        return Quoted(f"{job_reason(own)}; {place}" if own else place)

    # ── The loop ────────────────────────────────────────────────────────────────────────────────

    def serve(
        self,
        engine: Engine,
        submitted: ev.Submitted,
        left: Sequence[AttemptId] = (),
        farewell: BeforeClose = lambda closed, turn: None,
        listed: Callable[[], object] = lambda: None,
    ) -> None:
        """Drive the run to its end and record that.

        `left`: attempts of an earlier supervisor without a recorded end. `listed` is called once
        what was submitted is recorded.
        """
        self._engine = engine
        self._mind_the_hours()
        self.take(submitted, (), listed)
        self._engine.adopt(left)
        self._add(self._to_the_end(farewell))
        if not (self._synced() and self._recording):
            self.unrecorded = self.unrecorded or self._record.failure

    def _to_the_end(self, farewell: BeforeClose) -> RunClosed:
        while True:
            self._driver.settle()
            while not self._finished():
                self._turn()
                self._driver.settle()
            self._loop.catch_up()
            state, reason = self._run.outcome()
            closed = RunClosed(state, reason, self._exit_status(state))
            farewell(closed, self._turn)
            if not self._driver.busy:
                return closed
            # A request came meanwhile: a retry, for one, and the run goes on.

    def _turn(self) -> None:
        self._plan_tick()
        self._loop.turn()
        self._mind_the_hours()

    def _mind_the_hours(self) -> None:
        """Ask the run for what the clock makes necessary, before all that came in this turn."""
        request = None if self._hours is None else self._hours.look()
        if request is None:
            return
        if request.why is None:
            self._driver.wait_on()
        else:
            self._driver.stop_waiting()
        self.post(ev.Asked(request))

    def _exit_status(self, state: RunState) -> int:
        """Return the exit status: of the reasons that hold, the first in this order."""
        if self.no_card:
            return NO_CARDS
        if self.unrecorded:
            return NOT_RECORDED
        if self.stopped_by:
            return 128 + self.stopped_by
        return OK if state == "succeeded" else SOME_JOB_FAILED

    def _finished(self) -> bool:
        if not self._run.finished or self._driver.busy:
            return False
        if self.stay_while() and not self.ledger.stopping:
            return False
        if self.stopped_by and not (self._recording or self.unrecorded):
            self._retry_recording()
            if not self._recording:  # a person waits for the end, and all jobs have ended
                self._give_up_recording()
        return not self._driver.busy and (self._recording or bool(self.unrecorded))

    # ── What the driver asks ────────────────────────────────────────────────────────────────────

    def record(self, facts: Sequence[Fact], now: Instant) -> None:
        """Write the facts, and have them shown: no job waits for that, so all else comes before."""
        if not facts:
            return
        whole = True
        # In parts: a hundred thousand jobs would make one long list of pairs.
        for start in range(0, len(facts), MAX_FACTS_PER_WRITE):
            some = [(fact, now) for fact in facts[start : start + MAX_FACTS_PER_WRITE]]
            whole = self._record.append(some)
            self._unshown += some
        if not whole and self._recording:
            self._recording_failed(now)
        if not self._to_show:
            self._to_show = True
            self._loop.later(self._show)
        if not self._syncing:
            self._syncing = True
            self._loop.call_after("sync", 1.0, self._sync)

    def _show(self) -> None:
        """Derive and show what was recorded."""
        self._to_show = False
        self._record.derive()
        while self._unshown:
            fact, at = self._unshown.popleft()
            self._view.see(fact, at, self._run.ledger)
            for hears in self.listeners:
                hears(fact, at, self._run.ledger)

    def carry_out(self, instruction: ev.Instruction) -> None:
        """Hand the instruction to the engine; a launch whose intent is not written is held."""
        match instruction:
            case ev.Launch() if not self._recording:
                self._held[instruction.attempt] = instruction
            case ev.StopAttempt(attempt, by=by) if attempt in self._held:
                self._withdraw(attempt, by)
            case ev.TakeBack(attempt) if attempt in self._held:
                self._withdraw(attempt, Because("taken_back"))
            case ev.Launch():
                if instruction.job.needs or instruction.job.after:
                    self._record.link_results()
                if stamp := stamp_of(instruction.job):
                    self._note_inputs(instruction.attempt, stamp)
                self._engine.carry_out(instruction)
            case _:
                self._engine.carry_out(instruction)

    def _note_inputs(self, attempt: AttemptId, stamp: str) -> None:
        """Record how the job's input files are before it starts: `resume --changed` compares."""
        now, seen = self._clock(), InputsSeen(attempt, stamp)
        self._run.ledger.apply(seen, now)
        self.record([seen], now)

    def _withdraw(self, attempt: AttemptId, by: EndCause) -> None:
        kept = self._held.pop(attempt).worker is not None
        self.post(ev.Ended(attempt, End(Interrupted(by)), kept=kept))

    def card_awaited(self) -> None:
        """Do nothing: the view shows why jobs wait."""

    def wait_over(self) -> None:
        """Stop the run: no attempt was launched within `wait` of the first request for a card."""
        self.no_card = True
        self.no_card_as = " ".join(self._waits_for_allowance() or ())
        self.post(ev.Asked(ev.Stop(Because("wait_over"))))

    def _tell_of_allowance(self) -> None:
        """Note, once, that the user's launchers hold as many cards as they may."""
        if not self._told_of_allowance and (waits := self._waits_for_allowance()):
            self._told_of_allowance = True
            self.note(*waits)

    def _waits_for_allowance(self) -> tuple[str, str] | None:
        """Return the first job that waits for its user's allowance, and that in words."""
        for name, job in self.ledger.jobs.items():
            why = self._run.why_waiting(name) if job.state == "waiting" else None
            if isinstance(why, NeedsAllowance):
                return name, job_reason(why)
        return None

    def _add(self, fact: Fact) -> None:
        """Apply and record a fact of the supervisor's own, which does not come from the core."""
        now = self._clock()
        self._run.ledger.apply(fact, now)
        self.record([fact], now)
        self._show()

    def _sync(self) -> None:
        self._syncing = False
        if not self._synced() and self._recording:
            self._recording_failed(self._clock())

    def _synced(self) -> bool:
        """Sync the journal, and tell the engine of the ends that are safe by that."""
        if not self._record.sync():
            return False
        self._engine.recorded(self._record.synced_ends())
        return True

    def _plan_tick(self) -> None:
        at = self._view.next_tick(self._clock())
        if at is None:
            self._loop.forget("tick")
        else:
            self._loop.call_at("tick", at, self._tick)

    def _tick(self) -> None:
        doing = [pull(source, seconds) for source, seconds in self._engine.pulls().items()]
        self._view.tick(self._clock(), self._run.ledger, doing)

    # ── When the run cannot be recorded ─────────────────────────────────────────────────────────

    def _recording_failed(self, now: Instant) -> None:
        self._recording = False
        trouble = self._record.failure
        self.post(ev.Asked(ev.Pause(RecordingFailed(str(trouble)), "recorder")))
        self._loop.call_at("record:retry", now.mono + RECORD_RETRY, self._retry_recording)
        patience = 0.0 if self._record.unrecoverable else RECORD_PATIENCE
        self._loop.call_at("record:over", now.mono + patience, self._give_up_recording)

    def _retry_recording(self) -> None:
        if self._record.retry():
            self._recording = True
            self._loop.forget("record:over")
            held, self._held = self._held, {}
            for instruction in held.values():
                self.carry_out(instruction)
            waiting, self._once_recorded = self._once_recorded, []
            for recorded in waiting:
                recorded()
            if not self.unrecorded:
                self.post(ev.Asked(ev.Pause(None, "recorder")))
        else:
            self._loop.call_after("record:retry", RECORD_RETRY, self._retry_recording)

    def _give_up_recording(self) -> None:
        if not self._record.failure:
            self._retry_recording()
            return
        self.unrecorded = self._record.failure
        self.post(ev.Asked(ev.Stop(RecordingFailed(str(self.unrecorded), over=True))))
