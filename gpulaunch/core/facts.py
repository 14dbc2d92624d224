"""Facts: what a run's journal holds, one line each. The fold of them (`core.ledger`) is its state.

Every fact is a frozen dataclass of plain values, written with the Instant at which it came true.
Reasons are values (`core.reasons`): no fact but a note holds a sentence. Nothing here names an
environment's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpulaunch.core.model import (
    SPARSE,
    AttemptId,
    End,
    Gpu,
    GpuState,
    JobState,
    RunState,
)
from gpulaunch.core.reasons import CardReason, JobReason, PlacementChange, RunReason

FORMAT: Final = 3
"""The version of the form in which facts are written. Another one cannot be read."""


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A supervisor took the run up: the first (`epoch` 1), or a later one that goes on with it.

    `boot` is the kernel's boot id: monotonic times are comparable within one boot only. `limit`:
    at most so many of the cards are held at once, None: all. `engine` carries the attempts out.
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
    engine: str = field(default="local", metadata=SPARSE)
    format: Literal[3] = FORMAT


@dataclass(frozen=True, slots=True)
class JobAdded:
    """A job that the file holds. For a name that is known: its new definition.

    `gpus` is how many cards it needs, `gpu_memory` how many bytes must be free on each of them;
    `service`: it is a server beside the jobs; `expected`: the seconds that it is expected to take
    from earlier runs, 0 where nothing is known.
    """

    name: str
    group: int
    gpus: int
    digest: str
    params: Mapping[str, str] = field(default_factory=dict)
    cost: float = 0.0
    service: bool = False
    expected: float = 0.0
    gpu_memory: int = 0


@dataclass(frozen=True, slots=True)
class JobVanished:
    """A resume found the job no longer in the file: it is kept, and not run."""

    name: str


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """A settled job waits again, with a fresh retry budget."""

    name: str
    why: JobReason


@dataclass(frozen=True, slots=True)
class AttemptLaunched:
    """An attempt is about to start: written before its process is. `gpus` are the cards' UUIDs.

    `worker`: the attempt whose process goes on with this one; None: it gets a process of its own.
    `queued`: the engine starts it later, on cards that the engine chooses; until then the job
    waits. `after`: it starts only once these attempts have succeeded.
    """

    attempt: AttemptId
    gpus: tuple[str, ...]
    worker: AttemptId | None = None
    queued: bool = field(default=False, metadata=SPARSE)
    after: tuple[AttemptId, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class AttemptQueued:
    """The engine has the attempt in its queue. `id` is for people: `Slurm job 12_3`."""

    attempt: AttemptId
    id: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The attempt's process runs; `pid` is its number on its machine.

    `gpus` and `node`: where, if the engine placed the attempt.
    """

    attempt: AttemptId
    pid: int
    gpus: tuple[Gpu, ...] = field(default=(), metadata=SPARSE)
    node: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ServiceReady:
    """A service's probe was answered."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt has ended. `charged`: it spent one of the job's retries.

    `unrecorded`: what is on record implies that it ended, and nothing tells how; never written.
    """

    attempt: AttemptId
    end: End
    charged: bool = False
    unrecorded: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """An idle worker is being ended, as no job follows in it. Its cards drain afterwards."""

    worker: AttemptId
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The worker's processes are gone. `worker`: the attempt that it was started with."""

    worker: AttemptId
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobDelayed:
    """The job waits again after an attempt, for at least `delay` seconds.

    `change`: what will differ. `unrecorded`: what followed from that attempt is not on record;
    never written.
    """

    name: str
    why: JobReason
    delay: float = 0.0
    change: PlacementChange | None = field(default=None, metadata=SPARSE)
    unrecorded: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class JobSettled:
    """The job came to an end state; `reason` is None for success."""

    name: str
    state: JobState
    reason: JobReason | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GpuChanged:
    gpu: str
    state: GpuState
    why: CardReason | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GpuReported:
    """The driver reported something of the card (`Xid 31: ...`) while `attempts` ran on it."""

    gpu: str
    text: str
    attempts: tuple[AttemptId, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuDrained:
    """A person took the card from the run for other users (`on`), or undid that."""

    gpu: str
    on: bool


@dataclass(frozen=True, slots=True)
class AdmissionPaused:
    why: RunReason


@dataclass(frozen=True, slots=True)
class AdmissionContinued:
    pass


@dataclass(frozen=True, slots=True)
class StopAsked:
    why: RunReason
    now: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """Something a person should know that changes no state: `text` is one line."""

    text: str
    job: str | None = None


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The supervisor ended the run in good order. `status` is its exit status."""

    state: RunState
    reason: RunReason | None = field(default=None, metadata=SPARSE)
    status: int = 0


JobFact: TypeAlias = JobAdded | JobVanished | JobRequeued | JobDelayed | JobSettled
AttemptFact: TypeAlias = (
    AttemptLaunched | AttemptQueued | AttemptStarted | ServiceReady | AttemptEnded
)
CardFact: TypeAlias = WorkerLeft | WorkerGone | GpuChanged | GpuReported | GpuDrained
RunFact: TypeAlias = (
    RunOpened | AdmissionPaused | AdmissionContinued | StopAsked | Noted | RunClosed
)
Fact: TypeAlias = RunFact | JobFact | AttemptFact | CardFact
