"""What a run's ledger knows of one attempt, one job, one card."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Advice
from gpulaunch.core.model import (
    AttemptId,
    AttemptState,
    End,
    Gpu,
    GpuState,
    Instant,
    JobState,
    LadderStep,
    Outcome,
    SentWarning,
)
from gpulaunch.core.reasons import (
    CardReason,
    JobReason,
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
    `journal.inputs` writes that; empty where nobody looked at any.
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
