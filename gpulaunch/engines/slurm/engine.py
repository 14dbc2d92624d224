"""The engine of a Slurm cluster: Slurm decides when and where; records on the shared disk tell how.

    Launch ─▶ ticket ─▶ Outbox ─▶ sbatch ┄┄▶ (a node: farside/node) ─▶ starts/ ends/
                                               squeue, once a cycle ─▶ judge ◀┘
                                                                         └─▶ Queued Started Ended
    StopAttempt ─▶ Ending ─▶ starts/ (withdrawn before it began ─▶ Withdrawals), or stops/, scancel

The engine takes no card and sets no mask. Attempts go on when the launcher is gone; the next
launcher's `adopt` follows them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import (
    Asked,
    Ended,
    HoldQueue,
    Instruction,
    Launch,
    OutOfReach,
    Queued,
    Started,
    Stop,
    StopAttempt,
)
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Exited,
    Failure,
    Gpu,
    Interrupted,
    NotStarted,
    Outcome,
    Stopped,
    status_of,
)
from gpulaunch.engines.context import SCARCE, SCARCITY_RETRY_DELAY, RunContext
from gpulaunch.engines.end_diagnosis import EndDiagnosis
from gpulaunch.engines.prepare import OutputDirs
from gpulaunch.engines.protocol import Post
from gpulaunch.engines.slurm import batches, commands, launch_files, script
from gpulaunch.engines.slurm.attempt import QueueSnapshot, SlurmAttempt, sign_of
from gpulaunch.engines.slurm.batches import Batch, Terms
from gpulaunch.engines.slurm.doubts import Doubts
from gpulaunch.engines.slurm.ending import Ending
from gpulaunch.engines.slurm.judge import (
    FORGOTTEN,
    MORE_MEMORY,
    NFS_VISIBILITY_TIMEOUT,
    REQUEUED,
    Observation,
    Over,
    found_its_claim,
    hidden_kill,
    is_full_there,
    judge,
)
from gpulaunch.engines.slurm.limits import Lane
from gpulaunch.engines.slurm.outage import Outage
from gpulaunch.engines.slurm.outbox import Outbox
from gpulaunch.engines.slurm.probe import Probe
from gpulaunch.engines.slurm.queue_hold import QueueHold
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.engines.slurm.reasons import DEPENDENCY, in_words
from gpulaunch.engines.slurm.settings import Settings
from gpulaunch.engines.slurm.standstill import Standstill, why_never
from gpulaunch.engines.slurm.strays import Strays
from gpulaunch.engines.slurm.withdrawals import Withdrawals
from gpulaunch.errors import GpulaunchError
from gpulaunch.loop import Loop
from gpulaunch.process.ends import cause_of, read_end
from gpulaunch.process.nodeside import NodeStart, Withdrawn, last_beat, read_start, withdraw

CARD_NAMES_TIMEOUT = 15.0
"""Seconds after a claim for which the engine waits for the node's record of its cards' names."""
RECORDS_INTERVAL = 1.0
"""Seconds between two looks at the records in the run directory. Slurm's queue is read every
`Settings.cycle` seconds."""
REFUSED = "Check what Slurm is told: engine: and gpus: in the job file, and --slurm"


class SlurmEngine:
    """The engine that carries out the core's instructions on a Slurm cluster (see `protocol`)."""

    def __init__(
        self,
        context: RunContext,
        settings: Settings,
        loop: Loop,
        post: Post,
        slurm: commands.Slurm | None = None,
    ) -> None:
        self._context = context
        self._cycle = settings.cycle
        self._words = settings.words
        self._run = context.run
        self._loop = loop
        self._post = post
        self._outs = OutputDirs()
        self._held: dict[AttemptId, SlurmAttempt] = {}
        self._postponed: dict[AttemptId, Launch] = {}
        self._scarce: dict[AttemptId, str] = {}
        self._slurm = slurm or commands.Slurm(loop, context.base)
        title, environ = f"gl:{context.run_id}:", script.environment(context.base)
        self._probe = Probe(
            self._slurm,
            context.run,
            f"{title}{script.PROBE}-{context.epoch}",
            environ,
            self._unfit,
            lambda text: context.warn(None, text),
            self.doubtful,
        )
        self._outbox = Outbox(
            self._slurm, context.run, title, context.epoch, environ, loop, self, self._probe
        )
        self._ending = Ending(self._slurm, context.run, loop, self)
        self._leaving = Withdrawals(self._slurm, loop, self._left, self.away)
        self._doubts = Doubts(self._slurm, loop, self._confirmed)
        self._strays = Strays(self._slurm, context.run, title, self._looks_after)
        self._holding = QueueHold(
            self._slurm, context.run, loop, self._held.values, lambda text: context.warn(None, text)
        )
        self._witness = EndDiagnosis.afar(context.run, context.warn)
        self._standstill = Standstill(lambda text: context.warn(None, text))
        self._waits = ""
        self._silence = Outage(lambda text: context.warn(None, text))
        self._asked_at: float | None = None
        self._killed_at: float | None = None
        self._planned: set[str] = set()
        self._full: set[AttemptId] = set()
        self._early: dict[AttemptId, StopAttempt] = {}
        self._unbegun: list[tuple[SlurmAttempt, Over]] = []
        self._contrary: dict[AttemptId, str] = {}
        # Attempts whose end was posted while Slurm still has their job, and may start it again.
        self._trailing: dict[AttemptId, SlurmAttempt] = {}
        self._adopted = False
        launch_files.lay_out(context.run)
        script.lay_out(context.run)

    # ── Instructions ────────────────────────────────────────────────────────────────────────────

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._launch(instruction)
            case StopAttempt():
                self._stop(instruction)
            case HoldQueue(on):
                self._outbox.pause(on)
                self._holding.want(on)
            case _:
                raise NotImplementedError(f"no engine of a cluster is told to {instruction}")

    def _launch(self, launch: Launch) -> None:
        try:
            launch_files.write(
                launch.job,
                launch.attempt,
                self._context.base,
                self._run,
                self._context.run_id,
                self._context.machine,
                self._outs,
                launch.after,
            )
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            if error.errno in SCARCE:
                self._put_off(launch, f"{error.strerror}{where}")
            else:
                self._unprepared(launch, f"{error.strerror}{where}")
        except GpulaunchError as error:
            self._unprepared(launch, str(error))
        else:
            self._held[launch.attempt] = SlurmAttempt(
                launch.attempt, launch.job, after=launch.after
            )
            options = (*script.options(launch.job, self._run), *self._words)
            self._outbox.add(launch.attempt, Terms(options, (), launch.share), launch.after)
            self._plan()

    def _put_off(self, launch: Launch, why: str) -> None:
        """Postpone a launch that lacked descriptors, memory or disk: no failure of the job."""
        self.waits(why)
        self._postponed[launch.attempt] = launch
        self._scarce[launch.attempt] = why
        self._loop.call_after("slurm:scarce", SCARCITY_RETRY_DELAY, self._take_put_off)

    def _take_put_off(self) -> None:
        scarce, self._scarce = self._scarce, {}
        for attempt, launch in list(self._postponed.items()):
            if attempt in scarce:
                del self._postponed[attempt]
                self._launch(launch)

    def _unprepared(self, launch: Launch, why: str) -> None:
        """Postpone a launch that failed, or post its end when nothing that it needs is under way.

        A job that it needs may be about to make the missing file.
        """
        if any(self.id_of(need) is not None for need in launch.after):
            self._postponed[launch.attempt] = launch
        else:
            self._post(Ended(launch.attempt, NotStarted(why)))

    def _take_postponed(self) -> None:
        for attempt, launch in list(self._postponed.items()):
            needs_over = all(self.id_of(need) is None for need in launch.after)
            if needs_over and attempt not in self._scarce:
                del self._postponed[attempt]
                self._launch(replace(launch, after=()))

    def _stop(self, stop: StopAttempt) -> None:
        if self._postponed.pop(stop.attempt, None):
            outcome = _as_wished(Interrupted(stop.by), stop)
            self._post(Ended(stop.attempt, outcome))
            return
        held = self._held.get(stop.attempt)
        if held is None:
            if not self._adopted:
                self._early[stop.attempt] = stop
            return
        held.wish = stop
        if stop.now:
            self._killed_at = self._killed_at or time.monotonic()
        if not held.id and self._outbox.drop(stop.attempt):
            self._over(held, Interrupted(stop.by))
        else:
            self._ending.ask(held)

    def why(self, attempt: AttemptId) -> str:
        held = self._held.get(attempt)
        if held is None:
            put_off = "waits for what it needs" if attempt in self._postponed else ""
            return self._scarce.get(attempt, put_off)
        if not held.id:
            handed = "not yet" if self._holding.on else "is being"
            waits = self._waits or self._silence.why or self._outbox.why(attempt)
            return waits or f"{handed} handed to Slurm"
        place = f"in Slurm's queue as {held.id}"
        if self._silence.why or held.row is None or held.row.phase != "queued":
            return place + (f": {self._silence.why}" if self._silence.why else "")
        return place + in_words(held.row.reason, self._needed(held, held.row.reason))

    def _needed(self, held: SlurmAttempt, reason: str) -> str:
        """Return why Slurm lets the attempt wait, where only this launcher knows; else "".

        The core names the jobs that it needs.
        """
        if self._holding.holds(held):
            return "held until the run goes on"
        if reason != DEPENDENCY:
            return ""
        if self._probe.id:
            return self._probe.why
        return f"others with a token of {held.token} go first" if held.token else ""

    # ── Attempts of an earlier launcher ─────────────────────────────────────────────────────────

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        """Follow an earlier launcher's attempts; post the end of those that Slurm never got.

        The core launches the latter again.
        """
        self._adopted = True
        left = set(attempts)
        # Batches with a number first: an attempt may also stand in an older batch, without a
        # number, that was split before it was handed over.
        for batch in sorted(batches.read_all(self._run), key=lambda batch: not batch.id):
            mine = [attempt for attempt in batch.attempts if attempt in left]
            if not mine:
                continue
            left.difference_update(mine)
            for attempt in mine:
                held = SlurmAttempt(attempt, launch_files.job_of(attempt, self._run), adopted=True)
                held.wish = self._early.get(attempt)
                held.recalled = REQUEUED if self._ending.left_word(held) else ""
                self._held[attempt] = held
            if batch.id:
                self.sent(batch)
            else:
                self._outbox.take_up(batch)
        for held in self._held.values():
            if held.wish is not None:
                self._ending.ask(held)
        for attempt in sorted(left):
            self._post(
                Ended(attempt, Interrupted(Quoted("its launcher was gone before Slurm had it")))
            )
        self._plan()

    # ── What the outbox tells ───────────────────────────────────────────────────────────────────

    def wanted(self, attempt: AttemptId) -> bool:
        held = self._held.get(attempt)
        return held is not None and held.withdrawn is None

    def id_of(self, attempt: AttemptId) -> str | None:
        if attempt in self._postponed:
            return ""
        held = self._held.get(attempt)
        if held is None:
            return None
        # Slurm cancels at once whatever needs a job that it takes for failed, time and again.
        return "" if held.doubtful else held.id

    def numbers(self) -> set[str]:
        return {held.id for held in self._held.values()}

    def waiting(self, lane: Lane) -> int:
        held = self._held.values()
        return sum(bool(one.id) and not one.begun and one.lane == lane for one in held)

    def sent(self, batch: Batch) -> None:
        self._waits = ""
        withdrawn = []
        for place, attempt in batch.members:
            held = self._held.get(attempt) or self._leaving.get(attempt)
            if held is None:
                continue
            held.id, held.known_at = batch.task_of(place), time.monotonic()
            held.title, held.lane = batch.title, batch.terms.lane
            held.need = batch.terms.needs_at(place)[0] if batch.terms.each else ""
            held.token = batch.terms.share[0] if batch.terms.share else ""
            if attempt in self._held:  # else its end was posted without Slurm's answer
                self._post(Queued(attempt, f"Slurm job {held.id}"))
            if held.withdrawn is not None:
                withdrawn.append(held)
            elif held.wish is not None:
                self._ending.ask(held)
        self._leaving.numbered(withdrawn)

    def refused(self, batch: Batch, why: str) -> None:
        ours = [held for attempt in batch.attempts if (held := self._held.get(attempt))]
        outcome = Over(NotStarted(why), Failure("not_started", advice=REFUSED))
        self._withdraw([(held, outcome) for held in ours if held.withdrawn is None])
        leaving = (self._leaving.get(attempt) for attempt in batch.attempts)
        self._leaving.told([held for held in leaving if held is not None])

    def doubtful(self) -> None:
        self._asked_at = None  # an answer to an earlier question does not show the doubted batch
        self._plan()

    def full(self, lane: Lane, why: str) -> None:
        with_ = f" with {' '.join(lane)}" if lane else ""
        self._context.warn(None, f"Slurm takes no more{with_} for now: {why}")

    def waits(self, why: str) -> None:
        if why != self._waits:
            self._context.warn(None, f"Slurm is given no more for now: {why}")
        self._waits = why

    def _unfit(self, why: str) -> None:
        """Stop the run: the nodes do not see its directory."""
        self._context.warn(None, why)
        self._post(Asked(Stop(Quoted(why))))

    # ── Looks ───────────────────────────────────────────────────────────────────────────────────

    def _plan(self) -> None:
        """Schedule the next looks at the records and at the queue while any attempt is followed."""
        asks = self._outbox.in_doubt or self._probe.in_doubt or self._leaving.any_untold
        if self._held or self._trailing or asks:
            self._later("glance", min(RECORDS_INTERVAL, self._cycle), self._glance)
            if self._asked_at is None:
                self._later("queue", self._cycle, self._look)

    def _later(self, what: str, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` in so many seconds, unless `what` is planned: a later plan delays none."""

        def now() -> None:
            self._planned.discard(what)
            do()

        if what not in self._planned:
            self._planned.add(what)
            self._loop.call_after(f"slurm:{what}", seconds, now)

    def _hurry(self) -> None:
        """Ask Slurm for its queue soon: a recorded end waits for Slurm's state alone."""
        if self._asked_at is None:
            self._planned.discard("queue")
            self._later("queue", min(RECORDS_INTERVAL, self._cycle), self._look)

    def _look(self) -> None:
        asked_at = self._asked_at = time.monotonic()
        self._slurm.queue(lambda answer: self._seen(answer, asked_at))

    def _seen(self, answer: commands.QueueAnswer, asked_at: float) -> None:
        if asked_at != self._asked_at:
            return
        self._asked_at = None
        if isinstance(answer, commands.QueueListing):
            self._silence.over(asked_at)
            doubted = self._place(answer.rows, asked_at)
            self._outbox.look_up(answer.rows, whole=not doubted)
            self._trail(answer.rows, asked_at, whole=not doubted)
            self._leaving.look(answer.rows, asked_at, self._outbox.has, whole=not doubted)
            if not doubted:  # a doubtful answer may lack jobs that Slurm does have
                self._probe.look(answer.rows)
            self._strays.look(answer.rows, _names(self._run.starts))
            self._recall()
            self._give_up_hope()
            self._holding.look()
            self._glance()
            self._doubts.ask(doubted)
            self._ending.insist([held for held in self._held.values() if held.wish is not None])
        else:
            self.away(answer.text)
        self._plan()

    def _place(
        self, rows: Sequence[QueueRow], asked_at: float
    ) -> list[tuple[SlurmAttempt, QueueRow | None]]:
        """Store each attempt's row of the queue; return those that `scontrol` must confirm first.

        Skips attempts that Slurm got after it was asked at `asked_at`: the answer cannot show them.
        """
        sight = QueueSnapshot(rows)
        doubted: list[tuple[SlurmAttempt, QueueRow | None]] = []
        for held in self._held.values():
            if not held.id or held.known_at >= asked_at:
                continue
            row = sight.row_of(held)
            gone = held.start is None and (row is None or row.phase == "over")
            if gone and (other := sight.other_number_of(held)):
                held.id = other
                row = sight.row_of(held)
            known = not held.must_be_confirmed(row) or held.confirmed == sign_of(row)
            if known or self._has_ended(held, row):
                held.look(row, asked_at)
            else:
                doubted.append((held, row))
        return doubted

    def _confirmed(self, held: SlurmAttempt, row: QueueRow | None, asked_at: float) -> None:
        """Store a row that `scontrol`, asked at that monotonic time, has confirmed."""
        known_at = max(held.known_at, held.start_at or 0.0)
        if self._held.get(held.attempt) is held and known_at < asked_at:
            held.confirmed = sign_of(row)
            held.look(row, asked_at)
            self._recall()
            self._plan()

    def _has_ended(self, held: SlurmAttempt, row: QueueRow | None) -> bool:
        """True if the attempt's end is recorded and Slurm will not start its job again.

        A second start would change what the record means.
        """
        with suppress(OSError):
            is_over = row is None or row.phase == "over"
            return is_over and read_end(self._run.end(held.attempt)) is not None
        return False

    def _trail(self, rows: Sequence[QueueRow], asked_at: float, whole: bool) -> None:
        """Follow the jobs of attempts whose end was posted, until Slurm is done with them.

        `whole`: a job that `rows` lack is one that Slurm has forgotten.
        """
        sight = QueueSnapshot(rows)
        for attempt, held in list(self._trailing.items()):
            row = sight.row_of(held)
            if row is None and not whole:
                continue
            held.look(row, asked_at)
            if held.has_left:
                del self._trailing[attempt]
                self._compare(held)
                script.forget_silence(self._run, held.id)

    def _compare(self, held: SlurmAttempt) -> None:
        """Note a success that Slurm takes for a failure, and warn of a process killed for memory.

        Slurm cancels what needs such a job; an exit status of 0 may hide the kill.
        """
        if not held.succeeded or held.row is None or held.row.kind == "completed":
            return
        self._contrary[held.attempt] = held.row.state
        said = script.said(self._run, held.id)
        self._say_hidden_kill(held, hidden_kill(Observation(held.row, held.start, said=said)))

    def _say_hidden_kill(self, held: SlurmAttempt, killed: str) -> None:
        """Warn once that a process of an attempt that succeeded was killed for its memory."""
        if killed and not held.kill_said:
            held.kill_said = True
            said = f"a process of {held.attempt} was killed for its memory ({killed}), yet it ended"
            text = f"{said} as a success does: look at what it left. {MORE_MEMORY}"
            self._context.warn(held.attempt.job, text)

    def _say_why_again(self, held: SlurmAttempt, row: QueueRow) -> None:
        """Warn that Slurm cancelled the attempt because of a need that did succeed."""
        for need in held.after:
            if row.kind == "dependency" and (state := self._contrary.get(need)):
                taken = f"which takes {need} for failed ({state}); it is handed over again"
                self._context.warn(held.attempt.job, f"Slurm cancelled {held.attempt}, {taken}")

    def _looks_after(self, attempt: AttemptId, number: str) -> bool:
        """True if the engine follows the attempt under that number of Slurm's."""
        held = self._held.get(attempt) or self._trailing.get(attempt) or self._leaving.get(attempt)
        return held is not None and held.id == number

    def _give_up_hope(self) -> None:
        """Withdraw, cancel and end the attempts that Slurm will never start."""
        waiting = [
            held
            for held in self._held.values()
            if held.row is not None and held.row.waits and not (held.wish or held.begun)
        ]
        waiting = [held for held in waiting if not self._holding.holds(held)]
        for held in self._standstill.look(waiting, time.monotonic()):
            why = why_never(held)
            with suppress(OSError):  # else after the next look
                if not withdraw([self._run.start(held.attempt)], "interrupted", why)[0]:
                    self.begun(held)
                    continue
                self._leaving.found([held])
                self._ending.recall([held])
                self._over(held, NotStarted(why), Failure("not_started", advice=REFUSED))

    def _recall(self) -> None:
        """Cancel the jobs that Slurm would start again or never, and stop their first start.

        Slurm may start a job again whose end is recorded, if it missed the message of that end.
        Jobs that depend on it would wait for the second start.
        """
        known = [*self._held.values(), *self._trailing.values()]
        back = [held for held in known if held.recalled and held.row and held.row.waits]
        self._ending.recall(back)
        for held in self._held.values():
            anew = held.recalled or (held.row is not None and found_its_claim(held.row))
            if anew and held.start is not None and not (held.wish or held.told_to_end):
                held.told_to_end = True
                self._ending.leave_word(held)

    def _glance(self) -> None:
        """Read the records and Slurm's last rows; post what has started or ended since."""
        started, ended = _names(self._run.starts), _names(self._run.ends)
        for held in list(self._held.values()):
            name = str(held.attempt)
            if held.start is None and held.withdrawn is None and name in started:
                self._begun(held)
            elif held.start is not None and not held.start_told:
                self._tell_start(held)
            self._consider(held, name in ended)
        self._give_up()
        self._leave()
        self._plan()

    def _begun(self, held: SlurmAttempt) -> None:
        try:
            start = read_start(self._run.start(held.attempt))
        except OSError:  # usually a file server's: read again at the next look
            return
        if start is None:
            return
        if isinstance(start, Withdrawn):  # by an earlier launcher that was killed meanwhile
            held.withdrawn = start
            self.withdrawn([held])
            return
        held.start, held.begun, held.confirmed = start, True, None
        held.start_at = time.monotonic()
        if held.row is not None and held.row.inferred:  # of a task that had not begun
            held.row = None
        if start.job and start.job != held.id:
            if not held.id:
                self._post(Queued(held.attempt, f"Slurm job {start.job}"))
            held.id, held.title = start.job, ""  # submitted twice: this is the job that runs
        self._tell_start(held)

    def _tell_start(self, held: SlurmAttempt, is_over: bool = False) -> None:
        """Post `Started` with the cards' names, or their indices if the names come too late.

        The node writes the names a moment after its claim. An attempt that `is_over` is not kept
        waiting for them.
        """
        start = held.start
        if start is None or held.start_told:
            return
        if start.awaits_cards:
            with suppress(OSError):
                found = read_start(self._run.start(held.attempt))
                start = held.start = found if isinstance(found, NodeStart) else start
            if start.awaits_cards and not is_over and _since(held.start_at) < CARD_NAMES_TIMEOUT:
                return
        held.start_told = True
        gpus = tuple(
            Gpu(gpu.uuid, gpu.index, f"{start.node}/{gpu.index}", gpu.name, 0, node=start.node)
            for gpu in start.gpus
        )
        self._post(Started(held.attempt, start.pid, gpus, start.node))

    def _consider(self, held: SlurmAttempt, has_end: bool) -> None:
        if held.withdrawn is not None:
            return
        end = None
        if has_end:
            with suppress(OSError):
                end = read_end(self._run.end(held.attempt))
        if end is None and held.over_at is None:
            return
        if end is not None:
            held.end_at = held.end_at or time.monotonic()
        sight = Observation(
            held.row,
            held.start,
            end,
            over=_since(held.over_at),
            ended=_since(held.end_at),
            timeout=held.job.timeout,
            said=script.said(self._run, held.id),
            wished=held.wish is not None,
            recalled=held.recalled,
            asked=held.asked,
            preempted=held.preempted,
            success=held.job.success_codes,
        )
        verdict = judge(sight, NFS_VISIBILITY_TIMEOUT)
        if not isinstance(verdict, Over):
            if end is not None:
                self._hurry()
            elif held.start is not None:
                held.beat = held.beat or last_beat(self._run.start(held.attempt))
                if is_full_there(held.row):
                    self._say_full(held)
            return
        if end is None and held.start is None:
            if held.row is not None:
                self._say_why_again(held, held.row)
            self._unbegun.append((held, verdict))
            return
        if end is None and self._still_beats(held):
            return
        self._tell_start(held, is_over=True)
        outcome = _as_wished(verdict.outcome, held.wish)
        ended = Ended(held.attempt, outcome, failure=verdict.failure)
        if end is not None:
            ended = Ended(
                held.attempt, outcome, end.leftovers, end.started, end.ended, verdict.failure
            )
        held.succeeded = isinstance(outcome, Exited) and outcome.code in held.job.success_codes
        if held.succeeded:  # Slurm's final state may come only after the run is over
            self._say_hidden_kill(held, hidden_kill(sight))
        if held.id and held.has_left:
            self._compare(held)
            script.forget_silence(self._run, held.id)
        elif held.id:
            self._trailing[held.attempt] = held
        if held.is_to_begin_anew:
            self._ending.recall([held])
        self._gone(held)
        if end is None and held.start is not None:
            self._ending.leave_word(held)
        if verdict.failure is None:
            self._witness.diagnose(ended, held.job, (), self._post)
        else:
            self._post(ended)

    def _say_full(self, held: SlurmAttempt) -> None:
        """Warn once that the node could not record the attempt's end. It counts as running."""
        if held.attempt not in self._full:
            self._full.add(held.attempt)
            where = f" on {held.row.node}" if held.row and held.row.node else ""
            text = f"is over{where}, where the run's disk is full: a record of its end is awaited"
            self._context.warn(held.attempt.job, text)

    def _still_beats(self, held: SlurmAttempt) -> bool:
        """True if the node's side showed a sign of life since the last call.

        The attempt is then not over, whatever Slurm says.
        """
        before, held.beat = held.beat, last_beat(self._run.start(held.attempt))
        if held.beat is None or held.beat == before:
            return False
        held.over_at = time.monotonic()
        return True

    def _give_up(self) -> None:
        """Withdraw attempts that by Slurm's word will not start.

        Withdrawing makes that certain: Slurm may remember a job after all, and the shared disk may
        show a start late.
        """
        some, self._unbegun = self._unbegun, []
        self._withdraw(some)

    def _withdraw(self, some: Sequence[tuple[SlurmAttempt, Over]]) -> None:
        """Claim these attempts and end them as given; those that a node claimed first run."""
        if not some:
            return
        starts = [self._run.start(held.attempt) for held, _ in some]
        try:
            won = withdraw(starts, "interrupted", FORGOTTEN)
        except OSError:  # a full disk: jobs that Slurm has finished never start without a claim
            won = [held.row is not None and held.row.phase == "over" for held, _ in some]
            self._unbegun += [one for one, ours in zip(some, won, strict=True) if not ours]
            some = [one for one, ours in zip(some, won, strict=True) if ours]
            won = [True] * len(some)
        for (held, over), ours in zip(some, won, strict=True):
            if ours:
                self._over(held, over.outcome, over.failure)
            else:
                self.begun(held)

    def _over(self, held: SlurmAttempt, outcome: Outcome, failure: Failure | None = None) -> None:
        """Forget an attempt that never began and post its end."""
        self._gone(held)
        outcome = _as_wished(outcome, held.wish)
        failure = failure if isinstance(outcome, NotStarted) else None
        self._post(Ended(held.attempt, outcome, failure=failure))

    def _gone(self, held: SlurmAttempt) -> None:
        del self._held[held.attempt]
        launch_files.forget(held.attempt, self._run)
        self._ending.over(held)
        self._outs.over(str(self._run.out(held.attempt)))
        self._outbox.one_is_over(held.lane)
        if self._postponed:  # after the core has handled this end: it may cancel them
            self._loop.call_after("slurm:postponed", 0.0, self._take_postponed)

    # ── What is being ended ─────────────────────────────────────────────────────────────────────

    def withdrawn(self, some: Sequence[SlurmAttempt]) -> None:
        self._leaving.begin(some, away=bool(self._silence.why))

    def begun(self, held: SlurmAttempt) -> None:
        held.begun = True
        self._begun(held)

    def asked(self) -> None:
        if self._silence.why:
            self._silence.say(self._stopping(), self._leaving.removed_by())
            self._leaving.let_go()

    def _left(self, held: SlurmAttempt) -> None:
        why = held.withdrawn
        assert why is not None
        if held.attempt in self._held:
            self._over(
                held, Cancelled() if why.reason == "cancelled" else Interrupted(cause_of(why.by))
            )

    # ── A controller that does not answer ───────────────────────────────────────────────────────

    def away(self, why: str) -> None:
        self._silence.noticed(why, self._stopping(), self._leaving.removed_by())
        self._leaving.let_go()

    def _stopping(self) -> list[SlurmAttempt]:
        return [held for held in self._held.values() if held.wish or held.withdrawn]

    def _leave(self) -> None:
        """Post `OutOfReach` if the run is to end at once and Slurm has been silent for too long."""
        if why := self._silence.gives_up(self._held.values(), self._killed_at or 0.0):
            self._post(OutOfReach(Quoted(why)))

    def close(self) -> None:
        """Close descriptors and running calls. Attempts stay in Slurm's hands."""
        for held in self._trailing.values():
            script.forget_silence(self._run, held.id)
        if not self._held:
            self._probe.close()
        self._outs.close()
        self._slurm.close()


def _since(at: float | None) -> float:
    return 0.0 if at is None else time.monotonic() - at


def _as_wished(outcome: Outcome, wish: StopAttempt | None) -> Outcome:
    """Return the outcome of an end that was asked for, named as the wish says."""
    if wish is None or not isinstance(outcome, Cancelled | Interrupted | Stopped):
        return outcome
    status = status_of(outcome)
    match wish.reason:
        case "cancelled":
            return Cancelled(status)
        case "stopped":
            return Stopped(status)
    return Interrupted(wish.by, status)


def _names(directory: os.PathLike[str]) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()
