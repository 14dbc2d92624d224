"""What goes into the state machine of a cluster's engine, and what comes out of it. Values alone.

    observation ─▶ step(state, observation, now) ─▶ actions ─▶ the skin (engine.py) ─▶ observation

Each call of one of Slurm's programs is `Answered` once, later; what is
prepared and claimed, at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from gpulaunch.core.events import Ended, Event, HoldQueue, Launch, StopAttempt
from gpulaunch.core.model import AttemptId, Job
from gpulaunch.engines.slurm import commands
from gpulaunch.engines.slurm.batches import Batch
from gpulaunch.engines.slurm.node_files import Withdrawn

Timer: TypeAlias = Literal[
    "records", "queue", "gather", "send", "room", "stop", "withdrawal", "hold", "confirm",
    "scarce", "postponed",
]  # fmt: skip
Purpose: TypeAlias = Literal["stop", "give up"]


# ── Actions ─────────────────────────────────────────────────────────────────────────────────────


class Prepare(Struct, frozen=True):
    """Write the attempt's files. Answered by `Prepared` or `Unprepared`."""

    launch: Launch


class Submit(Struct, frozen=True):
    """Write the batch's intent, then call sbatch."""

    batch: Batch
    options: tuple[str, ...]


class SubmitProbe(Struct, frozen=True):
    """Call sbatch for the probe."""

    options: tuple[str, ...]


class RecordNumber(Struct, frozen=True):
    """Write Slurm's number of the batch."""

    batch: Batch
    number: str


class ForgetBatch(Struct, frozen=True):
    """Remove the intent of a batch that Slurm neither has nor will get."""

    batch: Batch


class AskConfig(Struct, frozen=True):
    """Ask `scontrol` for the cluster's configuration."""


class AskQueue(Struct, frozen=True):
    """Call squeue."""


class Show(Struct, frozen=True):
    """Ask `scontrol` for one job."""

    attempt: AttemptId
    id: str


class CancelJobs(Struct, frozen=True):
    """Call scancel; the `withdrawn` attempts wait for its answer."""

    ids: tuple[str, ...]
    withdrawn: tuple[AttemptId, ...] = ()


class SignalJobs(Struct, frozen=True):
    """Signal batch scripts."""

    attempts: tuple[AttemptId, ...]
    ids: tuple[str, ...]
    word: str


class Hold(Struct, frozen=True):
    """Hold these terms in Slurm's queue, or release them (`on`).

    `listed`: the names that the file of held attempts has to have before.
    """

    on: bool
    terms: tuple[str, ...]
    names: frozenset[str]
    listed: frozenset[str]


class ForgetHeld(Struct, frozen=True):
    """Remove the file of held attempts."""


class ClaimAttempts(Struct, frozen=True):
    """Claim attempts, so that no node begins them any more. Answered by `Claimed`.

    `all`: those that the purpose is about, claimed already or not.
    """

    purpose: Purpose
    groups: Mapping[Withdrawn, Sequence[AttemptId]]
    all: tuple[AttemptId, ...] = ()


class WriteStop(Struct, frozen=True):
    """Write the stop file that the node reads."""

    attempt: AttemptId
    why: Withdrawn
    now: bool = False


class ForgetAttempt(Struct, frozen=True):
    """Remove what an attempt that is over needs no more."""

    attempt: AttemptId


class ForgetSilence(Struct, frozen=True):
    """Remove the output of Slurm's own script, if it is empty."""

    id: str


class PostEvent(Struct, frozen=True):
    event: Event


class Diagnose(Struct, frozen=True):
    """Post the end, once it is known what there is to know of it."""

    ended: Ended
    job: Job


class Warn(Struct, frozen=True):
    """Tell people."""

    job: str | None
    text: str


class Wake(Struct, frozen=True):
    """Answered by `Due` in so many seconds; the newest of one timer counts."""

    timer: Timer
    seconds: float


Call: TypeAlias = (
    Submit | SubmitProbe | AskConfig | AskQueue | Show | CancelJobs | SignalJobs | Hold
)
Action: TypeAlias = (
    Call | Prepare | RecordNumber | ForgetBatch | ForgetHeld | ClaimAttempts | WriteStop
    | ForgetAttempt | ForgetSilence | PostEvent | Diagnose | Warn | Wake
)  # fmt: skip


# ── Observations ────────────────────────────────────────────────────────────────────────────────


class Adopted(Struct, frozen=True):
    """An earlier launcher's attempts, its batches, and what it knew of the jobs.

    `ended`: those to which it left word that their start is to end.
    """

    attempts: tuple[AttemptId, ...]
    batches: tuple[Batch, ...]
    jobs: Mapping[AttemptId, Job]
    ended: frozenset[AttemptId]


class Prepared(Struct, frozen=True):
    """The attempt's files are written; `options` are sbatch's, `environ` as in Terms."""

    launch: Launch
    options: tuple[str, ...]
    environ: int = 0


class Unprepared(Struct, frozen=True):
    """The attempt's files cannot be written; `scarce`: for want of descriptors, memory or disk."""

    launch: Launch
    why: str
    scarce: bool


class Answered(Struct, frozen=True):
    """What one of Slurm's programs, called for that action at that monotonic time, has answered."""

    action: Call
    answer: commands.Answer
    asked_at: float


class Unwritten(Struct, frozen=True):
    """A file could not be written; what would have followed has not been done."""

    action: Submit | Hold | WriteStop
    why: str


class Claimed(Struct, frozen=True):
    """Who has each attempt: `won` are ours, `lost` a node's; the others could not be claimed."""

    claim: ClaimAttempts
    won: frozenset[AttemptId]
    lost: frozenset[AttemptId]


class Due(Struct, frozen=True):
    """A timer has come."""

    timer: Timer


Observation: TypeAlias = (
    Launch | StopAttempt | HoldQueue | Adopted | Prepared | Unprepared | Answered | Unwritten
    | Claimed | Due
)  # fmt: skip
"""The first three are the core's instructions."""
