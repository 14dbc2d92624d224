"""The engine of a Slurm cluster: Slurm decides when and where; records on the shared disk tell how.

    Launch ─▶ ticket ─▶ Outbox ─▶ sbatch ┄┄▶ (a node: process/node.py) ─▶ starts/ ends/
                                               squeue, once a cycle ─▶ judge ◀┘
                                                                         └─▶ Queued Started Ended

It takes no card and sets no mask. Attempts go on when the launcher is gone; `adopt` takes them up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from gpulaunch.core.events import (
    Asked,
    Ended,
    Instruction,
    Launch,
    Queued,
    Started,
    Stop,
    StopAttempt,
)
from gpulaunch.core.model import (
    AttemptId,
    Cancelled,
    Failure,
    Gpu,
    Interrupted,
    NotStarted,
    Outcome,
    Stopped,
    status_of,
)
from gpulaunch.engines.attempts import Context
from gpulaunch.engines.prepare import Outs
from gpulaunch.engines.protocol import Post
from gpulaunch.engines.slurm import batches, commands, script, tickets
from gpulaunch.engines.slurm.batches import Batch, Terms
from gpulaunch.engines.slurm.ending import Ending
from gpulaunch.engines.slurm.held import Held, Queue
from gpulaunch.engines.slurm.judge import PATIENCE, Over, Sight, judge
from gpulaunch.engines.slurm.outbox import Outbox
from gpulaunch.engines.slurm.probe import Probe
from gpulaunch.engines.slurm.reading import Row
from gpulaunch.engines.slurm.settings import Settings
from gpulaunch.engines.witness import Witness
from gpulaunch.errors import GpulaunchError
from gpulaunch.loop import Loop
from gpulaunch.process.ends import read_end
from gpulaunch.process.nodeside import read_start

GLANCE = 1.0
"""Seconds between two looks at the records; between two at Slurm's queue: `Settings.cycle`."""
REFUSED = "Check what Slurm is told: engine: and gpus: in the job file, and --slurm"


class SlurmEngine:
    """Carries instructions out on the cluster; see `protocol` for what it promises."""

    def __init__(self, context: Context, settings: Settings, loop: Loop, post: Post) -> None:
        self._context = context
        self._cycle = settings.cycle
        self._words = settings.words
        self._run = context.run
        self._loop = loop
        self._post = post
        self._outs = Outs()
        self._held: dict[AttemptId, Held] = {}
        self._postponed: dict[AttemptId, Launch] = {}
        self._slurm = commands.Slurm(loop, context.base)
        title, environ = f"gl:{context.run_id}:", script.environment(context.base)
        self._probe = Probe(
            self._slurm,
            context.run,
            f"{title}{script.PROBE}",
            environ,
            loop,
            self._unfit,
            lambda text: context.warn(None, text),
        )
        self._outbox = Outbox(
            self._slurm, context.run, title, context.epoch, environ, loop, self, self._probe
        )
        self._ending = Ending(self._slurm, context.run, loop)
        self._witness = Witness.afar(context.run, context.warn)
        self._waits = ""
        self._away = ""
        self._asked_at: float | None = None
        self._planned: set[str] = set()
        self._early: dict[AttemptId, StopAttempt] = {}
        self._adopted = False
        tickets.lay_out(context.run)
        script.lay_out(context.run)

    # ── Instructions ────────────────────────────────────────────────────────────────────────────

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._launch(instruction)
            case StopAttempt():
                self._stop(instruction)
            case _:
                raise NotImplementedError(f"no engine of a cluster is told to {instruction}")

    def _launch(self, launch: Launch) -> None:
        try:
            tickets.write(
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
            self._unprepared(launch, f"{error.strerror}{where}")
        except GpulaunchError as error:
            self._unprepared(launch, str(error))
        else:
            self._held[launch.attempt] = Held(launch.attempt, launch.job)
            options = (*script.options(launch.job, self._run), *self._words)
            self._outbox.add(launch.attempt, Terms(options, (), launch.share), launch.after)
            self._plan()

    def _unprepared(self, launch: Launch, why: str) -> None:
        """What it needs may be about to make what is missing: it is tried again after that."""
        if any(self.id_of(need) is not None for need in launch.after):
            self._postponed[launch.attempt] = launch
        else:
            self._post(Ended(launch.attempt, NotStarted(why)))

    def _take_postponed(self) -> None:
        for attempt, launch in list(self._postponed.items()):
            if all(self.id_of(need) is None for need in launch.after):
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
        if held.id:
            self._ending.ask(held)
        elif self._outbox.drop(stop.attempt):
            self._over(held, Interrupted(stop.by))

    def why(self, attempt: AttemptId) -> str:
        held = self._held.get(attempt)
        if held is None:
            return ""
        if not held.id:
            return self._waits or self._away or "is being handed to Slurm"
        queued = held.row is not None and held.row.phase == "queued"
        reason = self._away or (held.row.reason if held.row is not None and queued else "")
        return f"in Slurm's queue as {held.id}" + (f": {reason}" if reason else "")

    # ── Attempts of an earlier launcher ─────────────────────────────────────────────────────────

    def adopt(self, attempts: Sequence[AttemptId]) -> None:
        """They go on in Slurm; those that it was not given are the core's to launch anew."""
        self._adopted = True
        left = set(attempts)
        for batch in batches.read_all(self._run):
            mine = [attempt for attempt in batch.attempts if attempt in left]
            if not mine:
                continue
            left.difference_update(mine)
            for attempt in mine:
                held = Held(attempt, tickets.job_of(attempt, self._run), adopted=True)
                held.wish = self._early.get(attempt)
                self._held[attempt] = held
            if batch.id:
                self.sent(batch)
            else:
                self._outbox.take_up(batch)
        for attempt in sorted(left):
            self._post(Ended(attempt, Interrupted("its launcher was gone before Slurm had it")))
        self._plan()

    # ── What the outbox tells ───────────────────────────────────────────────────────────────────

    def wanted(self, attempt: AttemptId) -> bool:
        return attempt in self._held

    def id_of(self, attempt: AttemptId) -> str | None:
        if attempt in self._postponed:
            return ""
        held = self._held.get(attempt)
        return None if held is None else held.id

    def numbers(self) -> set[str]:
        return {held.id for held in self._held.values()}

    def sent(self, batch: Batch) -> None:
        self._waits = ""
        for place, attempt in enumerate(batch.attempts):
            held = self._held.get(attempt)
            if held is None:
                continue
            held.id, held.known_at = batch.task_of(place), time.monotonic()
            held.title = batch.title
            self._post(Queued(attempt, f"Slurm job {held.id}"))
            if held.wish is not None:
                self._ending.ask(held)

    def refused(self, batch: Batch, why: str) -> None:
        for attempt in batch.attempts:
            if held := self._held.get(attempt):
                self._over(held, NotStarted(why), Failure("not_started", advice=REFUSED))

    def doubtful(self) -> None:
        self._asked_at = None  # what was asked before says nothing of it
        self._plan()

    def waits(self, why: str) -> None:
        if why != self._waits:
            self._context.warn(None, f"Slurm takes no more for now: {why}")
        self._waits = why

    def _unfit(self, why: str) -> None:
        """Nothing of this run can be run on the cluster."""
        self._context.warn(None, why)
        self._post(Asked(Stop(why)))

    # ── Looks ───────────────────────────────────────────────────────────────────────────────────

    def _plan(self) -> None:
        """Look at the records and at the queue from time to time while anything is there."""
        if self._held or self._outbox.in_doubt:
            self._later("glance", min(GLANCE, self._cycle), self._glance)
            if self._asked_at is None:
                self._later("queue", self._cycle, self._look)

    def _later(self, what: str, seconds: float, do: Callable[[], None]) -> None:
        """Unless it is planned already: nothing puts a look off."""

        def now() -> None:
            self._planned.discard(what)
            do()

        if what not in self._planned:
            self._planned.add(what)
            self._loop.call_after(f"slurm:{what}", seconds, now)

    def _hurry(self) -> None:
        """How an attempt ended waits for Slurm's word alone."""
        if self._asked_at is None:
            self._planned.discard("queue")
            self._later("queue", min(GLANCE, self._cycle), self._look)

    def _look(self) -> None:
        asked_at = self._asked_at = time.monotonic()
        self._slurm.queue(lambda answer: self._seen(answer, asked_at))

    def _seen(self, answer: commands.QueueAnswer, asked_at: float) -> None:
        if asked_at != self._asked_at:
            return
        self._asked_at = None
        if isinstance(answer, commands.Queue):
            self._tell_back()
            self._outbox.look_up(answer.rows)
            self._probe.look(answer.rows)
            self._place(answer.rows, asked_at)
            self._glance()
            self._ending.insist([held for held in self._held.values() if held.wish is not None])
        else:
            self.away(answer.text)
        self._plan()

    def _place(self, rows: Sequence[Row], asked_at: float) -> None:
        """Each attempt's row. What Slurm had only after it was asked, it could not show."""
        sight = Queue(rows)
        now = time.monotonic()
        for held in self._held.values():
            if not held.id or held.known_at >= asked_at:
                continue
            held.row = sight.row_of(held)
            over = held.row is None or held.row.phase == "over"
            held.over_at = (held.over_at or now) if over else None

    def _glance(self) -> None:
        """See from the records, and from Slurm's last word, what became of each attempt."""
        started, ended = _names(self._run.starts), _names(self._run.ends)
        for held in list(self._held.values()):
            name = str(held.attempt)
            if held.start is None and name in started:
                self._begun(held)
            self._consider(held, name in ended)
        self._plan()

    def _begun(self, held: Held) -> None:
        start = held.start = read_start(self._run.start(held.attempt))
        if start is None:
            return
        if start.job and start.job != held.id:
            held.id, held.title = start.job, ""  # it was handed over twice: this is what runs
        gpus = tuple(
            Gpu(gpu.uuid, gpu.index, f"{start.node}/{gpu.index}", gpu.name, 0, node=start.node)
            for gpu in start.gpus
        )
        self._post(Started(held.attempt, start.pid, gpus, start.node))

    def _consider(self, held: Held, has_end: bool) -> None:
        end = None
        if has_end:
            with suppress(OSError):
                end = read_end(self._run.end(held.attempt))
        if end is None and held.over_at is None:
            return
        if end is not None:
            held.end_at = held.end_at or time.monotonic()
        sight = Sight(
            held.row,
            held.start,
            end,
            over=_since(held.over_at),
            ended=_since(held.end_at),
            timeout=held.job.timeout,
            said=script.said(self._run, held.id) if held.over_at is not None else "",
            wished=held.wish is not None,
            success=held.job.success_codes,
        )
        verdict = judge(sight, PATIENCE)
        if not isinstance(verdict, Over):
            if end is not None:
                self._hurry()
            return
        outcome = _as_wished(verdict.outcome, held.wish)
        ended = Ended(held.attempt, outcome, failure=verdict.failure)
        if end is not None:
            ended = Ended(
                held.attempt, outcome, end.leftovers, end.started, end.ended, verdict.failure
            )
        self._gone(held)
        if verdict.failure is None:
            self._witness.examine(ended, held.job, (), self._post)
        else:
            self._post(ended)

    def _over(self, held: Held, outcome: Outcome, failure: Failure | None = None) -> None:
        """It never came to Slurm."""
        self._gone(held)
        outcome = _as_wished(outcome, held.wish)
        failure = failure if isinstance(outcome, NotStarted) else None
        self._post(Ended(held.attempt, outcome, failure=failure))

    def _gone(self, held: Held) -> None:
        del self._held[held.attempt]
        tickets.forget(held.attempt, self._run)
        self._ending.over(held)
        self._outs.over(str(self._run.out(held.attempt)))
        if self._postponed:  # once the core has heard of this end: it may not want them any more
            self._loop.call_after("slurm:postponed", 0.0, self._take_postponed)

    # ── A controller that does not answer ───────────────────────────────────────────────────────

    def away(self, why: str) -> None:
        if not self._away:
            text = f"Slurm's controller does not answer, what runs goes on: {why}"
            self._context.warn(None, text)
        self._away = f"Slurm's controller does not answer: {why}"

    def _tell_back(self) -> None:
        if self._away:
            self._context.warn(None, "Slurm's controller answers again")
        self._away = ""

    def close(self) -> None:
        """The attempts stay Slurm's."""
        self._outs.close()
        self._slurm.close()


def _since(at: float | None) -> float:
    return 0.0 if at is None else time.monotonic() - at


def _as_wished(outcome: Outcome, wish: StopAttempt | None) -> Outcome:
    """An end that was asked for, by whatever way it came."""
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
