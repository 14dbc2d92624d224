"""Facts: what a run's journal holds, one line each. The fold of them (`core.ledger`) is its state.

Every fact is a frozen struct of plain values, written with the Instant at which it came true.
Reasons are values (`core.reasons`): no fact but a note holds a sentence. Nothing here names an
environment's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import field

from gpulaunch.core.model import (
    AttemptId,
    ContainerEngine,
    DueTime,
    End,
    Gpu,
    GpuState,
    ImageSource,
    JobState,
    LadderStep,
    RunState,
    SentWarning,
)
from gpulaunch.core.reasons import CardReason, JobReason, PausedBy, PlacementChange, RunReason
from gpulaunch.core.values import Happening, Seconds

FORMAT: Final = 3
"""The version of the form in which facts are written. Another one cannot be read."""
_AS_JOB = {"name": "job"}
"""A job's name is written so in every fact: one key finds all about a job."""


class RunOpened(Happening, frozen=True, tag="run_opened"):
    """A supervisor took the run up: the first (`epoch` 1), or a later one that goes on with it.

    `boot` is the kernel's boot id: monotonic times are comparable within one boot only. `limit`:
    at most so many of the cards are held at once, None: all. `engine` carries the attempts out.
    `standing`: it waits for more jobs when it has none left, until ListClosed, as it follows its
    inputs, or is a user's queue.
    Where it places them by itself, `gpus` is empty, and AttemptStarted names the cards. `format`
    is the version of the journal's form.
    """

    run: str
    name: str
    epoch: int
    version: str
    host: str
    boot: str
    pid: int
    gpus: tuple[Gpu, ...]
    simulated: bool = False
    limit: int | None = None
    engine: str = "local"
    standing: Literal["", "follow", "queue"] = ""
    format: Literal[3] = field(default_factory=lambda: FORMAT)  # so that it is always written


class JobAdded(Happening, frozen=True, tag="job_added", rename=_AS_JOB):
    """A job that the list holds. For a name that is known: its new definition.

    `gpus` is how many cards it needs, `gpu_memory` how many bytes must be free on each of them;
    `service`: it is a server beside the jobs; `expected`: the seconds that it is expected to take
    from earlier runs, 0 where nothing is known. `given`: it was added to the live list, and no file
    has it; `due`: it does not start before that. `learned`: bytes that jobs of its entry took of a
    card's memory at most in earlier runs, where its own is learned; 0 where nothing is known.
    """

    name: str
    group: int
    gpus: int
    digest: str
    params: Mapping[str, str] = field(default_factory=dict)
    cost: Seconds = 0.0
    service: bool = False
    expected: Seconds = 0.0
    gpu_memory: int = 0
    given: bool = False
    due: DueTime | None = None
    learned: int = 0


class JobsGiven(Happening, frozen=True, tag="jobs_given"):
    """Jobs were added to the live list: recorded before who added them has the answer.

    `addition` is theirs, a text that nobody else uses. `jobs`: their definitions (see
    `journal.read`). `more`: others of the same addition follow; it counts once the last is there.
    """

    addition: str
    jobs: str
    more: bool = False


class JobSet(Happening, frozen=True, tag="job_set", rename=_AS_JOB):
    """A person set fields of a job, over what its definition says: by field, as typed.

    An empty text: the field is as its definition says again.
    """

    name: str
    fields: Mapping[str, str]


class ListClosed(Happening, frozen=True, tag="list_closed"):
    """A person said that no more jobs come: a standing run ends once all that it has are over."""


class JobVanished(Happening, frozen=True, tag="job_vanished", rename=_AS_JOB):
    """A resume found the job no longer in the file: it is kept, and not run."""

    name: str


class JobRequeued(Happening, frozen=True, tag="job_requeued", rename=_AS_JOB):
    """A settled job waits again, with a fresh retry budget."""

    name: str
    why: JobReason


class AttemptLaunched(Happening, frozen=True, tag="attempt_launched"):
    """An attempt is about to start: written before its process is. `gpus` are the cards' UUIDs.

    `worker`: the attempt whose process goes on with this one; None: it gets a process of its own.
    `behind`: the attempt that this process still runs; until that has ended, the job waits.
    `queued`: the engine starts it later, on cards that the engine chooses; until then the job
    waits. `after`: it starts only once these attempts have succeeded. `step`: that of the job's
    ladder with whose values it starts. `promised`: bytes that it is promised of the card's memory,
    which it may share; 0 where it is promised none, or has the card alone.
    """

    attempt: AttemptId
    gpus: tuple[str, ...]
    worker: AttemptId | None = None
    queued: bool = False
    after: tuple[AttemptId, ...] = ()
    behind: AttemptId | None = None
    step: LadderStep | None = None
    promised: int = 0


class AttemptQueued(Happening, frozen=True, tag="attempt_queued"):
    """The engine has the attempt in its queue. `id` is for people: `Slurm job 12_3`."""

    attempt: AttemptId
    id: str


class AttemptStarted(Happening, frozen=True, tag="attempt_started"):
    """The attempt's process runs; `pid` is its number on its machine.

    `gpus` and `node`: where, if the engine placed the attempt.
    """

    attempt: AttemptId
    pid: int
    gpus: tuple[Gpu, ...] = ()
    node: str = ""


class AttemptWarned(Happening, frozen=True, tag="attempt_warned"):
    """The attempt was sent its job's warning, or no process of it takes that signal.

    Its moment is the warning's own: it may be heard of later, with the attempt's end.
    """

    attempt: AttemptId
    warning: SentWarning


class AttemptIdle(Happening, frozen=True, tag="attempt_idle"):
    """The attempt has held so many bytes of its cards for so long, and computed nothing.

    Nothing follows from it: its job has no `gpu_idle`. Comes once for an attempt.
    """

    attempt: AttemptId
    seconds: Seconds
    memory: int


class InputsSeen(Happening, frozen=True, tag="inputs_seen"):
    """How the attempt's input files were just before it started: their sizes and times, in a text.

    Another text for the same files means that they have changed. See `journal.joblog`.
    """

    attempt: AttemptId
    stamp: str


class ServiceReady(Happening, frozen=True, tag="service_ready"):
    """A service's probe was answered."""

    attempt: AttemptId


class AttemptEnded(Happening, frozen=True, tag="attempt_ended"):
    """The attempt has ended. `charged`: it spent one of the job's retries."""

    attempt: AttemptId
    end: End
    charged: bool = False


class WorkerLeft(Happening, frozen=True, tag="worker_left"):
    """An idle worker is being ended, as no job follows in it. Its cards drain afterwards."""

    worker: AttemptId
    gpus: tuple[str, ...]


class WorkerGone(Happening, frozen=True, tag="worker_gone"):
    """The worker's processes are gone. `worker`: the attempt that it was started with."""

    worker: AttemptId
    gpus: tuple[str, ...]


class JobDelayed(Happening, frozen=True, tag="job_delayed", rename=_AS_JOB):
    """The job waits again after an attempt, for at least `delay` seconds.

    `change`: what will differ; `step`: that of its ladder to which it moves.
    """

    name: str
    why: JobReason
    delay: Seconds = 0.0
    change: PlacementChange | None = None
    step: LadderStep | None = None


class JobSettled(Happening, frozen=True, tag="job_settled", rename=_AS_JOB):
    """The job came to an end state; `reason` is None for success."""

    name: str
    state: JobState
    reason: JobReason | None = None


class GpuChanged(Happening, frozen=True, tag="gpu_changed"):
    gpu: str
    state: GpuState
    why: CardReason | None = None


class GpuReported(Happening, frozen=True, tag="gpu_reported"):
    """The driver reported something of the card (`Xid 31: ...`) while `attempts` ran on it."""

    gpu: str
    text: str
    attempts: tuple[AttemptId, ...] = ()


class GpuDrained(Happening, frozen=True, tag="gpu_drained"):
    """A person took the card from the run for other users (`on`), or undid that."""

    gpu: str
    on: bool


class PullBegun(Happening, frozen=True, tag="pull_begun"):
    """The image of jobs' containers is not there, and is being pulled, by this engine."""

    source: ImageSource
    engine: ContainerEngine


class ImageKnown(Happening, frozen=True, tag="image_known"):
    """The image of jobs' containers is there, as this; `pulled`: it came just now.

    `id` is what command lines of `engine` name, `digest` what people compare; it may be empty.
    """

    source: ImageSource
    id: str
    digest: str
    engine: ContainerEngine
    pulled: bool = False


class AdmissionPaused(Happening, frozen=True, tag="admission_paused"):
    """Nothing new is started, until each of those that paused the run lets it go on."""

    why: RunReason
    by: PausedBy = "asked"


class AdmissionContinued(Happening, frozen=True, tag="admission_continued"):
    """`by` keeps the run from starting jobs no longer."""

    by: PausedBy = "asked"


class StopAsked(Happening, frozen=True, tag="stop_asked"):
    why: RunReason
    now: bool = False


class CodeChanged(Happening, frozen=True, tag="code_changed"):
    """A script of the run's jobs, or what it imports, became another one while some were to come.

    `path`: below the job file's directory, else absolute. `utc`: when, as far as known. `started`
    of the `jobs` that run it had been started by then.
    """

    path: str
    utc: Seconds
    started: int
    jobs: int


class Noted(Happening, frozen=True, tag="noted"):
    """Something a person should know that changes no state: `text` is one line."""

    text: str
    job: str | None = None


class RunClosed(Happening, frozen=True, tag="run_closed"):
    """The supervisor ended the run in good order. `status` is its exit status."""

    state: RunState
    reason: RunReason | None = None
    status: int = 0


JobFact: TypeAlias = JobAdded | JobVanished | JobRequeued | JobDelayed | JobSettled | JobSet
AttemptFact: TypeAlias = (
    AttemptLaunched
    | AttemptQueued
    | AttemptStarted
    | AttemptWarned
    | AttemptIdle
    | InputsSeen
    | ServiceReady
    | AttemptEnded
)
CardFact: TypeAlias = WorkerLeft | WorkerGone | GpuChanged | GpuReported | GpuDrained
RunFact: TypeAlias = (
    RunOpened
    | JobsGiven
    | ListClosed
    | PullBegun
    | ImageKnown
    | AdmissionPaused
    | AdmissionContinued
    | StopAsked
    | CodeChanged
    | Noted
    | RunClosed
)
Fact: TypeAlias = RunFact | JobFact | AttemptFact | CardFact
