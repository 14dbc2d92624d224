"""The state of one launcher on a cluster, which `step` alone changes. Told the time; runs nothing.

attempts     what was launched and has not ended      outbox     batches that Slurm lacks yet
postponed    not prepared yet, and what was scarce    probe      do nodes see the run directory
trailing     ended, while Slurm still has the job     outage     does the controller answer
withdrawals  claimed here; Slurm may have the job     hold       what a pause holds in the queue
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.core.events import Event, Launch, StopAttempt
from gpulaunch.core.model import AttemptId
from gpulaunch.engines.slurm.actions import Action, CancelJobs, PostEvent, Timer, Wake, Warn
from gpulaunch.engines.slurm.attempt import SlurmAttempt, in_parts
from gpulaunch.engines.slurm.batches import Batch, BatchDoubted, BatchHanded, Terms
from gpulaunch.engines.slurm.limits import Lane, Limits
from gpulaunch.engines.slurm.outcome import Over
from gpulaunch.engines.slurm.reading import QueueRow
from gpulaunch.engines.slurm.records import DiskRecords


class Outbox(Struct):
    """Attempts on their way to Slurm: `fresh`, then in `batches`.

    `fresh_since` and `again_at` are monotonic times, the latter of the next submission after a
    doubt. `largest`: tasks in one array, 0 while Slurm was not asked. `sharing`: by token, the last
    batch that Slurm has. `titled`: all batches of the run by their names in Slurm.
    """

    fresh: dict[AttemptId, tuple[Terms, tuple[AttemptId, ...]]] = field(default_factory=dict)
    fresh_since: float = 0.0
    batches: list[Batch] = field(default_factory=list)
    again_at: float = 0.0
    count: int = 0
    largest: int = 0
    sharing: dict[str, Batch] = field(default_factory=dict)
    titled: dict[str, Batch] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    waits: str = ""

    @property
    def sending(self) -> Batch | None:
        """The batch that is being submitted, or the first in doubt; None if there is none."""
        return next(
            (b for b in self.batches if isinstance(b.state, BatchHanded | BatchDoubted)), None
        )

    @property
    def in_doubt(self) -> bool:
        """True while it is unknown whether Slurm has the batch that was submitted last."""
        return self.sending is not None and isinstance(self.sending.state, BatchDoubted)

    def batch_of(self, attempt: AttemptId) -> Batch | None:
        return next((batch for batch in self.batches if attempt in batch.attempts), None)


class Withdrawals(Struct):
    """The attempts that a launcher has claimed and that Slurm may still have (`there`).

    `waiting`: those of which scancel's answer is awaited, with the monotonic time until when.
    """

    there: dict[AttemptId, SlurmAttempt] = field(default_factory=dict)
    waiting: dict[AttemptId, float] = field(default_factory=dict)


class Stops(Struct):
    """The stops under way: what was asked, what was written, the last signal and its time."""

    asked: dict[AttemptId, None] = field(default_factory=dict)
    written: dict[AttemptId, tuple[Any, bool]] = field(default_factory=dict)
    signalled: dict[AttemptId, tuple[str, float]] = field(default_factory=dict)
    now_since: float = 0.0


class Outage(Struct):
    """Whether Slurm's controller answers: `why` it does not; `said`: for whom people know it."""

    why: str = ""
    heard_at: float = 0.0
    said: set[tuple[AttemptId, bool]] = field(default_factory=set)


class QueueHold(Struct):
    """What this run holds in Slurm's queue.

    `ours`: the names in the file; `ever`: those that were in it; `told`: those whose hold or
    release was answered.
    """

    on: bool = False
    ours: frozenset[str] = frozenset()
    ever: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    busy: bool = False
    refused: str = ""


class Doubts(Struct):
    """The attempts whose rows wait for `scontrol`, one call at a time; when each was asked last."""

    waiting: list[tuple[AttemptId, QueueRow | None]] = field(default_factory=list)
    asked: dict[str, float] = field(default_factory=dict)
    asking: QueueRow | None = None
    busy: bool = False


class Probe(Struct):
    """The probe of one launcher; `id` is Slurm's number of it while its answer is awaited.

    `needed` is the number on which batches depend, `over_at` when it was first seen over, `since`
    since when Slurm gives the same `reason`; `options` are sbatch's.
    """

    title: str
    asked: bool = False
    settled: bool = False
    id: str = ""
    needed: str = ""
    over_at: float | None = None
    reason: str = ""
    since: float = 0.0
    absent: int = 0
    options: tuple[str, ...] = ()
    unsure: bool = False
    refused: str = ""
    said: str = ""
    tries: int = 0
    again_at: float = 0.0

    @property
    def in_doubt(self) -> bool:
        """True while the probe is over and its file is not visible here."""
        return bool(self.id) and self.over_at is not None


class SlurmState(Struct):
    """What one launcher knows. `prefix` begins its batches' names in Slurm, `path` is the run's."""

    prefix: str
    epoch: int
    path: str
    cycle: float
    probe: Probe
    records: DiskRecords
    now: float = 0.0
    attempts: dict[AttemptId, SlurmAttempt] = field(default_factory=dict)
    postponed: dict[AttemptId, tuple[Launch, str]] = field(default_factory=dict)
    early: dict[AttemptId, StopAttempt] = field(default_factory=dict)
    adopted: bool = False
    trailing: dict[AttemptId, tuple[SlurmAttempt, bool]] = field(default_factory=dict)
    given_up: dict[AttemptId, Over] = field(default_factory=dict)
    contrary: dict[AttemptId, str] = field(default_factory=dict)
    said: set[tuple[str, AttemptId | str]] = field(default_factory=set)
    asked_at: float | None = None
    planned: set[Timer] = field(default_factory=set)
    outbox: Outbox = field(default_factory=Outbox)
    withdrawals: Withdrawals = field(default_factory=Withdrawals)
    stops: Stops = field(default_factory=Stops)
    outage: Outage = field(default_factory=Outage)
    hold: QueueHold = field(default_factory=QueueHold)
    doubts: Doubts = field(default_factory=Doubts)
    stuck_since: dict[AttemptId, tuple[str, float]] = field(default_factory=dict)
    out: list[Action] = field(default_factory=list)

    # ── What comes out ──────────────────────────────────────────────────────────────────────────

    def do(self, action: Action) -> None:
        self.out.append(action)

    def post(self, event: Event) -> None:
        self.out.append(PostEvent(event))

    def warn(self, text: str, job: str | None = None) -> None:
        self.out.append(Warn(job, text))

    def first_time(self, what: str, about: AttemptId | str) -> bool:
        """Tell whether something is new: people are told of some things only once."""
        new = (what, about) not in self.said
        self.said.add((what, about))
        return new

    def wake(self, timer: Timer, seconds: float) -> None:
        self.out.append(Wake(timer, seconds))

    def plan(self, timer: Timer, seconds: float) -> None:
        """Wake in so many seconds, unless that timer is planned: a later plan delays none."""
        if timer not in self.planned:
            self.planned.add(timer)
            self.wake(timer, seconds)

    def cancel(self, some: Sequence[SlurmAttempt]) -> None:
        """Cancel jobs. The next look at the queue shows which are left, to be cancelled again."""
        self.cancel_numbers([one.id for one in some])

    def cancel_numbers(self, ids: Sequence[str]) -> None:
        for part in in_parts(ids):
            self.out.append(CancelJobs(tuple(part)))

    # ── Attempts ────────────────────────────────────────────────────────────────────────────────

    def put(self, one: SlurmAttempt) -> SlurmAttempt:
        """Store the attempt as it is now, wherever it is followed."""
        if one.attempt in self.attempts:
            self.attempts[one.attempt] = one
        if one.attempt in self.withdrawals.there:
            self.withdrawals.there[one.attempt] = one
        return one

    def change(self, attempt: AttemptId, **to: Any) -> SlurmAttempt:
        return self.put(replace(self.attempts[attempt], **to))

    def sighted(self, attempt: AttemptId, **to: Any) -> SlurmAttempt:
        """Change what is known of the attempt from Slurm's queue."""
        one = self.attempts[attempt]
        return self.put(replace(one, sight=replace(one.sight, **to)))

    def of(self, attempt: AttemptId) -> SlurmAttempt | None:
        """Return an attempt, a withdrawn one too while Slurm may have it; None for any other."""
        return self.attempts.get(attempt) or self.withdrawals.there.get(attempt)

    def which(self, condition: Callable[[SlurmAttempt], object]) -> list[SlurmAttempt]:
        return [one for one in self.attempts.values() if condition(one)]

    def numbers(self) -> set[str]:
        return {one.id for one in self.attempts.values()}

    def id_of(self, attempt: AttemptId) -> str | None:
        """Slurm's number of an attempt; None once it is over.

        Empty while it is on its way. Also while it is doubtful: Slurm cancels at once whatever
        needs a job that it takes for failed, time and again.
        """
        if attempt in self.postponed:
            return ""
        one = self.attempts.get(attempt)
        if one is None:
            return None
        return "" if one.doubtful else one.id

    def room_made(self, lane: Lane | None) -> None:
        """Count an attempt of the lane that ended: what waited for it, or for room, may go."""
        if self.outbox.fresh:
            self.wake("gather", GATHER_DELAY)
        if lane is not None:
            self.outbox.limits.one_is_over(lane, self.now)
            self.plan_room()

    def plan_room(self) -> None:
        """Wake when a limit of the site may have room."""
        box = self.outbox
        box.limits.keep({batch.terms.lane for batch in box.batches})
        if box.sending is None and (at := min(box.limits.next_at(), default=None)) is not None:
            self.wake("room", max(0.0, at - self.now))


GATHER_DELAY = 0.05
"""Seconds for which attempts are gathered, so that those of one turn become one array."""
