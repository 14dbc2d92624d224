"""The fold of a run's facts: what is known of every job, attempt and card. One door: `apply`.

The live run keeps its state here and changes it by facts alone, so a journal replayed is the
state that was; `observe` and `status` read nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from msgspec import Struct, field

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Advice, Because
from gpulaunch.core.model import (
    AttemptId,
    AttemptState,
    Cancelled,
    End,
    Gpu,
    GpuState,
    ImageSource,
    Instant,
    Interrupted,
    Job,
    JobState,
    LadderStep,
    Lost,
    Outcome,
    RunState,
    SentWarning,
    Stopped,
)
from gpulaunch.core.reasons import (
    CardReason,
    InQueue,
    JobReason,
    NextInWorker,
    PausedBy,
    RunReason,
)

_OPEN: frozenset[AttemptState] = frozenset({"launching", "running"})


class AttemptRecord(Struct):
    """One start of a job. Times are Instants; `gpus` are UUIDs.

    `end` is None while none is recorded; `reports` are what the driver reported of its cards
    meanwhile. `worker`: the earlier attempt in whose process it ran, None where it had its own.
    `queued`: it was handed to an engine that starts it later and knows it as `queue_id`; `node` is
    the machine where it started. `after`: attempts that had to succeed first. `behind`: the one
    that its worker still ran when it was launched. `digest`: that of the definition that it was
    launched with; `step`: that of its ladder. `seen`: the last sign of life of an attempt that was
    cut off. `warned`: the warning before its end, if it had one. `promised`: bytes that it was
    promised of a card's memory beside others. `inputs`: how its input files were, as
    `journal.joblog` makes that; empty where nobody looked at any.
    `begins` and `ends`: when it started (until then, was launched) and was over, in seconds of the
    run's own clock, which nobody sets (`Ledger.clock`).
    """

    id: AttemptId
    gpus: tuple[str, ...]
    launched: Instant
    pid: int | None = None
    started: Instant | None = None
    ready: bool = False
    ended: Instant | None = None
    end: End | None = None
    charged: bool = False
    state: AttemptState = "launching"
    reports: list[str] = field(default_factory=list)
    worker: AttemptId | None = None
    queued: bool = False
    queue_id: str = ""
    node: str = ""
    after: tuple[AttemptId, ...] = ()
    behind: AttemptId | None = None
    digest: str = ""
    seen: Instant | None = None
    step: LadderStep | None = None
    warned: SentWarning | None = None
    promised: int = 0
    idle: f.AttemptIdle | None = None
    inputs: str = ""
    begins: float = 0.0
    ends: float | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self.end.outcome if self.end else None

    @property
    def failure(self) -> str | None:
        """The class of its failure, None for none."""
        return self.end.failure.kind if self.end and self.end.failure else None

    @property
    def evidence(self) -> str:
        return self.end.failure.evidence if self.end and self.end.failure else ""

    @property
    def advice(self) -> Advice:
        return self.end.failure.advice if self.end and self.end.failure else ()

    @property
    def left(self) -> int:
        """How many processes outlived its main one and were killed."""
        return self.end.leftovers if self.end else 0

    @property
    def is_open(self) -> bool:
        """True while no end of the attempt is recorded."""
        return self.state in _OPEN

    @property
    def ahead(self) -> bool:
        """True where the attempt was handed over before its turn: it started later, if at all."""
        return self.queued or self.behind is not None

    @property
    def in_queue(self) -> bool:
        """True while the attempt, in the engine's queue or behind another one, has not started."""
        return self.ahead and self.state == "launching"

    @property
    def unbegun(self) -> bool:
        """True where the attempt was handed over before its turn, and that has not come."""
        return self.ahead and self.started is None

    @property
    def taken_back(self) -> bool:
        """True where it was launched ahead of its needs or its turn, and withdrawn unbegun."""
        handed_early = bool(self.after) or self.behind is not None
        return handed_early and self.state == "interrupted" and self.started is None

    @property
    def seconds(self) -> float:
        """Seconds that the attempt ran, as far as known; 0 where it never started or still runs."""
        if self.started is None or self.ends is None:
            return 0.0
        return max(0.0, self.ends - self.begins)


class JobRecord(Struct):
    """One job's state. `budget_from`: attempts numbered from here count against its retries.

    `definition` is its newest, `succeeded_as` the digest of the one that succeeded.
    `unrecorded`: it waits because its last attempt was cut off, and no end is on record. `step`:
    that of its ladder which its last attempt had, or to which it has moved since.
    """

    definition: f.JobAdded
    state: JobState = "waiting"
    reason: JobReason | None = None
    unrecorded: bool = False
    settled: Instant | None = None
    vanished: bool = False
    succeeded_as: str = ""
    not_before: float | None = None
    budget_from: int = 1
    step: LadderStep | None = None
    attempts: Sequence[AttemptRecord] = ()  # a list from the first one on: most jobs wait

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def gone(self) -> bool:
        """True where the file has the job no more, and it neither succeeded nor runs."""
        return self.vanished and self.state not in ("succeeded", "running")

    @property
    def changed(self) -> bool:
        """True where the job succeeded under another definition than its newest.

        False where the definition that succeeded was not recorded.
        """
        return self.state == "succeeded" and self.succeeded_as not in ("", self.definition.digest)

    @property
    def success(self) -> AttemptRecord | None:
        """The attempt that succeeded last; None where none did."""
        return next((one for one in reversed(self.attempts) if one.state == "succeeded"), None)

    @property
    def goes_on(self) -> bool:
        """True while the engine has or runs the job's queued attempt: no supervisor is needed."""
        return bool(self.attempts) and self.attempts[-1].queued and self.attempts[-1].is_open

    @property
    def in_queue(self) -> bool:
        """True while the job has an attempt that was handed over and has not started."""
        return bool(self.attempts) and self.attempts[-1].in_queue

    @property
    def began(self) -> bool:
        """True where an attempt of the job has started, however it ended."""
        return any(attempt.started for attempt in self.attempts)

    @property
    def charged(self) -> int:
        """How many attempts count against the job's present budget of retries."""
        return sum(a.charged for a in self.attempts if a.id.number >= self.budget_from)


class GpuRecord(Struct):
    """One card's state, and the attempts that are on it."""

    gpu: Gpu
    state: GpuState = "free"
    why: CardReason | None = None
    drained: bool = False
    attempts: set[AttemptId] = field(default_factory=set)
    workers: set[AttemptId] = field(default_factory=set)  # idle ones that are being ended


LOCAL = "local"
"""The name of the engine that runs attempts on this machine."""

JOBS_PER_DIRECTORY = 10_000
"""Jobs in one directory of a queue, above which the queue goes on in the next directory."""

NOT_OPENED = f.RunOpened("", "", 0, "", "", "", 0, ())
"""The opening of a run of which nothing is on record."""


class Ledger(Struct):
    """A run's state: the fold of all facts so far. `opening`: what its newest supervisor said.

    `proven`: by entry of the job file, the steps of a ladder at which a job of it succeeded.
    """

    opening: f.RunOpened = NOT_OPENED
    state: RunState = "interrupted"
    reason: RunReason | None = None
    opened: Instant | None = None
    taken: Instant | None = None  # by the present epoch's supervisor; `opened` is the first's
    last: Instant | None = None
    closed: Instant | None = None
    exit_status: int = 0
    pauses: dict[PausedBy, RunReason] = field(default_factory=dict)
    stopping: RunReason | None = None
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    gpus: dict[str, GpuRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    noted: dict[str, str] = field(default_factory=dict)  # of a job's newest attempt, the last
    counts: Counter[JobState] = field(default_factory=Counter)
    proven: dict[int, list[LadderStep]] = field(default_factory=dict)
    vanished: int = 0  # jobs that are gone, which `counts` leaves out
    settings: dict[str, Mapping[str, str]] = field(default_factory=dict)  # by job: see JobSet
    complete: bool = False  # no more jobs come: a standing run may end
    code_changes: dict[str, f.CodeChanged] = field(default_factory=dict)  # each path's last
    images: dict[ImageSource, f.ImageKnown] = field(default_factory=dict)  # as last known
    ahead: float = 0.0
    """Seconds that the run's own clock is ahead of the monotonic one of the present boot."""

    def clock(self, at: Instant) -> float:
        """Return the seconds from the run's first opening to a moment of the present boot.

        All durations come from this clock, and never from two times of day: between these, somebody
        may set the clock. It stands still while the machine sleeps. Between two boots, the time of
        day is all that is known.
        """
        return at.mono + self.ahead

    def here(self, now: Instant, boot: str) -> Instant:
        """Return the moment by the run's monotonic clock, as a process of that boot reads it.

        In another boot, or on another machine, it follows the last fact by the times of day.
        """
        if self.last is None or (boot and boot == self.opening.boot):
            return now
        return Instant(self.last.mono + max(0.0, now.utc - self.last.utc), now.utc)

    def so_far(self, attempt: AttemptRecord, now: Instant) -> float:
        """Return the seconds since the attempt started, or was launched, until it was over."""
        until = self.clock(now) if attempt.ends is None else attempt.ends
        return max(0.0, until - attempt.begins)

    def apply(self, fact: f.Fact, at: Instant) -> None:
        """Change the state by one fact.

        Raises KeyError for a job that was never added, IndexError for an attempt that is not there,
        or does not come next.
        """
        if isinstance(fact, f.JobFact):
            self._apply_to_job(fact, at)
        elif isinstance(fact, f.AttemptFact):
            self._apply_to_attempt(fact, at)
        elif isinstance(fact, f.CardFact):
            self._apply_to_card(fact)
        else:
            self._apply_to_run(fact, at)
        self.last = at

    @property
    def awaits_more(self) -> bool:
        """True while more jobs may come, so that the run does not end when it has none left."""
        return bool(self.opening.standing) and not self.complete

    @property
    def is_full(self) -> bool:
        """True if the queue goes on in its next directory: this one has many jobs, all over."""
        unsettled = sum(self.counts[state] for state in _UNSETTLED)
        return len(self.jobs) >= JOBS_PER_DIRECTORY and not unsettled

    @property
    def paused(self) -> RunReason | None:
        """Why the run starts nothing though it goes on; of several pauses the first by its kind."""
        if not self.pauses:
            return None
        return self.pauses[min(self.pauses, key=_PAUSED_BY.index)]

    @property
    def queueing(self) -> bool:
        """True where the engine queues and places by itself: attempts outlive a supervisor."""
        return self.opening.engine != LOCAL

    def attempt(self, attempt: AttemptId) -> AttemptRecord:
        return self.jobs[attempt.job].attempts[attempt.number - 1]

    def why_queued(self, job: JobRecord) -> InQueue | NextInWorker | None:
        """Return what the job's attempt is behind, or its place in the engine's queue, if any."""
        if not job.in_queue:
            return None
        last = job.attempts[-1]
        if last.behind is not None:
            return NextInWorker(last.behind.job)
        return InQueue(last.queue_id, self.needs_of(last))

    def needs_of(self, attempt: AttemptRecord) -> tuple[str, ...]:
        """Return the jobs whose attempts are under way and must succeed before this one starts.

        An attempt that is missing in a damaged journal does not count.
        """
        known = (need for need in attempt.after if self._is_recorded(need))
        return tuple(need.job for need in known if self.attempt(need).is_open)

    def _is_recorded(self, attempt: AttemptId) -> bool:
        job = self.jobs.get(attempt.job)
        return job is not None and 0 < attempt.number <= len(job.attempts)

    def open_attempts(self) -> list[AttemptRecord]:
        """Return the attempts without a recorded end: those that run or are in a queue."""
        begun = (job for job in self.jobs.values() if job.attempts and job.state in _UNSETTLED)
        # If a later attempt was launched, an earlier one has ended: its end is a damaged line.
        return [job.attempts[-1] for job in begun if job.attempts[-1].is_open]

    def cut_off(self) -> None:
        """Set attempts without a recorded end to interrupted, as their supervisor is gone.

        For showing such a run only, and no fact: a resume finds out how those attempts ended, and
        records it. Attempts in an engine's queue stay: they go on without a supervisor.
        """
        for record in self.open_attempts():
            if record.queued:
                continue
            begun = not record.in_queue
            record.state = "interrupted"
            record.seen = record.seen or self.last
            if record.seen is not None:
                record.ends = self.clock(record.seen)
            why = Because("cut_off") if begun else None
            self._set(self.jobs[record.id.job], "waiting", why, unrecorded=begun)
            for gpu in record.gpus:
                if gpu in self.gpus:  # a supervisor that came later may not have had it
                    self.gpus[gpu].attempts.discard(record.id)

    def _apply_to_run(self, fact: f.RunFact, at: Instant) -> None:
        match fact:
            case f.RunOpened():
                self._set_clock(fact, at)
                self._open(fact, at)
            case f.ListClosed():
                self.complete = True
            case f.ImageKnown(source):
                self.images[source] = fact
            case f.AdmissionPaused(why, by):
                self.pauses[by] = why
            case f.AdmissionContinued(by):
                self.pauses.pop(by, None)
            case f.StopAsked(why):
                self.stopping = why
            case f.CodeChanged():
                self.code_changes.pop(fact.path, None)  # the newest is the last
                self.code_changes[fact.path] = fact
            case f.Noted(text, job):
                self.notes.append(text)
                if job is not None:
                    self.noted[job] = text
            case f.RunClosed(state, reason, status):
                self.state, self.reason, self.closed = state, reason, at
                self.exit_status = status

    def _set_clock(self, fact: f.RunOpened, at: Instant) -> None:
        last = self.last
        if last is None:
            self.ahead = -at.mono
        elif not fact.boot or fact.boot != self.opening.boot:
            self.ahead += last.mono + max(0.0, at.utc - last.utc) - at.mono

    def _open(self, fact: f.RunOpened, at: Instant) -> None:
        # Cards that this engine chose: attempts of an earlier supervisor may still be on them.
        told = [card for card in self.gpus.values() if card.gpu.node]
        known = {card.gpu.uuid: card for card in told if fact.engine == self.opening.engine}
        self.opening = fact
        self.gpus = known | {gpu.uuid: GpuRecord(gpu) for gpu in fact.gpus}
        self.opened, self.taken = self.opened or at, at
        self.state, self.reason, self.closed = "running", None, None
        self.pauses, self.stopping = {}, None
        if fact.standing == "queue":
            self.complete = False  # it is open again

    def _apply_to_job(self, fact: f.JobFact, at: Instant) -> None:
        if isinstance(fact, f.JobAdded):
            self._add(fact)
            return
        job = self.jobs[fact.name]
        match fact:
            case f.JobSettled(_, state, reason):
                self._set(job, state, reason)
                job.settled = at
                if state == "succeeded":
                    last = job.attempts[-1] if job.attempts else job.definition
                    job.succeeded_as = last.digest
                    self._prove(job)
            case f.JobVanished():
                self._count(job, -1)
                job.vanished = True
                self._count(job, +1)
            case f.JobSet(name, fields):
                kept = {**self.settings.get(name, {}), **fields}
                self.settings[name] = {key: text for key, text in kept.items() if text}
            case f.JobRequeued(_, why):
                job.budget_from = len(job.attempts) + 1
                job.not_before = job.settled = None
                self._set(job, "waiting", why)
            case f.JobDelayed(_, why, delay):
                job.not_before = at.mono + delay if delay else None
                job.step = fact.step or job.step
                self._set(job, "waiting", why)

    def _prove(self, job: JobRecord) -> None:
        last = job.attempts[-1] if job.attempts else None
        if last is None or last.step is None or last.state != "succeeded":
            return  # a service that is not needed any more may not have run at its newest step
        proven = self.proven.setdefault(job.definition.group, [])
        if last.step not in proven:
            proven.append(last.step)

    def _add(self, fact: f.JobAdded) -> None:
        job = self.jobs.get(fact.name)
        if job is None:
            self.jobs[fact.name] = JobRecord(fact)
            self.counts["waiting"] += 1
        else:
            self._count(job, -1)
            job.definition, job.vanished = fact, False
            self._count(job, +1)

    def _apply_to_attempt(self, fact: f.AttemptFact, at: Instant) -> None:
        match fact:  # what each attempt has comes first
            case f.AttemptLaunched():
                self._launch(fact, at)
            case f.AttemptStarted():
                self._start(fact, at)
            case f.AttemptEnded():
                self._end(fact, at)
            case f.InputsSeen(attempt, stamp):
                self.attempt(attempt).inputs = stamp
            case f.AttemptQueued(attempt, id):
                record = self.attempt(attempt)
                record.queue_id = id
                if record.in_queue:
                    self.jobs[attempt.job].reason = InQueue(id)
            case f.AttemptWarned(attempt, warning):
                self.attempt(attempt).warned = warning
            case f.AttemptIdle(attempt):
                self.attempt(attempt).idle = fact
            case f.ServiceReady(attempt):
                self.attempt(attempt).ready = True

    def _launch(self, fact: f.AttemptLaunched, at: Instant) -> None:
        job = self.jobs[fact.attempt.job]
        if fact.attempt.number != len(job.attempts) + 1:
            raise IndexError(str(fact.attempt))
        record = AttemptRecord(fact.attempt, fact.gpus, at, worker=fact.worker, queued=fact.queued)
        record.begins = at.mono + self.ahead
        record.digest, record.after = job.definition.digest, fact.after
        record.behind, record.step, record.promised = fact.behind, fact.step, fact.promised
        job.step = fact.step or job.step
        job.attempts = [*job.attempts, record]
        if self.noted:
            self.noted.pop(job.name, None)
        if fact.behind is not None:
            record.gpus = ()  # until its turn has come
            self._set(job, "waiting", NextInWorker(fact.behind.job))
        elif fact.queued:
            self._set(job, "waiting", InQueue())
        else:
            self._set(job, "running", None)
            self._occupy(record)

    def _start(self, fact: f.AttemptStarted, at: Instant) -> None:
        record = self.attempt(fact.attempt)
        record.pid, record.started, record.state = fact.pid, at, "running"
        record.begins = at.mono + self.ahead
        if record.behind is None and not record.queued:
            return
        self._set(self.jobs[fact.attempt.job], "running", None)
        if record.behind is not None:
            record.gpus = self.attempt(record.behind).gpus
            self._occupy(record)
            return
        record.gpus, record.node = tuple(gpu.uuid for gpu in fact.gpus), fact.node
        for gpu in fact.gpus:
            card = self.gpus.setdefault(gpu.uuid, GpuRecord(gpu))
            card.attempts.add(fact.attempt)
            card.state = "leased"

    def _occupy(self, record: AttemptRecord) -> None:
        for gpu in record.gpus:
            if gpu in self.gpus:  # a history that lost facts may not know it
                self.gpus[gpu].attempts.add(record.id)

    def _end(self, fact: f.AttemptEnded, at: Instant) -> None:
        record = self.attempt(fact.attempt)
        if record.in_queue:
            # The next fact says what becomes of the job; until then it counts as running.
            self._set(self.jobs[fact.attempt.job], "running", None)
        self._measure(record, fact.end, at)
        record.started = fact.end.started or record.started
        record.end, record.ended = fact.end, fact.end.ended or at
        record.charged = fact.charged
        record.state = _state_after(fact.end)
        for gpu in record.gpus:
            if gpu in self.gpus:
                self._leave(self.gpus[gpu], record)

    def _measure(self, record: AttemptRecord, end: End, at: Instant) -> None:
        """Set when the attempt began and was over, by the run's own clock.

        The times of one end are of one clock: this boot's, an earlier one's, or a cluster's node's.
        """
        if end.started is not None and end.ended is not None:
            took = end.ended.mono - end.started.mono
            if record.started is None:
                record.begins = at.mono + self.ahead - took
            record.ends = record.begins + took
        elif end.ended is not None and not record.queued:
            record.ends = self.clock(end.ended)
        else:
            record.ends = self.clock(at)

    def _apply_to_card(self, fact: f.CardFact) -> None:
        match fact:
            case f.WorkerLeft(worker, gpus):
                for gpu in gpus:
                    self.gpus[gpu].workers.add(worker)
            case f.WorkerGone(worker, gpus):
                for gpu in gpus:
                    self.gpus[gpu].workers.discard(worker)
            case f.GpuChanged(gpu, state, why):
                self.gpus[gpu].state, self.gpus[gpu].why = state, why
            case f.GpuReported(_, text, attempts):
                for attempt in attempts:
                    self.attempt(attempt).reports.append(text)
            case f.GpuDrained(gpu, on):
                self.gpus[gpu].drained = on

    def _leave(self, card: GpuRecord, record: AttemptRecord) -> None:
        card.attempts.discard(record.id)
        if record.queued and not card.attempts:
            card.state = "free"

    def _set(
        self, job: JobRecord, state: JobState, reason: JobReason | None, unrecorded: bool = False
    ) -> None:
        self._count(job, -1)
        job.state, job.reason, job.unrecorded = state, reason, unrecorded
        self._count(job, +1)

    def _count(self, job: JobRecord, step: int) -> None:
        if job.gone:
            self.vanished += step
        else:
            self.counts[job.state] += step


def unrecorded(gpus: Sequence[Gpu], name: str = "", pid: int = 0) -> Ledger:
    """Return the state of a run just opened on these cards that has no journal."""
    ledger = Ledger()
    ledger.apply(f.RunOpened(name, name, 1, "", "", "", pid, tuple(gpus)), Instant(0.0, 0.0))
    return ledger


_PAUSED_BY: tuple[PausedBy, ...] = get_args(PausedBy)
_UNSETTLED: frozenset[JobState] = frozenset({"waiting", "running"})


def _state_after(end: End) -> AttemptState:
    match end.outcome:
        case Cancelled():
            return "cancelled"
        case Interrupted() if not end.failure:
            return "interrupted"
        case Lost():
            return "lost"
        case Stopped():
            return "succeeded"
    return "failed" if end.failure else "succeeded"


def superseded(ledger: Ledger) -> Iterator[AttemptId]:
    """Yield the attempts that did not succeed, and after which their job was started once more.

    An attempt of which nothing tells how it ended may have succeeded: it is none of them. Nor does
    one count as a later start that never began, in a queue or because it could not be prepared.
    """
    for job in ledger.jobs.values():
        begun = [number for number, one in enumerate(job.attempts) if one.started is not None]
        for attempt in job.attempts[: begun[-1]] if begun else ():
            if not attempt.is_open and attempt.state != "succeeded":
                yield attempt.id


# ── The ladder of a job ───────────────────────────────────────────────────────────────────────────


def next_step(ledger: Ledger, job: Job) -> LadderStep | None:
    """Return the step with which the job's next attempt starts; None without a ladder.

    That is its own, or the furthest at which a job of its entry succeeded, where that is further:
    one job finds out what all of its entry need, and none of them goes through the failing steps
    again. A retry moves a job's own step (JobDelayed). Nothing moves a job back up; interruptions,
    lost cards and resumes keep it where it was.
    """
    if job.ladder is None:
        return None
    known = ledger.jobs.get(job.name)
    own = known.step if known is not None else None
    steps = (own, *ledger.proven.get(job.group, ()))
    return job.ladder.step(max(map(job.ladder.find, steps)))


def step_after(job: Job, attempt: AttemptRecord) -> LadderStep | None:
    """Return the step that follows the attempt's; None where there is none."""
    if job.ladder is None or attempt.step is None:
        return None
    following = job.ladder.step(job.ladder.find(attempt.step) + 1)
    return following if following.values != attempt.step.values else None
